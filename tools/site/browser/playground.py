"""Runs in the reader's browser: requests in, nano's run out, a state a step. Everything crosses as JSON.

A word is a token, and so is a Chinese character. No model runs: the answer of request A has the tokens a1, a2, ...
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from minikv.course.motion.paging_nano import Asked, NanoRun
from minikv.course.motion.paging_view import paging_form, paging_view
from minikv.course.motion.scene import player_words
from minikv.course.widgets.parts import letters
from minikv.errors import MiniKVError

SIZES = {  # name: (least, most, at first)
    "num_blocks": (1, 24, 7),
    "block_size": (1, 8, 4),
    "max_num_seqs": (1, 6, 3),
    "max_num_batched_tokens": (1, 64, 8),
}
REQUEST = {"answer": (1, 32, 4), "arrives": (1, 40, 1)}
MOST_REQUESTS = 6
MOST_TOKENS = 64  # of a prompt
EXAMPLE: dict[str, list[tuple[str, int, int]]] = {  # what it shows: a chunk, a hit, a queue, a preemption
    "en": [
        ("the cat sat on the mat and then it", 9, 1),
        ("the cat sat on the mat so what", 8, 3),
        ("a dog ran far away", 6, 4),
        ("we all like tea", 3, 5),
    ],
    "zh": [
        ("小猫坐在垫子上睡着", 9, 1),
        ("小猫坐在垫子上玩", 8, 3),
        ("狗跑得很远", 6, 4),
        ("我们喝茶", 3, 5),
    ],
}
_TOKEN = re.compile(r"[\u3400-\u9fff]|[^\s\u3400-\u9fff]+")
_WIDE = 5  # letters that fit into a slot of the drawing


def start(lang: str) -> dict[str, Any]:
    """What the page shows at first, as ``answer`` is asked for it."""
    requests = [dict(zip(("prompt", "answer", "arrives"), row, strict=True)) for row in EXAMPLE[lang]]
    return {
        "lang": lang,
        "sizes": {name: first for name, (_, _, first) in SIZES.items()},
        "requests": requests,
    }


def answer(asked: str) -> str:
    """``start``'s keys to ``{"scene": {"form", "states"}, "progress": rows of each state}``, or ``{"error"}``.

    Numbers outside their limits become the nearest one inside; what is more than the most is left out.
    """
    wanted = json.loads(asked)
    lang = wanted["lang"]
    sizes = {name: _within(wanted["sizes"].get(name), *limits) for name, limits in SIZES.items()}
    words: dict[str, int] = {}

    def tokens(spelled: Iterable[str]) -> list[int]:
        return [words.setdefault(word, len(words)) for word in spelled]

    requests = []
    for number, row in enumerate(wanted["requests"][:MOST_REQUESTS]):
        count, arrives = (_within(row.get(name), *limits) for name, limits in REQUEST.items())
        said = [f"{letters(number).lower()}{place + 1}" for place in range(count)]
        prompt = _TOKEN.findall(str(row["prompt"]))[:MOST_TOKENS]
        requests.append(Asked(tokens(prompt), tokens(said), arrives))
    try:
        run = NanoRun(requests, **sizes)
    except MiniKVError as refusal:
        return json.dumps({"error": refusal.text(lang)}, ensure_ascii=False)
    spelled = [word if len(word) <= _WIDE else f"{word[: _WIDE - 1]}…" for word in words]
    states = [_spelled(paging_view(state, lang), spelled) for state in run.states]
    form = {**player_words(lang), "name": "paging", **paging_form(run, lang)}
    told = {"scene": {"form": form, "states": states}, "progress": run.progress}
    return json.dumps(told, ensure_ascii=False)


def _within(value: Any, least: int, most: int, first: int) -> int:
    return min(max(value, least), most) if type(value) is int else first


def _spelled(view: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """``view`` with words in place of token ids."""
    sequences = [[*rest, [words[token] for token in ids]] for *rest, ids in view["sequences"]]
    blocks = [[kind, look, [words[token] for token in ids], said] for kind, look, ids, said in view["blocks"]]
    return {**view, "sequences": sequences, "blocks": blocks}
