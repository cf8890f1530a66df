"""Stop texts, wherever the tokens end: what comes out, what is held, and when it has stopped.

``MINIKV_LONG=n`` runs n times as many.
"""

import os
import random

import pytest

from minikv.engine.detokenizer import Detokenizer
from tests.engine.detokenizing import TOKENIZERS, after, random_ids, run

LONG = int(os.environ.get("MINIKV_LONG", "1"))


def cut(text, stops):
    """``text`` read character by character until it ends in a stop text, without that; whether it came to that."""
    for end in range(len(text) + 1):
        found = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: min(found)], True
    return text, False


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_stop_text_ends_the_text_wherever_the_tokens_end(name):
    tokenizer, pick = TOKENIZERS[name], random.Random(name)
    stopped = 0
    for _ in range(200 * LONG):
        prompt = random_ids(pick, tokenizer, pick.choice([0, 3, 12]))
        ids = random_ids(pick, tokenizer, 40)
        whole = after(tokenizer, prompt, ids)
        stops = []
        for _ in range(pick.choice([1, 2, 4])):
            at = pick.randrange(len(whole) + 1)
            piece = whole[at : at + pick.choice([1, 2, 3, 8, 30])]
            stops.append(piece + pick.choice(["", "", "e", "zz"]) or "x")
        found = run(tokenizer, prompt, ids, tuple(stops))
        assert (found.text, found.stopped) == cut(whole, stops), (prompt, ids, stops)
        stopped += found.stopped
    assert stopped > 50 * LONG


def test_stop_texts_over_tokens_within_a_token_and_over_each_other():
    tokenizer = TOKENIZERS["byte level"]

    def pieces(text, *stops):
        detokenizer = Detokenizer(tokenizer, [], stops)
        ids = [tokenizer.convert_tokens_to_ids("Ġ" if letter == " " else letter) for letter in text]
        return [detokenizer.push(token) for token in ids], detokenizer.flush(), detokenizer.stopped

    assert pieces("abcde", "cd") == (["a", "b", "", "", ""], "", True)
    assert pieces("abxab", "abc") == (["", "", "abx", "", ""], "ab", False)
    assert pieces("aaab", "aab") == (["", "", "a", ""], "", True), "the candidate that begins later"
    assert pieces("ababac", "abac") == (["", "", "", "ab", "", ""], "", True)
    assert pieces("abcdef", "abcdef", "cd") == (["", "", "", "ab", "", ""], "", True), "complete first"
    assert pieces("xbcd", "cd", "bcd", "d") == (["x", "", "", ""], "", True), "all complete at once"
    assert pieces("ab", "b") == (["a", ""], "", True)
    assert pieces("a b", "b c", " ") == (["a", "", ""], "", True)


def test_a_stop_text_within_one_token_cuts_it():
    tokenizer = TOKENIZERS["byte fallback"]
    the, end = tokenizer.convert_tokens_to_ids(["▁The", "▁end"])
    detokenizer = Detokenizer(tokenizer, [the], ("n",))
    assert [detokenizer.push(token) for token in (the, end, the)] == [" The", " e", ""]
    assert detokenizer.stopped
    assert detokenizer.text == " The e"


def test_what_is_kept_back_at_the_end_may_hold_the_stop_text():
    tokenizer = TOKENIZERS["byte fallback"]
    smile = [tokenizer.convert_tokens_to_ids(f"<0x{value:02X}>") for value in "é😀".encode()]
    detokenizer = Detokenizer(tokenizer, [], ("😀",))
    assert [detokenizer.push(token) for token in smile] == [""] * 6
    assert not detokenizer.stopped
    assert detokenizer.flush() == "é"
    assert detokenizer.stopped


@pytest.mark.parametrize("stops", [("aab",), ("aaaaaaab",), ("ab", "aaaab", "b" * 12)])
def test_no_more_is_held_than_the_longest_stop_text_less_one_character(stops):
    tokenizer, pick = TOKENIZERS["byte level"], random.Random(7)
    ids = tokenizer.convert_tokens_to_ids(["a", "b"])
    longest = max(len(stop) for stop in stops)
    for _ in range(50):
        detokenizer, pushed = Detokenizer(tokenizer, [], stops), ""
        for _ in range(30):
            which = pick.choices([0, 1], [4, 1])[0]
            pushed += "ab"[which]
            detokenizer.push(ids[which])
            if detokenizer.stopped:
                break
            assert len(pushed) - len(detokenizer.text) < longest
            rest = pushed[len(detokenizer.text) :]
            assert not rest or any(stop.startswith(rest) for stop in stops), "held for no reason"
