"""Text token by token against decoding all tokens at once, for vocabularies of every kind.

``MINIKV_LONG=n`` runs n times as many.
"""

import os
import random
import subprocess
import sys

import pytest

from minikv.engine.detokenizer import BROKEN, Detokenizer
from tests.engine.detokenizing import SENTENCES, TOKENIZERS, after, decode, random_ids, run

LONG = int(os.environ.get("MINIKV_LONG", "1"))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_are_what_decoding_everything_gives(name):
    tokenizer, pick = TOKENIZERS[name], random.Random(name)
    for _ in range(150 * LONG):
        prompt = random_ids(pick, tokenizer, pick.choice([0, 0, 1, 2, 9, 40]))
        ids = random_ids(pick, tokenizer, pick.choice([0, 1, 3, 20, 90]))
        found = run(tokenizer, prompt, ids)
        assert found.text == after(tokenizer, prompt, ids), (prompt, ids)
        assert not found.stopped


@pytest.mark.parametrize("name", ["byte level", "byte fallback", "metaspace with bytes"])
@pytest.mark.parametrize("sentence", SENTENCES[:3])
def test_a_sentence_comes_out_whole(name, sentence):
    tokenizer = TOKENIZERS[name]
    ids = [i for i in tokenizer.encode(sentence, add_special_tokens=False) if i != tokenizer.unk_token_id]
    detokenizer = Detokenizer(tokenizer, [tokenizer.bos_token_id])
    pieces = [detokenizer.push(token) for token in ids]
    assert not any(BROKEN in piece for piece in pieces), "half a character came out"
    assert "".join(pieces) + detokenizer.flush() == decode(tokenizer, ids)
    if name == "byte level" or sentence != SENTENCES[0]:
        assert detokenizer.text == sentence


def test_a_character_waits_for_its_last_byte():
    tokenizer = TOKENIZERS["byte level"]
    alphabet = [tokenizer.convert_tokens_to_ids(letter) for letter in "ðŁĺĢ"]  # the four bytes of 😀
    detokenizer = Detokenizer(tokenizer, [])
    assert [detokenizer.push(token) for token in alphabet] == ["", "", "", "😀"]
    assert detokenizer.push(alphabet[0]) == ""
    assert detokenizer.flush() == BROKEN
    assert detokenizer.text == "😀" + BROKEN == decode(tokenizer, [*alphabet, alphabet[0]])


def test_a_run_of_byte_tokens_waits_for_its_end():
    """One wrong byte makes the decoder take back the whole run, so nothing of it is certain before."""
    tokenizer = TOKENIZERS["byte fallback"]
    smile = [tokenizer.convert_tokens_to_ids(f"<0x{value:02X}>") for value in "😀".encode()]
    fox = tokenizer.convert_tokens_to_ids("▁fox")
    good, bad = Detokenizer(tokenizer, [fox]), Detokenizer(tokenizer, [fox])
    assert [good.push(token) for token in [*smile, tokenizer.eos_token_id, fox]] == [""] * 5 + ["😀 fox"]
    assert [bad.push(token) for token in [*smile, smile[0], fox]] == [""] * 5 + [BROKEN * 5 + " fox"]
    ended = Detokenizer(tokenizer, [fox])
    assert [ended.push(token) for token in smile] == [""] * 4
    assert ended.flush() == "😀"


@pytest.mark.parametrize("name", ["byte fallback", "metaspace"])
def test_the_first_tokens_space_is_right(name):
    tokenizer = TOKENIZERS[name]
    the, fox = tokenizer.convert_tokens_to_ids(["▁The", "▁fox"])
    special = [tokenizer.bos_token_id, tokenizer.convert_tokens_to_ids("<|turn|>")]
    assert Detokenizer(tokenizer, [the]).push(fox) == " fox"
    assert Detokenizer(tokenizer, [the] + special * 10).push(fox) == " fox", "however far back the text is"
    assert Detokenizer(tokenizer, special).push(fox) == "fox", "nothing stands before it"
    assert Detokenizer(tokenizer, []).push(fox) == "fox"


