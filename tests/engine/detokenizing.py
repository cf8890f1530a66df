"""Vocabularies of every kind, built in memory, and what the text of a sequence has to be."""

import re

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from minikv.engine.detokenizer import BROKEN, Detokenizer

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
