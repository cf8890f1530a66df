"""What the kernels reach, beside a copy of as many bytes and beside what else computes the same.

    python -m benchmarks.kernels [--quick] [--json FILE] [--only SECTION ...] [--sweep [NAME]] [--threads N]

On a GPU every section runs; without one "cpu" and "compiled" do. "cpu": the plain-torch decode against torch's SDPA.
"compiled": the Triton kernels compiled ahead for six kinds of GPU. The others measure the Triton kernels: shuffled
pages, cold caches, replays of CUDA graphs, in turn with their peers. ``--sweep`` instead tries configurations beside
the one in ``minikv/kernels/gpu/configs.py``, to tune it.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.kernels_cpu import cpu_rows
from benchmarks.kernels_timing import Stopwatch
from benchmarks.report import Row, publish

SECTIONS = ("cpu", "decode", "quantized", "prefill", "latent", "storage", "compiled")
ON_GPU = SECTIONS[1:]
ON_CPU = ("cpu", "compiled")


def section(name: str, watch: Stopwatch, quick: bool) -> Iterator[Row]:
    """The rows of one section. Triton is imported only where there is one."""
    if name == "cpu":
        return cpu_rows(watch, quick)
    if name == "compiled":
        from benchmarks.kernels_compiled import compiled_rows

        return compiled_rows(quick)
    from benchmarks import kernels_decode, kernels_others

    rows: dict[str, Callable[[Stopwatch, bool], Iterator[Row]]] = {
        "decode": kernels_decode.decode_rows,
        "quantized": kernels_decode.variant_rows,
        "prefill": kernels_others.prefill_rows,
        "latent": kernels_others.latent_rows,
        "storage": kernels_others.storage_rows,
    }
    return rows[name](watch, quick)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within 60 s on 2 cores")
    parser.add_argument("--json", type=Path, help="write the rows, the device and the versions here")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections alone")
    what = "on a GPU: other configurations beside the table's, of the sweeps whose name contains NAME"
    parser.add_argument("--sweep", nargs="?", const="", metavar="NAME", help=what)
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
        from benchmarks.kernels_sweep import sweep_rows

        publish(sweep_rows(watch, options.quick, options.sweep), options.json)
        return
    names = [name for name in SECTIONS if name in (options.only or (ON_GPU if on_gpu else ON_CPU))]
    unable = [name for name in names if not on_gpu and name not in ON_CPU]
    if unable:
        raise SystemExit(f"{', '.join(unable)}: needs a GPU")
    publish(
        itertools.chain.from_iterable(section(name, watch, options.quick) for name in names), options.json
    )


if __name__ == "__main__":
    main()
