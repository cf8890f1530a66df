"""The picture of ``minikv watch``: a line a figure, and a bar of blocks for each KV cache group."""

import math
from typing import Any

import psutil
from rich.table import Table
from rich.text import Text

from minikv.cli.watch_run import Run, Watched
from minikv.engine.ext.events import StepEvent
from minikv.i18n import escape_controls, text
from minikv.units import format_bytes

BAR_WIDTH = 24
FINE, PLAIN = "█▒·", "#+."  # a used, a cached and a free block; the second for terminals without such letters


class Devices:
    """The memory of this machine and of its GPUs, in use by any process.

    torch is left out on purpose: it would make a CUDA context, hundreds of MiB on the very device that is watched. NVML
    needs none; without NVML only the machine's line is shown.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except Exception:  # an ImportError, an OSError, or one of NVML's own many
            self._handles = []

    def rows(self, lang: str) -> list[tuple[str, str]]:
        """(label, figure) of the machine and of each GPU."""
        machine = psutil.virtual_memory()
        used = machine.total - machine.available
        rows = [(_say("machine", lang), _of(used, machine.total, lang))]
        for index, handle in enumerate(self._handles):
            try:
                found = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            except Exception:
                continue
            rows.append((_say("gpu", lang, index=index), _of(found.used, found.total, lang)))
        return rows


def picture(watched: Watched, devices: Devices, letters: str, lang: str) -> Table:
    """The run as a table. ``letters``: ``FINE`` or ``PLAIN``."""
    table = Table(box=None, padding=(0, 1), show_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    state = "over" if watched.over else "running" if watched.tail.number else "waiting"
    path, silent = str(watched.tail.path), watched.silent
    # A killed run writes no last event: only its silence shows.
    where = _say("silent", lang, path=path, seconds=silent) if silent else escape_controls(path)
    table.add_row(Text(_say(f"state_{state}", lang), style="bold"), Text(where, overflow="fold"))
    for label, value in (*_figures(watched.run, letters, lang), *devices.rows(lang)):
        table.add_row(Text(label), Text(value))
    return table


def _figures(run: Run, letters: str, lang: str) -> list[tuple[str, str]]:
    """(label, figures) of each line."""
    last = run.last
    rows: dict[str, dict[str, Any]] = {
        "steps": {
            "steps": run.count["step"],
            "prefill": last.prefill_tokens if last else 0,
            "decode": last.decode_tokens if last else 0,
        },
        "sequences": {
            "running": run.running,
            "waiting": run.left - run.running,
            "finished": run.count["finish"],
            "aborted": run.count["abort"],
            "failed": run.count["fail"],
        },
        "speed": {"now": run.speed_now, "whole": run.speed, "generated": run.generated},
        "hits": {"rate": 100 * run.hit_rate},
        "preemptions": {"count": run.count["preempt"]},
    }
    said = [(_say(name, lang), _say(f"{name}_value", lang, **values)) for name, values in rows.items()]
    if last is not None:
        said += [_blocks(last, group, letters, lang) for group in range(len(last.total))]
    return said


def _blocks(step: StepEvent, group: int, letters: str, lang: str) -> tuple[str, str]:
    """The blocks of one KV cache group during a step, as a bar and in numbers."""
    used, cached, total = step.used[group], step.cached[group], step.total[group]
    ends = [math.ceil(count / total * BAR_WIDTH) for count in (used, used + cached)]  # one block shows, too
    bar = letters[0] * ends[0] + letters[1] * (ends[1] - ends[0]) + letters[2] * (BAR_WIDTH - ends[1])
    label = _say("blocks" if len(step.total) == 1 else "blocks_group", lang, kv_cache_group=group)
    values = {"used": used, "cached": cached, "free": total - used - cached, "total": total}
    return label, f"{bar} {_say('blocks_value', lang, **values)}"


def _of(used: int, total: int, lang: str) -> str:
    return _say("memory_value", lang, used=format_bytes(used), total=format_bytes(total))


def _say(key: str, lang: str, **values: Any) -> str:
    return text(f"cli.watch_{key}", lang, **values)
