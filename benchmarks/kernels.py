"""What the kernels reach, beside a copy of as many bytes and beside what else computes the same.

    python -m benchmarks.kernels [--quick] [--json FILE] [--only SECTION ...] [--sweep [NAME ...]] [--threads N]

On a GPU every section but "cpu" runs; without one "cpu" and "compiled" do. "cpu": plain-torch decode against torch's
SDPA. "compiled": the Triton kernels compiled ahead for six kinds of GPU. The others measure the Triton kernels: mixed
pages, cold caches, replays of CUDA graphs, in turn with their peers. ``--sweep`` instead tries configurations beside
the one in ``minikv/kernels/gpu/configs.py``, to tune it: in the sweeps whose name contains a ``NAME``, or in all.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.kernels_cpu import cpu_rows
from benchmarks.kernels_timing import Stopwatch
from benchmarks.report import Row, Step, publish

SECTIONS = ("cpu", "decode", "quantized", "prefill", "latent", "storage", "compiled")
ON_GPU = SECTIONS[1:]
ON_CPU = ("cpu", "compiled")
GPU_PARTS = {  # of python -m tools.gpu; "compiled" is work for a CPU
    "decode": ("--only", "decode"),
    "quantized": ("--only", "quantized"),
    "latent": ("--only", "latent"),
    "prefill": ("--only", "prefill"),
    "storage": ("--only", "storage"),
    "sweep": ("--sweep", "decode, B1 4K", "decode, B8 4K", "latent decode"),
}


def section(name: str, watch: Stopwatch, quick: bool) -> Iterator[Step]:
    """The steps of one section: a shape each. Triton is imported only where there is one."""
    if name == "cpu":
        yield Step(name, lambda: cpu_rows(watch, quick))
        return
    if name == "compiled":
        from benchmarks.kernels_compiled import compiled_rows

        yield Step(name, lambda: compiled_rows(quick))
        return
    from benchmarks import kernels_decode as decode
    from benchmarks import kernels_others as others

    if name == "decode":
        shapes = decode.QUICK if quick else decode.SHAPES
        # First ours for every shape, which is what a short run is for; peers compile for longer than they run.
        for what, rows in (("", decode.own_rows), (", peers", decode.peer_rows)):
            for shape in shapes:
                yield Step(f"decode, {shape.name}{what}", partial(rows, watch, quick, (shape,)))
        return
    cases: dict[str, dict[Callable[..., Iterator[Row]], tuple]] = {
        "prefill": {others.prefill_rows: others.PREFILLS},
        "latent": {others.latent_rows: others.LATENTS, others.expanded_rows: others.LATENT_PREFILLS},
    }
    if name in cases:
        for measure, shapes in cases[name].items():
            for shape in shapes[1:2] if quick else shapes:
                yield Step(f"{name}, {shape}", partial(measure, watch, (shape,)))
        return
    single = {"quantized": decode.variant_rows, "storage": others.storage_rows}[name]
    yield Step(name, partial(single, watch, quick))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within 60 s on 2 cores")
    parser.add_argument("--json", type=Path, help="write the rows, the device and the versions here")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections alone")
    what = "on a GPU: other configurations beside the table's, of the sweeps whose name contains a NAME"
    parser.add_argument("--sweep", nargs="*", metavar="NAME", help=what)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU path")
    return parser.parse_args()


def main() -> None:
    options = parse()
    on_gpu = torch.cuda.is_available()
    torch.set_num_threads(options.threads)
    watch = Stopwatch(torch.device("cuda" if on_gpu else "cpu"))
    if not on_gpu:
        print(f"the CPU path: no GPU here, threads: {options.threads}; the kernels are compiled, not run")
    if options.sweep is not None:
        if not on_gpu:
            raise SystemExit("--sweep needs a GPU")
        from benchmarks.kernels_sweep import sweep_steps

        publish(sweep_steps(watch, options.quick, options.sweep), options.json, on="cuda")
        return
    names = [name for name in SECTIONS if name in (options.only or (ON_GPU if on_gpu else ON_CPU))]
    unable = [name for name in names if not on_gpu and name not in ON_CPU]
    if unable:
        raise SystemExit(f"{', '.join(unable)}: needs a GPU")
    steps = itertools.chain.from_iterable(section(name, watch, options.quick) for name in names)
    publish(steps, options.json, on="cuda")


if __name__ == "__main__":
    main()
