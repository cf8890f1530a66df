"""The site: make site, make site ARGS=--serve.

    python -m tools.site [--out FOLDER] [--serve] [--port 8000] [--without-python | --need-python]

Writes ``build/site`` from the notebooks and documents as they are, and follows every link; exit code 1 where one leads
nowhere. Pyodide is fetched once (``tools/site/npm``). Where it cannot be had the calculator is a text, and a line says
so; with ``--need-python`` that ends the build.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tools.project import ROOT
from tools.site.build import Site, whole_plan
from tools.site.pyodide import fetched


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--serve", action="store_true", help="show it on this machine until Ctrl+C")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--without-python", action="store_true", help="do not fetch Pyodide")
    parser.add_argument(
        "--need-python", action="store_true", help="build nothing where Pyodide cannot be had"
    )
    options = parser.parse_args(arguments)
    python = None if options.without_python else fetched(ROOT / "build" / "pyodide")
    if python is None:
        print("without Pyodide: the calculator is a text", file=sys.stderr)
        if options.need_python:
            return 1
    begin = time.perf_counter()
    site = Site(whole_plan(ROOT), options.out, python)
    wrong = site.write()
    files = [path for path in options.out.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    seconds = time.perf_counter() - begin
    print(
        f"{len(site.plan.pages)} pages, {len(files)} files, {size:.1f} MB in {seconds:.1f} s: {options.out}"
    )
    for one in wrong:
        print(one, file=sys.stderr)
    if options.serve:
        serve(options.out, options.port)
    return 1 if wrong else 0


def serve(folder: Path, port: int) -> None:
    """Serve ``folder`` to this machine alone, until Ctrl+C."""
    with ThreadingHTTPServer(("127.0.0.1", port), handler_of(folder)) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


class _Handler(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, format: str, *args: object) -> None:
        """Not a line for every file."""


def handler_of(folder: Path) -> Callable[..., SimpleHTTPRequestHandler]:
    """What answers requests with the files of ``folder``."""
    return partial(_Handler, directory=str(folder))


if __name__ == "__main__":
    sys.exit(main())