def test_special_and_unknown_tokens_are_no_text_and_keep_nothing_back():
    for tokenizer in TOKENIZERS.values():
        turn, tool = tokenizer.convert_tokens_to_ids(["<|turn|>", "<tool>"])
        silent = [
            tokenizer.eos_token_id,
            tokenizer.bos_token_id,
            tokenizer.pad_token_id,
            turn,
            len(tokenizer) + 1,
        ]
        detokenizer = Detokenizer(tokenizer, [tool])
        assert [detokenizer.push(token) for token in silent * 10] == [""] * 50
        assert len(detokenizer._window) == 1
        assert "<tool>" in detokenizer.push(tool)


def test_what_completes_the_prompts_last_character_has_that_character():
    tokenizer = TOKENIZERS["byte level"]
    smile = [tokenizer.convert_tokens_to_ids(letter) for letter in "ðŁĺĢ"]
    letter = tokenizer.convert_tokens_to_ids("a")
    assert run(tokenizer, [letter, *smile[:3]], [smile[3], letter]).text == "😀a"
    assert run(tokenizer, [letter, *smile[:3]], [letter]).text == "a"
    assert run(tokenizer, [letter, *smile[:3]], []).text == ""
    assert run(tokenizer, [letter, *smile], [letter]).text == "a"


@pytest.mark.parametrize("count", [1, 3, 4, 9, 30])
def test_a_prompts_last_run_of_byte_tokens_is_read_whole(count):
    """However long it is: from its middle on it would be other bytes."""
    tokenizer = TOKENIZERS["byte fallback"]
    fox = tokenizer.convert_tokens_to_ids("▁fox")
    text = "你" * count
    run_of_bytes = [tokenizer.convert_tokens_to_ids(f"<0x{value:02X}>") for value in text.encode()]
    assert run(tokenizer, [fox, *run_of_bytes[:-1]], [run_of_bytes[-1], fox]).text == text + " fox"
    assert run(tokenizer, [fox, *run_of_bytes], [fox]).text == " fox"


class Counting:
    """A tokenizer that counts the tokens that it decodes."""

    def __init__(self, tokenizer):
        self.inner, self.calls, self.tokens = tokenizer, 0, 0

    def convert_ids_to_tokens(self, token_id):
        return self.inner.convert_ids_to_tokens(token_id)

    def decode(self, ids, **options):
        self.calls, self.tokens = self.calls + 1, self.tokens + len(ids)
        return self.inner.decode(ids, **options)


@pytest.mark.parametrize(
    "what", ["text", "text after a byte", "broken bytes", "byte tokens", "special tokens"]
)
def test_a_push_costs_the_same_after_any_number_of_tokens(what):
    tokenizer = TOKENIZERS["byte fallback" if what in ("byte tokens", "text after a byte") else "byte level"]
    token = {
        "text": tokenizer.convert_tokens_to_ids("a"),
        "text after a byte": tokenizer.convert_tokens_to_ids("▁fox"),
        "broken bytes": tokenizer.convert_tokens_to_ids("ð"),
        "byte tokens": tokenizer.convert_tokens_to_ids("<0xF0>"),
        "special tokens": tokenizer.eos_token_id,
    }[what]
    counting = Counting(tokenizer)
    detokenizer = Detokenizer(counting, tokenizer.encode("Hello", add_special_tokens=False) * 2000)
    assert counting.tokens < 40, "a long prompt is not decoded"
    if what == "text after a byte":
        detokenizer.push(tokenizer.convert_tokens_to_ids("<0xF0>"))
    counting.calls = counting.tokens = 0
    for _ in range(5000):
        detokenizer.push(token)
    detokenizer.flush()
    assert counting.tokens <= 25 * 5000
    assert counting.calls <= (3.1 if what == "special tokens" else 1.1) * 5000


def test_it_needs_neither_torch_nor_transformers():
    code = "import sys, minikv.engine.detokenizer; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
