"""What the playground's page answers: nano's own run of the reader's requests."""

import json

import pytest

from minikv.course.motion.paging_nano import Asked, NanoRun
from minikv.i18n import LANGUAGES
from tools.site.browser import playground


def ask(lang: str = "en", sizes: dict | None = None, requests: list | None = None) -> dict:
    asked = playground.start(lang)
    asked["sizes"] |= sizes or {}
    if requests is not None:
        asked["requests"] = [dict(zip(("prompt", "answer", "arrives"), row, strict=True)) for row in requests]
    return json.loads(playground.answer(json.dumps(asked)))


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_example_shows_a_chunk_a_hit_a_queue_and_a_preemption(lang):
    told = ask(lang)
    states = told["scene"]["states"]
    said = " ".join(state["status"] for state in states)
    happened = {
        "en": ("Found in the prefix cache", "Waiting", "Preempted", "Ended"),
        "zh": ("前缀缓存命中", "等待中", "被抢占", "已结束"),
    }
    assert all(word in said for word in happened[lang])
    assert any(state["found"] for state in states)
    shared = {
        state["progress"] for rows in told["progress"] for state in [{"progress": row[1]} for row in rows]
    }
    assert {"later", "waiting", "prefill", "decode", "ended"} <= shared
    words = {word for state in states for _, _, ids, _ in state["blocks"] for word in ids}
    assert {"a1", "b1"} <= words
    assert max(map(len, words)) <= 5
    assert len(states) == len(told["progress"])


def test_both_languages_show_the_same_run():
    english, chinese = (ask(lang) for lang in LANGUAGES)
    assert english["progress"] == chinese["progress"]


def test_the_states_are_nano_s_own():
    told = ask(requests=[("a b c", 2, 1), ("a 猫狗", 1, 2)])
    run = NanoRun([Asked([0, 1, 2], [3, 4]), Asked([0, 5, 6], [7], 2)], **playground.start("en")["sizes"])
    assert [state["writes"] for state in told["scene"]["states"]] == [
        [list(write) for write in state.writes] for state in run.states
    ]
    assert told["progress"] == json.loads(json.dumps(run.progress))


@pytest.mark.parametrize("lang", LANGUAGES)
def test_what_cannot_run_is_said_in_the_reader_s_language(lang):
    for requests in ([("", 1, 1)], [(" ", 1, 1)], [("a " * 60, 32, 1)]):
        told = ask(lang, requests=requests)
        assert set(told) == {"error"}
        assert told["error"].isascii() == (lang == "en")


def test_what_a_link_holds_is_brought_within_its_limits():
    huge = [("a " * 500, 10**9, 10**9)] * 50
    told = ask(sizes={"num_blocks": 10**9, "block_size": 10**9, "max_num_seqs": -4}, requests=huge)
    assert told["scene"]["form"]["num_blocks"] == 24
    assert len(told["progress"][0]) == playground.MOST_REQUESTS
    for wrong in ("x", None, 1.5, True, [1]):
        assert ask(sizes={"num_blocks": wrong}, requests=[("a", wrong, wrong)])["progress"][-1][0][3] == 5
    assert ask(requests=[])["progress"] == [[], []]
    hostile = ask(requests=[("</script><b>", 1, 1)])
    assert "</sc…" in json.dumps(hostile, ensure_ascii=False)
