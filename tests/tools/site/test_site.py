"""The site: two notebooks built into pages, every link followed, nothing loaded from elsewhere."""

import json
import re
import string
from functools import partial

import pytest

import minikv.blocks
import minikv.plan
from minikv.course.ask import entries
from minikv.course.lesson_parts import FIRST
from minikv.i18n import LANGUAGES
from tools.notebooks.minutes import ROUTES
from tools.project import ROOT, read_project
from tools.site.api import linked, public_names
from tools.site.build import Site, whole_plan
from tools.site.frame import Text, framed
from tools.site.links import problems
from tools.site.pages import Plan
from tools.site.search import asked, index_script, sections
from tools.site.words import words

STEM = "02_how_many_bytes"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The pages of lesson 02 and of its exercises, the home page and the calculator, in both languages."""
    path = tmp_path_factory.mktemp("site")
    site = Site(Plan(ROOT, only=frozenset({STEM})), path)
    assert site.write() == []
    return path


def test_every_page_leads_to_its_sibling_to_its_notebook_and_to_colab(folder):
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    names = [
        "calculator.html",
        f"exercises/{STEM}.html",
        "index.html",
        f"lessons/{STEM}.html",
        "model.html",
        "playground.html",
    ]
    assert pages == [*(f"en/{name}" for name in names), "index.html", *(f"zh/{name}" for name in names)]
    project = read_project()
    for lang, other in (LANGUAGES, LANGUAGES[::-1]):
        for kind, source in (("lessons", "notebooks"), ("exercises", "exercises")):
            html = (folder / lang / kind / f"{STEM}.html").read_text(encoding="utf-8")
            assert f'href="../../{other}/{kind}/{STEM}.html"' in html
            notebook = f"{source}/{lang}/{STEM}.ipynb"
            assert f'href="{project.file(notebook)}"' in html
            assert f'href="{project.colab(notebook)}"' in html
            assert "<code>make lab</code>" in html


def test_a_page_says_that_nothing_is_loaded_from_elsewhere_and_has_no_script_of_its_own(folder):
    for path in folder.rglob("*/*.html"):
        html = path.read_text(encoding="utf-8")
        assert "default-src 'self'" in html
        scripts = re.findall(r"<script(.*?)>(.*?)</script>", html, re.DOTALL)
        assert [
            code for attributes, code in scripts if code.strip() and "application/json" not in attributes
        ] == []


def test_without_python_for_the_browser_the_calculator_is_a_table(folder):
    for lang in LANGUAGES:
        html = (folder / lang / "calculator.html").read_text(encoding="utf-8")
        assert words(lang)["calculator_absent"] in html
        assert "calculator.js" not in html
        assert "<td>131,072</td>" in html, "Llama-3.1-8B, bytes of a token"
        assert "<td>70,272</td>" in html, "DeepSeek-V3"
    assert not (folder / "assets" / "pyodide").exists()


def test_without_python_for_the_browser_the_playground_has_its_example_as_text(folder):
    for lang in LANGUAGES:
        html = (folder / lang / "playground.html").read_text(encoding="utf-8")
        assert words(lang)["playground_absent"] in html
        assert "<form" not in html.partition("<main")[2].partition("</main>")[0]
        assert html.count("<li>") > 10
        assert {"en": "Found in the prefix cache", "zh": "前缀缓存命中"}[lang] in html


def test_the_home_page_has_what_a_block_manager_did_in_the_words_of_its_language(folder):
    states = {}
    for lang in LANGUAGES:
        html = (folder / lang / "index.html").read_text(encoding="utf-8")
        scene = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)[1])
        states[lang] = scene["states"]
        assert scene["form"]["lang"] == ("zh-CN" if lang == "zh" else "en")
    assert [state["blocks"] for state in states["en"]] != [state["blocks"] for state in states["zh"]]
    assert [state["writes"] for state in states["en"]] == [state["writes"] for state in states["zh"]]
    assert any(state["found"] for state in states["en"])
    assert any(state["copies"] for state in states["en"])


def test_the_home_page_offers_each_route_with_its_words_and_the_sum_of_its_minutes():
    plan = whole_plan(ROOT)
    for lang in LANGUAGES:
        routes = plan.routes(lang)
        assert [key for key, _, _ in routes] == list(ROUTES)
        for key, lessons, minutes in routes:
            assert minutes == sum(entry.minutes for entry in lessons)
            assert words(lang)[f"route_{key}"]


def test_the_index_of_the_search_finds_a_phrase_in_each_language(folder):
    for lang, phrase in (("en", "head_dim"), ("zh", "每个 token")):
        script = (folder / "assets" / f"search.{lang}.js").read_text(encoding="utf-8")
        entries = json.loads(script.partition("= ")[2].rstrip(";\n"))
        found = [entry for entry in entries if phrase in entry[3]]
        assert found
        for _, _, address, *_ in entries:
            path, _, key = address.partition("#")
            assert not key or f'id="{key}"' in (folder / path).read_text(encoding="utf-8")


def test_a_section_ends_where_the_next_heading_begins():
    html = '<p>a</p><h2 id="b">B &amp; C</h2><p>d <b>e</b></p><script>x</script><h2 id="f">F</h2>'
    found = sections("T", "en/t.html", html)
    assert found == [
        ["T", "", "en/t.html", "a"],
        ["T", "B & C", "en/t.html#b", "d e"],
        ["T", "F", "en/t.html#f", ""],
    ]
    assert json.loads(index_script(found).partition("= ")[2].rstrip(";\n")) == found


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ('<a href="b.html">x</a>', "a.html: b.html is not there"),
        ('<a href="#b">x</a>', "a.html: #b has no such place"),
        ('<a href="a.html#b">x</a>', "a.html: a.html#b has no such place"),
        ('<img src="https://example.com/a.png">', "a.html loads https://example.com/a.png"),
        ('<script src="//example.com/a.js"></script>', "a.html loads //example.com/a.js"),
        ('<link rel="stylesheet" href="a.css">', "a.html: a.css is not there"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path, html, said):
    (tmp_path / "a.html").write_text(
        f'<p id="c"></p><a href="#c">c</a><a href="https://example.com">d</a>{html}'
    )
    assert problems(tmp_path) == [said]


def test_an_address_leads_to_a_page_a_picture_or_the_repository(tmp_path):
    site = Site(Plan(ROOT, only=frozenset({STEM})), tmp_path)
    page = next(each for each in site.plan.pages if each.path == f"zh/lessons/{STEM}.html")
    link, project = site.links.of(page), read_project()
    assert link(f"../../exercises/zh/{STEM}.ipynb#The-question") == f"../exercises/{STEM}.html#the-question"
    assert link(project.file(f"notebooks/en/{STEM}.ipynb")) == f"../../en/lessons/{STEM}.html"
    assert link("../../minikv/units.py#L3") == project.file("minikv/units.py#L3")
    assert link("#a") == f"{STEM}.html#a"
    assert link("https://example.com/a#b") == "https://example.com/a#b"
    assert re.fullmatch(r"../../pictures/\w+\.png", link("../../docs/images/budget.png"))
    assert site.links.broken == []
    link("../no_such_file.md")
    assert site.links.broken == [f"notebooks/zh/{STEM}.ipynb: ../no_such_file.md"]


def test_the_whole_plan_has_every_notebook_and_document_once_in_each_language():
    plan = whole_plan(ROOT)
    paths = [page.path for page in plan.pages]
    assert len(paths) == len(set(paths))
    for page in plan.pages:
        assert page.sibling("zh" if page.lang == "en" else "en") in paths
        assert not page.source or (ROOT / page.source).is_file()
    for lang in LANGUAGES:
        notebooks = {
            page.source for page in plan.pages if page.lang == lang and page.kind in ("lesson", "exercise")
        }
        there = {
            path.relative_to(ROOT).as_posix()
            for kind in ("notebooks", "exercises")
            for path in (ROOT / kind / lang).glob("*.ipynb")
        }
        assert notebooks == there
        listed = [lesson.stem for part in plan.parts(lang) for lesson in part.lessons]
        assert listed == [lesson.stem for lesson in plan.course.lessons]
    assert set(FIRST) <= {lesson.number.lower() for lesson in plan.course.lessons}


@pytest.mark.parametrize("room", whole_plan(ROOT).rooms)
def test_the_reference_has_every_public_name_with_its_docstring_and_line(room):
    names = public_names(ROOT, room)
    assert names
    for name in names:
        line = (ROOT / name.path).read_text(encoding="utf-8").splitlines()[name.line - 1]
        assert name.name in line
        assert name.short or "=" in name.signature, name.name


@pytest.mark.parametrize("room", [minikv.plan, minikv.blocks])
def test_the_reference_has_what_the_room_says_is_public(room):
    assert {name.name for name in public_names(ROOT, room.__name__)} == set(room.__all__)


def test_the_site_s_words_are_in_both_languages_with_the_same_values():
    english, chinese = (words(lang) for lang in LANGUAGES)
    for key, said in english.items():
        assert fields(said) == fields(chinese[key]), key
        assert re.search("[\u4e00-\u9fff]", chinese[key]) or key in ("other", "api"), key


def fields(said: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(said) if name)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_search_knows_the_wordings_of_ask_and_the_lesson_of_each(lang):
    lessons = {
        entry.number: (entry.title, entry.path)
        for part in whole_plan(ROOT).parts(lang)
        for entry in part.lessons
    }
    found = asked(lessons, lang)
    assert len(found) == len(entries())
    for wording, lesson in {
        "显存不释放": "16",
        "gpu_memory_utilization": "D",
        "more than calculated": "D",
    }.items():
        [address] = {address for _, _, address, text, _ in found if wording in text.split(" · ")}
        assert address == lessons[lesson][1]
    assert asked({}, lang) == []


def test_a_dotted_name_of_the_package_leads_to_the_reference_or_to_its_file():
    site = Site(whole_plan(ROOT), ROOT / "nowhere")
    page = next(page for page in site.plan.pages if (page.kind, page.lang) == ("lesson", "zh"))
    find = partial(site._definition, page)
    assert find("minikv.plan.plan_memory") == "../api/minikv.plan.html#plan_memory"
    assert find("minikv.plan.CacheSpec.explain") == "../api/minikv.plan.html#CacheSpec.explain"
    project = read_project()
    assert find("minikv.plan.preemption.swap_seconds") == project.file("minikv/plan/preemption.py")
    assert find("minikv.another.name") is None
    html = linked(
        '<td><code>minikv.plan.plan_memory</code></td><a href="x"><code>minikv.plan.plan_memory</code></a>',
        find,
    )
    assert html.count("<a ") == 2
    for entry in entries():
        assert find(entry.call), entry.call


def test_a_page_says_its_own_address_once_the_site_is_online():
    plan = Plan(ROOT, only=frozenset({STEM}))
    page = next(page for page in plan.pages if page.kind == "home")
    html = framed(plan, page, Text("T", "x"), "https://someone.github.io/kv")
    assert '<link rel="canonical" href="https://someone.github.io/kv/en/index.html">' in html
    assert '<meta property="og:url" content="https://someone.github.io/kv/en/index.html">' in html
    assert "canonical" not in framed(plan, page, Text("T", "x"))
