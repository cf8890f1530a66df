"""The race: five ways to answer the same requests, in tokens a second and bytes of K and V, as a table and a plot.

vLLM is a sixth where it is asked for and installed. It does not say what it holds.

``measure.py`` measures in a process of its own; nothing here imports torch.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minikv.course.your_engine.child import ChildError, end_all, environment, own_group
from minikv.course.your_engine.kept import KeptPart
from minikv.course.your_engine.parts import PART_OF, PARTS
from minikv.errors import MiniKVError
from minikv.i18n import pick_language, text
from minikv.look import MEANINGS, SEQUENCES, TEMPLATE
from minikv.shown import Shown, html_of, one_line, text_of
from minikv.units import format_bytes

LIMIT_S = 180.0  # for the process; an idle machine needs 20
REQUESTS, ROUNDS = 32, 5
YOURS = "yours"
# The learner's lane is the coloured one.
_OTHERS, _YOURS = MEANINGS["free"].fill, SEQUENCES[0]


@dataclass(frozen=True)
class Lane:
    """The figures of one way: median ``seconds`` for all requests, and the K and V held at its fullest moment.

    ``absent`` is the reason for no figures, as an error's code and values.
    """

    way: str
    seconds: float | None = None
    peak_kv_bytes: int | None = None
    absent: Mapping[str, Any] | None = None

    def why(self, lang: str) -> str:
        """The reason for no figures; "" where there are figures."""
        return text(f"errors.{self.absent['code']}", lang, **self.absent["values"]) if self.absent else ""


@dataclass(frozen=True, repr=False)
class Race:
    """All lanes, on ``device``. ``yours``: the exercises with parts of the learner's. ``seconds``: the whole race.

    ``ties`` answers differ at a token that two ways may choose differently; all other answers are the same.
    """

    lanes: tuple[Lane, ...]
    requests: int
    new_tokens: int
    rounds: int
    ties: int
    yours: tuple[str, ...]
    device: str
    seconds: float

    text, _repr_html_ = text_of, html_of

    def rate(self, lane: Lane) -> float | None:
        """Generated tokens a second."""
        return None if lane.seconds is None else self.new_tokens / lane.seconds

    def name(self, way: str, lang: str) -> str:
        """The name of a way in the table and the plot."""
        return text(f"race.{way}", lang, yours=len(self.yours), parts=len(PARTS))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``tokens_per_s`` of each lane among them."""
        lanes = [{**asdict(lane), "tokens_per_s": self.rate(lane)} for lane in self.lanes]
        return {**asdict(self), "lanes": lanes}

    def __repr__(self) -> str:
        rates = [f"{lane.way} {rate:,.0f} token/s" for lane in self.lanes if (rate := self.rate(lane))]
        return one_line("Race", "", *rates)

    def shown(self, lang: str = "en") -> Shown:
        """A row a way, in the order of the race. Raises ``ArgumentError`` for an unknown language."""
        lang = pick_language(lang)
        rows = []
        for lane in self.lanes:
            rate, peak = self.rate(lane), lane.peak_kv_bytes
            figures = ["–" if rate is None else f"{rate:,.0f}", "–" if peak is None else format_bytes(peak)]
            rows.append([self.name(lane.way, lang), *figures])
        absent = [f"{self.name(lane.way, lang)}: {lane.why(lang)}" for lane in self.lanes if lane.absent]
        took = text("race.took", lang, rounds=self.rounds, seconds=self.seconds, device=self.device)
        same = text("race.same" if not self.ties else "race.ties", lang, ties=self.ties)
        title = text("race.title", lang, requests=self.requests, tokens=self.new_tokens)
        head = [text(f"race.column_{name}", lang) for name in ("way", "rate", "peak")]
        return Shown(title, head, rows, (1, 2), absent, [same, text("race.counted", lang), took])

    def figure(self, lang: str = "en") -> Any:
        """Two rows of bars, a plotly figure: tokens a second, and bytes at the fullest moment."""
        from plotly.subplots import make_subplots

        lanes = [lane for lane in reversed(self.lanes) if lane.seconds is not None]
        names = [self.name(lane.way, lang) for lane in lanes]
        colours = [_YOURS if lane.way == YOURS else _OTHERS for lane in lanes]
        rates = [self.rate(lane) or 0 for lane in lanes]
        peaks = [(lane.peak_kv_bytes or 0) / 2**20 for lane in lanes]
        titles = [text(f"race.column_{name}", lang) for name in ("rate", "peak_mib")]
        figure = make_subplots(1, 2, shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.06)
        for column, (values, form) in enumerate(((rates, ",.0f"), (peaks, ".2f")), 1):
            bars = {"marker_color": colours, "texttemplate": f"%{{x:{form}}}", "textposition": "auto"}
            figure.add_bar(x=values, y=names, orientation="h", row=1, col=column, **bars)
        height, margin = 90 + 46 * len(lanes), {"t": 40, "r": 20, "b": 30}
        figure.update_xaxes(zeroline=False)
        figure.update_layout(template=TEMPLATE, height=height, margin=margin, showlegend=False)
        return figure


def run_race(
    parts: Mapping[str, KeptPart],
    *,
    requests: int = REQUESTS,
    rounds: int = ROUNDS,
    limit_s: float = LIMIT_S,
    vllm: Path | None = None,
) -> Race:
    """The race of ``requests`` requests to tiny-gqa in at most ``rounds`` rounds, with ``parts`` in the lane "yours".

    ``vllm`` is the Python of an environment that has it. Raises ``MiniKVError`` where the process ends without an
    answer, or has none after ``limit_s`` seconds.
    """
    began = time.perf_counter()
    theirs = {task: asdict(part) for task, part in parts.items() if task in PART_OF}
    job = {"parts": theirs, "requests": requests, "rounds": rounds, "vllm": vllm and str(vllm)}
    with tempfile.TemporaryDirectory(prefix="my_engine.", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        found = _answer(folder, limit_s)
    lanes = tuple(Lane(way, **figures) for way, figures in found.pop("lanes").items())
    return Race(lanes, **found | {"yours": tuple(found["yours"])}, seconds=time.perf_counter() - began)


def _answer(folder: Path, limit_s: float) -> dict[str, Any]:
    """The answer of ``measure.py`` to the job in ``folder``. It runs in an empty folder within."""
    empty = folder / "empty"
    empty.mkdir()
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "minikv.course.your_engine.measure", str(folder)],
            cwd=empty,
            env={name: value for name, value in environment().items() if name != "TRITON_INTERPRET"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            **own_group(),
        )
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise ChildError("race_too_long", seconds=limit_s) from None
    finally:
        end_all(process)
    answer = (
        json.loads((folder / "answer.json").read_text(encoding="utf-8")) if process.returncode == 0 else {}
    )
    if "code" in answer:
        raise MiniKVError(answer["code"], **answer["values"])
    if not answer:
        last = (folder / "said").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise ChildError("my_engine_ended", exit=process.returncode, reason=" ".join(last)[:300])
    return answer
