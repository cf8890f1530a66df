"""``python -m tools.guard record|compare FILE [--only START ...]``."""

import argparse
import json
import sys
import time
from pathlib import Path

from tools.guard import differences, record


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.guard")
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], metavar="START")
    options = parser.parse_args()
    before = json.loads(options.file.read_text(encoding="utf-8")) if options.what == "compare" else {}
    start = time.perf_counter()
    after = record(
        options.only, lambda name: print(f"{time.perf_counter() - start:6.1f} s  {name}", file=sys.stderr)
    )
    lines = sum(map(len, after.values()))
    told = f"{len(after)} cases, {lines:,} lines, {time.perf_counter() - start:.0f} s"
    if options.what == "record":
        options.file.write_text(json.dumps(after, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
        print(f"recorded {told}")
        return 0
    before = {name: case for name, case in before.items() if name.startswith(tuple(options.only))}
    found = differences(before, after)
    print("\n".join([*found, f"compared {told}: " + (f"{len(found)} differences" if found else "all equal")]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
