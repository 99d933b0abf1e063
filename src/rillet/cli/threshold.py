"""``rillet threshold``: how large the values of a column are, released once.

**Privacy.** Touches raw data, and prints one released range.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from rillet.cli.common import add_command, examples, note, number, say, show


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "threshold",
        run,
        description="""
        Release how large the values of a column are: a range to clip them to, for any use.

        The range is differentially private for the value of every row, and is all that is printed.
        Each run draws fresh noise and spends the promise again: keep what comes out.
        """,
        epilog=examples(
            (
                "rillet threshold trips.csv --column minutes --epsilon 0.5 --upper 1440",
                "how long are trips, at most a day?",
            ),
            (
                (
                    "rillet threshold trips.csv --column minutes --epsilon 1 --delta 2^-20 \\\n"
                    "      --upper 1440 --threshold smooth-quantile:multiplier=1.5"
                ),
                "the paper's threshold",
            ),
        ),
    )
    parser.add_argument("file", metavar="FILE", help="CSV, Parquet or JSON lines; - reads a pipe")
    parser.add_argument("--column", metavar="C", help="the column or field with the values")
    parser.add_argument("--delimiter", metavar="X", default=",", help="between the cells of CSV")
    parser.add_argument("--decimal", choices=(".", ","), default=".", help="in the numbers of CSV")
    parser.add_argument(
        "--epsilon", type=number, required=True, metavar="E", help="what it costs each row"
    )
    parser.add_argument(
        "--delta", type=number, default=0.0, metavar="D", help="the promise δ (default 0)"
    )
    parser.add_argument(
        "--upper", type=number, required=True, metavar="B", help="a public upper bound; be generous"
    )
    parser.add_argument(
        "--lower", type=number, default=0.0, metavar="A", help="a public lower bound (default 0)"
    )
    parser.add_argument(
        "--threshold",
        default="auto",
        metavar="KIND",
        help="how it is learned: tail-histogram (default), exponential-quantile, smooth-quantile; "
        "with options as KIND:NAME=VALUE,…",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    import numpy as np

    from rillet.plan.alone import learn_range
    from rillet.source import open_source

    table = {"path": args.file, "delimiter": args.delimiter, "decimal": args.decimal}
    table |= {} if args.column is None else {"column": args.column}
    raw_blocks = [block.raw_values for block in open_source(table).blocks()]
    found = learn_range(
        np.concatenate(raw_blocks) if raw_blocks else np.empty(0),
        epsilon=args.epsilon,
        delta=args.delta,
        lower=args.lower,
        upper=args.upper,
        threshold=args.threshold,
    )
    fields = {
        "clip_lower": found.clip_lower,
        "clip_upper": found.clip_upper,
        "count": found.count,
        "epsilon": args.epsilon,
        "delta": args.delta,
        "threshold": found.threshold.name,
    }
    if args.json:
        say(json.dumps(fields))
    else:
        say(f"clip values to [{show(found.clip_lower)}, {show(found.clip_upper)}]")
        note(f"{found.threshold.name} of {found.count:,} values; charged: {found.cost}")
    return 0
