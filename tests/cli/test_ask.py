"""minikv ask: lines for a terminal, JSON for a program, 1 where nothing is found."""

import json

import pytest


@pytest.mark.parametrize(("lang", "said"), [("en", "16 · Where did 6 GB go?"), ("zh", "16 · ")])
def test_it_says_question_lesson_and_call(lang, said, terminal):
    done = terminal("ask", "memory", "not", "released", "--lang", lang)
    assert (done.code, done.err) == (0, "")
    assert said in done.out
    assert "    minikv.memory.retention_report" in done.out.splitlines()


def test_json_has_the_same(terminal):
    found = json.loads(terminal("ask", "DynamicCache", "--json").out)
    assert found["asked"] == "DynamicCache"
    assert found["answers"][0] == {
        "question": "Which transformers cache class should I use?",
        "lesson": "06",
        "call": "minikv.cache.LinearKVCache",
    }


def test_nothing_found_is_an_exit_code_of_1(terminal):
    done = terminal("ask", "zzzz\x1b[31m")
    assert done.code == 1
    assert "\x1b" not in done.out
    assert "Appendix G" in done.out


def test_too_long_a_question_is_refused(terminal):
    done = terminal("ask", "x" * 300)
    assert done.code != 0
    assert "Traceback" not in done.err
