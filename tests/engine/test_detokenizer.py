"""Text token by token against decoding all tokens at once, for vocabularies of every kind, built in memory."""

import os
import random
import re
import subprocess
import sys

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from minikv.engine.detokenizer import BROKEN, Detokenizer

LONG = int(os.environ.get("MINIKV_LONG", "1"))
SENTENCES = [
    "The quick brown fox jumps over the lazy dog, twice.",
    "你好，世界！缓存里的块可以共享。",
    "naïve café — déjà vu… 😀👍🏽👨‍👩‍👧 🚀🚀",
    "  two  spaces\nand a\ttab, ending in the end END",
]


def wrapped(inner):
    """With bos, eos and pad, and with a special token that has no such name."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.add_tokens([AddedToken("<|turn|>", special=True), AddedToken("<tool>", special=False)])
    return tokenizer


def byte_level():
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    return wrapped(inner)


def byte_fallback(decoder):
    """Words and letters that begin with a space as SentencePiece has them, and a token for each byte."""
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    letters = sorted({letter for letter in SENTENCES[0].replace(" ", "") + SENTENCES[3].strip()})
    pieces = ["▁", "▁▁", "▁fox", "▁The", "▁end", "你", *letters, "▁t", *("▁" + letter for letter in "abcde")]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(["<unk>", *bytes_, *pieces]))}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoder
    return wrapped(inner)


def word_level(decoder=None):
    words = ["<unk>", "the", "fox", "##es", "END", ".", ",", "不", "dog", "##s", "'", "a", "b", "n't", "do"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder is not None:
        inner.decoder = decoder
    return wrapped(inner)


LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
TOKENIZERS = {
    "byte level": byte_level(),
    "byte fallback": byte_fallback(decoders.Sequence(LLAMA)),
    "metaspace": byte_fallback(decoders.Metaspace()),
    "metaspace with bytes": byte_fallback(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])),
    "word level": word_level(),
    "word pieces": word_level(decoders.WordPiece(prefix="##", cleanup=True)),
}


def special_ids(tokenizer):
    return {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}


def decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def after(tokenizer, prompt, ids):
    """The text of ``ids`` after a prompt. If they complete its last character, that character is theirs."""
    before, whole = decode(tokenizer, prompt), decode(tokenizer, prompt + ids)
    if whole.startswith(before):
        return whole[len(before) :]
    known = [i for i in prompt if i < len(tokenizer) and i not in special_ids(tokenizer)]
    broken = 0  # the last character is one U+FFFD, or one for each byte token
    for token in reversed(tokenizer.convert_ids_to_tokens(known)):
        if not re.fullmatch("<0x..>", token):
            break
        broken += 1
    return whole[len(re.sub(f"{BROKEN}{{0,{max(broken, 1)}}}$", "", before)) :]


def cut(text, stops):
    """``text`` read character by character until it ends in a stop text, without that; whether it came to that."""
    for end in range(len(text) + 1):
        found = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: min(found)], True
    return text, False


def run(tokenizer, prompt, ids, stops=()):
    """All pieces; after each push what has come out is looked at."""
    detokenizer, pieces = Detokenizer(tokenizer, prompt, stops), []
    for token in ids:
        pieces.append(detokenizer.push(token))
        assert detokenizer.text == "".join(pieces)
    pieces.append(detokenizer.flush())
    assert detokenizer.text == "".join(pieces)
    assert detokenizer.flush() == "", "once"
    return detokenizer


def random_ids(pick, tokenizer, count):
    """Any tokens, special and unknown ones too; now and then a stretch of bytes, whole characters or broken ones."""
    ids = []
    while len(ids) < count:
        kind = pick.random()
        if kind < 0.5:
            ids.append(pick.randrange(len(tokenizer)))
        elif kind < 0.6:
            ids.append(pick.choice([*tokenizer.all_special_ids, len(tokenizer) - 2, len(tokenizer) + 7]))
        elif kind < 0.9:
            ids += tokenizer.encode(
                pick.choice(["你", "é😀", "👍🏽", " fox", "the END"]), add_special_tokens=False
            )
        else:
            ids += tokenizer.encode("😀你", add_special_tokens=False)[: pick.randrange(1, 6)]
    return ids[:count]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_are_what_decoding_everything_gives(name):
    tokenizer, pick = TOKENIZERS[name], random.Random(name)
    for _ in range(150 * LONG):
        prompt = random_ids(pick, tokenizer, pick.choice([0, 0, 1, 2, 9, 40]))
        ids = random_ids(pick, tokenizer, pick.choice([0, 1, 3, 20, 90]))
        found = run(tokenizer, prompt, ids)
        assert found.text == after(tokenizer, prompt, ids), (prompt, ids)
        assert not found.stopped


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
            stops.append(
                whole[at : at + pick.choice([1, 2, 3, 8, 30])] + pick.choice(["", "", "e", "zz"]) or "x"
            )
        found = run(tokenizer, prompt, ids, tuple(stops))
        assert (found.text, found.stopped) == cut(whole, stops), (prompt, ids, stops)
        stopped += found.stopped
    assert stopped > 50 * LONG


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
