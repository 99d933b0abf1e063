"""Run the benchmarks: one table on standard output, and JSON.

    python benchmarks/run.py [NAME ...] [--rounds 7] [--seconds 20] [--json PATH] [--strict]

NAME selects by the beginning of "file:function", as ``--list`` prints them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from frame import Row, discover, measure, render, report  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 when ``--strict`` and a promised ratio was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="run only these (prefixes)")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--rounds", type=int, default=7, help="turns per comparison")
    parser.add_argument("--seconds", type=float, default=20.0, help="time per comparison")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here too")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a promise is missed")
    parser.add_argument("--folder", type=Path, default=HERE, help="where the bench_*.py files are")
    options = parser.parse_args(arguments)

    benchmarks = discover(options.folder)
    if options.names:
        benchmarks = {
            name: function
            for name, function in benchmarks.items()
            if name.startswith(tuple(options.names))
        }
    if options.list:
        print("\n".join(benchmarks))
        return 0
    if not benchmarks:
        wanted = " ".join(options.names) or "bench_*.py"
        print(f"no benchmark matches {wanted}; --list prints their names", file=sys.stderr)
        return 2

    progress = Console(stderr=True)
    rows: list[Row] = []
    for name, function in benchmarks.items():
        with progress.status(f"timing {name}"):
            rows += measure(function(), options.rounds, options.seconds)
    # In a pipe rich would fall back to 80 columns and cut the names.
    wide = None if sys.stdout.isatty() else 120
    render(rows, Console(width=wide))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(report(rows) + "\n", encoding="utf-8")
        print(f"written: {options.json}", file=sys.stderr)
    missed = [row for row in rows if row.kept is False]
    return 1 if missed and options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
