"""Tokenizers made in memory for the random models: one word an id, and one byte an id."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS = 0, 1
WHOLE = 2  # a word, and "A": after it no character is broken off
WORDS = ["<pad>", "<eos>", *(f"w{number}" for number in range(2, 97))]


def word_tokenizer():
    """Ids 2 to 96 are the words "w2" to "w96", with a space between them; 0 and 1 are special."""
    inner = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>")
    )
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


def byte_tokenizer():
    """Ids 2 to 94 are bytes: "A" to "G", 40 that go on with a character of UTF-8, and 46 that begin one; 0 and 1 are
    special, 95 and 96 unknown.
    """
    names = _byte_names()
    some = [names[byte] for byte in (*range(0x41, 0x48), *range(0x80, 0xA8), *range(0xC2, 0xF0))]
    vocabulary = {"<pad>": PAD, "<eos>": EOS} | {name: number for number, name in enumerate(some, 2)}
    inner = Tokenizer(models.BPE(vocabulary, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("<pad>", special=True), AddedToken("<eos>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


def _byte_names():
    """The character that byte-level BPE writes for each byte: itself where it is printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
