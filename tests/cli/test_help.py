"""The command line before any command runs: help in two languages, the version, completion, the language, Ctrl+C."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.resources import files

import pytest
import typer

import minikv
from minikv.cli.app import COMMANDS, build
from minikv.i18n import locale_language, text
from tests.longer import every_value

SENTENCES = tomllib.loads((files("minikv") / "messages" / "help.toml").read_text(encoding="utf-8"))
PARAMS = {name: [param.name for param in command.params] for name, command in build("en").commands.items()}


def key_of(command: str, option: str) -> str:
    own = f"{command.replace('-', '_')}_{option.strip('_')}"
    return own if own in SENTENCES else option.strip("_")


def packed(shown: str) -> str:
    """Without what a table puts between the words."""
    return re.sub(r"[\s│]", "", shown)


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_whole_in_both_languages(command, lang, columns, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("MINIKV_LANG", lang)
    done = terminal(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert SENTENCES["usage"][lang].strip() in done.out
    assert f" {SENTENCES['options'][lang]} " in done.out
    own = packed(SENTENCES[f"command_{command.replace('-', '_')}"][lang])
    assert own in packed(done.out)
    assert "bool" not in done.out
    if columns == "200":  # in a narrow one another column stands between the halves of a sentence
        for option in PARAMS[command]:
            assert packed(text(f"help.{key_of(command, option)}", lang)) in packed(done.out), option
    assert "…" not in done.out, "nothing is cut off"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_help_names_every_command_and_says_how_to_install_completion(lang, terminal, monkeypatch):
    for arguments in (["--help"], ["-h"], []):
        monkeypatch.setenv("MINIKV_LANG", lang)
        done = terminal(*arguments)
        for name in COMMANDS:
            assert f" {name} " in done.out + done.err
        assert "--install-completion" in done.out + done.err
        assert text("help.version", lang) in done.out + done.err
    assert text("help.command_metavar", lang).split()[0] in terminal("nothing").err


def test_no_sentence_of_the_help_is_left_over():
    panels = {
        metadata.rich_help_panel
        for function in COMMANDS.values()
        for annotation in function.__annotations__.values()
        for metadata in getattr(annotation, "__metadata__", ())
        if isinstance(metadata.rich_help_panel, str)
    }
    used = {key_of(command, option) for command, options in PARAMS.items() for option in options}
    used |= {f"command_{name.replace('-', '_')}" for name in COMMANDS} | {f"panel_{name}" for name in panels}
    words = {
        "usage",
        "options_metavar",
        "command_metavar",
        "arguments",
        "options",
        "commands",
        "error",
        "try",
    }
    words |= {"default", "environment", "required"}
    root = {"help", "version", "install_completion", "show_completion", "command_minikv"}
    assert used | words | root == set(SENTENCES)


def test_the_version_is_that_of_the_package(terminal):
    done = terminal("--version")
    assert (done.code, done.out, done.err) == (0, f"minikv {minikv.__version__}\n", "")


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    program = f"import sys; sys.argv = ['minikv', *sys.argv[1:]]\n{code}"
    env = {**os.environ, "COLUMNS": "100", **environment}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=env
    )


MAIN = "from minikv.cli import main; main()"


def test_a_shell_is_told_how_a_line_goes_on():
    asked = {"_MINIKV_COMPLETE": "complete_bash", "COMP_WORDS": "minikv pl", "COMP_CWORD": "1"}
    assert run(MAIN, **asked).stdout.split() == ["plan"]
    asked |= {"COMP_WORDS": "minikv plan --gpu", "COMP_CWORD": "2"}
    assert "--gpu-bytes" in run(MAIN, **asked).stdout.split()


@pytest.mark.parametrize(
    ("locale", "lang"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_TW.UTF-8"}, "zh"),
        ({"LANG": "fr_FR.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN"}, "zh"),
        ({"LANG": "zh_CN", "LC_MESSAGES": "zh_CN", "LC_ALL": "C"}, "en"),
        ({"LANG": "zh_CN", "LC_ALL": ""}, "zh"),
        ({"LANG": "en_US", "MINIKV_LANG": "zh"}, "zh"),
        ({"LANG": "zh_CN", "MINIKV_LANG": "en"}, "en"),
        ({"LANG": "zh_CN", "MINIKV_LANG": ""}, "zh"),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else value,
)
def test_the_language_is_that_of_the_shell_unless_another_is_asked_for(locale, lang, terminal, monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "MINIKV_LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    if not locale.get("MINIKV_LANG"):
        assert locale_language(os.environ) == lang
    chinese = lang == "zh"
    assert ("用法" in terminal("plan", "--help").out) == chinese
    assert ("模型" in terminal("plan", "--list").out) == chinese
    assert ("必须" in terminal("lab", "--port", "0").err) == chinese
    assert "Usage" in terminal("plan", "--help", "--lang", "en").out
    assert "用法" in terminal("plan", "--help", "--lang", "zh").out


IMPORTS = {
    "lab": ("typer", "--copy-only"),
    "progress": ("rich",),
    "generate": ("torch", "x"),
    "generate later": ("transformers", "x"),
    "bench": ("torch",),
}


@pytest.mark.parametrize(("case", "lang"), every_value(list(IMPORTS), ["zh", "en"]))
def test_ctrl_c_during_an_import_is_one_sentence(case, lang, tmp_path):
    package, *arguments = IMPORTS[case]
    code = f"""
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {package!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
{MAIN}"""
    done = run(code, case.split()[0], *arguments, MINIKV_LANG=lang)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == text("cli.interrupted", lang) + "\n"


def test_no_option_says_a_sentence_of_its_own():
    """It would be said in one language."""
    for function in COMMANDS.values():
        for annotation in function.__annotations__.values():
            for metadata in getattr(annotation, "__metadata__", ()):
                assert isinstance(metadata, typer.models.ParameterInfo)
                assert metadata.help is None
