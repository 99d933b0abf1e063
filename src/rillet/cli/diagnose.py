"""``rillet diagnose``: whether a public data set is light-tailed.

**Privacy.** Reads raw values and prints what it finds: NOT private. It therefore refuses to open
anything without the word that the data are public or historical.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rillet.cli.common import add_command, console, examples, note, number, say
from rillet.errors import InputError, ParameterError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rillet.paper.tails import Diagnosis, TailCheck


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "diagnose",
        run,
        description="""
        Tell whether public or historical data are light-tailed. NOT private.

        Tests the definition beyond the p-quantile, looks for the largest p from which on it holds,
        and repeats the test by hour and by weekday when a time column is named. It reads raw
        values and what it prints tells about them, so it needs the word --public.
        """,
        epilog=examples(
            ("rillet diagnose 2023.csv --column total --public", "a year that may be shown"),
            ("rillet diagnose 2023.csv --column total --time stamp --public --plots pictures", ""),
        ),
    )
    parser.add_argument("file", metavar="FILE", help="CSV, JSON lines or Parquet; - for CSV input")
    parser.add_argument(
        "--public",
        action="store_true",
        help="my word that these data are public or historical and may be looked at",
    )
    parser.add_argument("--column", metavar="NAME", help="the column with the values")
    parser.add_argument(
        "--time",
        metavar="NAME",
        help="a column with times (ISO 8601, or seconds since 1970), to split by hour and weekday",
    )
    parser.add_argument(
        "--quantile", type=number, default=0.005, metavar="P", help="the p to test (default 0.005)"
    )
    parser.add_argument(
        "--lower", type=number, default=0.0, metavar="A", help="the lower bound (default 0)"
    )
    parser.add_argument("--delimiter", default=",", metavar="C", help="between the cells of CSV")
    parser.add_argument("--plots", metavar="DIR", help="also write pictures into this folder")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if not args.public:
        raise ParameterError(
            "public",
            "the word that the data are public or historical",
            None,
            "this command reads raw values and its output is not private; if that is right for "
            "these data, add --public",
        )
    if not 0 < args.quantile < 1:
        raise ParameterError("quantile", "a number between 0 and 1, both excluded", args.quantile)
    from rillet.paper import tails

    values, hours, weekdays = _load(args)
    diagnosis = tails.diagnose(
        values, quantile=args.quantile, lower=args.lower, hours=hours, weekdays=weekdays
    )
    if args.json:
        say(json.dumps(_finite(diagnosis.to_dict()), indent=2, ensure_ascii=False))
    else:
        _print(diagnosis)
    if args.plots is not None:
        from rillet.paper.tail_plots import draw

        for path in draw(diagnosis, values, Path(args.plots)):
            note(f"wrote {path}")
    return 0


def _print(diagnosis: Diagnosis) -> None:
    from rillet.paper.tails import NOTICE

    say(NOTICE)
    say()
    left_out = f" ({diagnosis.left_out:,} without a number)" if diagnosis.left_out else ""
    say(f"{diagnosis.count:,} values{left_out}, distances from {diagnosis.lower:g}.")
    say(diagnosis.verdict())
    _table("By p", [(f"{check.quantile:g}", check) for check in diagnosis.checks])
    if diagnosis.by_hour:
        _table("By hour", list(diagnosis.by_hour.items()))
    if diagnosis.by_weekday:
        _table("By weekday", list(diagnosis.by_weekday.items()))


def _table(title: str, rows: list[tuple[str, TailCheck]]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column(title.removeprefix("By "))
    for heading in ("values", "beyond", "x_p", "worst ratio", "p-value", "clipped / allowed"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for name, check in rows:
        numbers = (check.value, check.worst_ratio, check.p_value, check.outlier_ratio)
        shown = ["–" if math.isnan(x) else f"{x:.4g}" for x in numbers]
        table.add_row(name, f"{check.count:,}", f"{check.above:,}", *shown, check.verdict)
    console().print(table)


def _finite(value: Any) -> Any:
    """NaN as null: JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# --- Reading -------------------------------------------------------------------------------------


def _load(
    args: argparse.Namespace,
) -> tuple[NDArray[np.float64], NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """The values and, where a time column is named, hour and weekday of each (−1: unknown)."""
    import numpy as np

    if args.time is None:
        from rillet.source import open_source

        options = {"path": args.file, "column": args.column, "delimiter": args.delimiter}
        blocks = [block.raw_values for block in open_source(options).blocks()]
        return np.concatenate(blocks) if blocks else np.empty(0), None, None
    if args.column is None:
        raise ParameterError("column", "the name of the column with the values", None)
    values, hours, weekdays = [], [], []
    for cell, stamp in _pairs(args.file, args.column, args.time, args.delimiter):
        values.append(_as_number(cell))
        moment = _as_time(stamp)
        hours.append(-1 if moment is None else moment.hour)
        weekdays.append(-1 if moment is None else moment.weekday())
    if hours and max(hours) < 0:
        raise InputError(
            f"{args.file}: expected times in column {args.time}, such as 2023-05-31T18:20 or "
            "seconds since 1970, found none"
        )
    return np.array(values, dtype=float), np.array(hours, dtype=int), np.array(weekdays, dtype=int)


def _pairs(path: str, column: str, time: str, delimiter: str) -> Iterator[tuple[Any, Any]]:
    """Value and time of each row, read together so that they cannot come apart."""
    suffix = Path(path).suffix.lower()
    if suffix in (".parquet", ".pq"):
        yield from _parquet_pairs(path, column, time)
        return
    try:
        with _opened(path) as stream:
            if suffix in (".json", ".jsonl", ".ndjson"):
                for line in stream:
                    row = json.loads(line) if line.strip() else {}
                    yield row.get(column), row.get(time)
                return
            reader = csv.DictReader(stream, delimiter=delimiter)
            _require(path, (column, time), reader.fieldnames or ())
            for row in reader:
                yield row[column], row[time]
    except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(f"{path}: expected readable data, found: {reason}") from error


def _opened(path: str) -> AbstractContextManager[TextIO]:
    if path == "-":
        return nullcontext(sys.stdin)
    return Path(path).open(encoding="utf-8-sig", newline="")


def _parquet_pairs(path: str, column: str, time: str) -> Iterator[tuple[Any, Any]]:
    from rillet.extras import import_extra

    parquet = import_extra(
        "pyarrow.parquet", package="pyarrow", extra="parquet", purpose="to read Parquet"
    )
    try:
        names = parquet.read_schema(path).names
        _require(path, (column, time), names)
        table = parquet.read_table(path, columns=[column, time])
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{path}: expected a Parquet file, found: {reason}") from error
    yield from zip(table.column(column).to_pylist(), table.column(time).to_pylist(), strict=True)


def _require(path: str, wanted: tuple[str, ...], found: Any) -> None:
    for name in wanted:
        if name not in found:
            raise InputError(f"{path}: expected a column {name}, found {', '.join(found)}")


def _as_number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def _as_time(stamp: Any) -> datetime | None:
    """The time on the clock it was written for: an hour of the day is a local matter."""
    if isinstance(stamp, datetime):
        return stamp
    text = str(stamp).strip()
    try:
        # A date without dashes has eight digits; seconds since 1970 have had nine for long.
        if len(text.partition(".")[0]) > 8 and text.replace(".", "", 1).isdigit():
            return datetime.fromtimestamp(float(text), tz=UTC)
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        return None
