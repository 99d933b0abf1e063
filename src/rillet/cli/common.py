"""What the commands share: the parser, numbers as people type them, output, the plan's options.

**Privacy.** Touches no data.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from rillet.errors import InputError, OutputError, ParameterError

if TYPE_CHECKING:
    from rich.console import Console

    from rillet.plan import Plan

Parsed = TypeVar("Parsed")

MECHANISMS = ("auto", "paper", "baseline")

#: Width of tables where there is no terminal to ask.
PLAIN_WIDTH = 100


# --- Parser --------------------------------------------------------------------------------------


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose complaints look like every other error of rillet."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # With abbreviations a new option could change what an old script means.
        settings.setdefault("allow_abbrev", False)
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, and end with the code of wrong parameters."""
        message = message.removeprefix("argument ")
        warn(f"{message}; type {self.prog} --help")
        raise SystemExit(ParameterError.exit_code)


def add_command(
    subparsers: Any, name: str, run: Callable[[argparse.Namespace], int], **settings: Any
) -> CommandParser:
    """Declare a command; its first line of help is the first sentence of its description."""
    description = textwrap.dedent(settings.pop("description")).strip()
    summary = " ".join(description.split("\n\n", maxsplit=1)[0].split())
    parser: CommandParser = subparsers.add_parser(
        name, help=summary, description=description, **settings
    )
    parser.set_defaults(run=run)
    return parser


def examples(*pairs: tuple[str, str]) -> str:
    """The end of a help text: what to type, and what for."""
    lines = ["examples:"]
    for command, purpose in pairs:
        if purpose:
            lines.append(f"  # {purpose}")
        lines.append(f"  {command}")
    return "\n".join(lines)


# --- Numbers as people type them -----------------------------------------------------------------


def number(text: str) -> float:
    """A number, also as a power: ``0.5``, ``1e-6``, ``2^-20``, ``2**-20``.

    Examples
    --------
    >>> number("2^-20") == 2.0**-20
    True
    """
    base, power, exponent = text.replace("**", "^").partition("^")
    try:
        return float(float(base) ** float(exponent)) if power else float(base)
    except (ValueError, OverflowError, ZeroDivisionError, TypeError):
        raise argparse.ArgumentTypeError(
            f"expected a number such as 0.5, 1e-6 or 2^-20, found {text!r}"
        ) from None


def whole(text: str) -> int:
    """A whole number: ``150000``, ``150_000``, ``1e6``, ``2^17``.

    Examples
    --------
    >>> whole("1e6"), whole("150_000")
    (1000000, 150000)
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = number(text)
        if value == int(value):
            return int(value)
    except (argparse.ArgumentTypeError, OverflowError, ValueError):
        pass
    raise argparse.ArgumentTypeError(
        f"expected a whole number such as 150000, 150_000 or 1e6, found {text!r}"
    )


def or_word(parse: Callable[[str], Parsed], word: str, value: Any) -> Callable[[str], Parsed | Any]:
    """Let a parser of numbers take a word as well, such as ``none`` or ``auto``."""

    def parse_or_word(text: str) -> Parsed | Any:
        return value if text.lower() == word else parse(text)

    return parse_or_word


def show(value: float, digits: int = 4) -> str:
    """A number for a person: so many significant digits, no exponent where none is needed.

    Examples
    --------
    >>> show(1234567.0), show(29.4871), show(0.000012)
    ('1,234,567', '29.49', '1.200e-05')
    """
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 10**digits:
        shown = f"{value:#.{digits}g}"
        return shown.removesuffix(".")
    return f"{value:,.0f}" if 1e3 < abs(value) < 1e9 else f"{value:.{digits - 1}e}"


# --- Output --------------------------------------------------------------------------------------


def say(text: str = "") -> None:
    """A line on standard output."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """A line on standard error: what a person wants to know and a program must not read."""
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    """A line on standard error under rillet's name."""
    note(f"rillet: {text}")


def console(*, stderr: bool = False) -> Console:
    """Rich's console, with a width that does not depend on who looks where nobody does."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def read_text(path: str, what: str) -> str:
    """Read a small public file."""
    try:
        if path == "-":
            return sys.stdin.read()
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise InputError(f"{path}: expected {what}, found: {reason}") from None


def write_text(path: str, text: str) -> None:
    """Write a small public file."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(f"{path}: expected a writable file, found: {reason}") from error


# --- A plan from options -------------------------------------------------------------------------


def add_plan_options(
    parser: argparse.ArgumentParser, *, extra_mechanism: str = "", meaning: str = ""
) -> None:
    """The options that make a plan; names and meaning as in :class:`rillet.Plan`."""
    group = parser.add_argument_group("promise and public facts")
    group.add_argument(
        "--epsilon", type=number, metavar="E", help="the promise ε for each observation"
    )
    group.add_argument(
        "--delta",
        type=number,
        metavar="D",
        help="the promise δ, for instance 2^-20; 0 (default) rules out learned thresholds that "
        "need it",
    )
    group.add_argument(
        "--upper",
        type=or_word(number, "none", None),
        metavar="B",
        help="a public bound that no value should exceed; values beyond are clipped to it",
    )
    group.add_argument(
        "--lower",
        type=number,
        metavar="A",
        help="a public lower bound (default 0); values below, and what is no number, count as A",
    )
    group.add_argument(
        "--length",
        type=or_word(whole, "none", None),
        metavar="N",
        help="number of observations, which the noise is scaled for; none (default): no end known",
    )
    group.add_argument(
        "--every", type=whole, metavar="C", help="release each C observations (default 1)"
    )
    group.add_argument(
        "--lag",
        type=or_word(whole, "auto", "auto"),
        metavar="M",
        help="observations that teach the threshold before the first release (default auto)",
    )
    group.add_argument(
        "--mechanism",
        choices=[*MECHANISMS, *filter(None, [extra_mechanism])],
        help="auto (default): the most accurate known; paper: Perrier, Asghar, Kaafar (NDSS 2019); "
        "baseline: the plain binary tree at the bound" + f"; {meaning}" * bool(meaning),
    )
    group.add_argument(
        "--statistic", choices=("mean", "sum"), help="what a release reports as its value"
    )
    group.add_argument(
        "--backfill",
        action="store_true",
        default=None,
        help="also release the first M observations, once the threshold is known",
    )


PLAN_OPTIONS = [
    "epsilon",
    "delta",
    "upper",
    "lower",
    "length",
    "every",
    "lag",
    "mechanism",
    "statistic",
    "backfill",
]


def plan_from(args: argparse.Namespace, mechanism: str | None = None) -> Plan:
    """The plan that the options of :func:`add_plan_options` describe."""
    from rillet.plan import Plan
    from rillet.statistic import STATISTICS

    mechanism = mechanism or args.mechanism or "auto"
    given = {name: getattr(args, name) for name in PLAN_OPTIONS if name != "mechanism"}
    given = {name: value for name, value in given.items() if value is not None}
    for name in ("epsilon", "upper"):
        if name not in given:
            raise ParameterError(name, "a number", None, hint="it has no default")
    given.setdefault("length", None)
    if "statistic" in given:
        given["statistic"] = STATISTICS[given["statistic"]]()
    if mechanism == "auto":
        return Plan(**given)
    if mechanism == "paper":
        return Plan.paper(**{"delta": 0.0, **given})
    if given.pop("lag", 0) not in (0, "auto"):
        raise ParameterError(
            "lag", "none with --mechanism baseline, which learns nothing", args.lag
        )
    if given.pop("backfill", False):
        raise ParameterError(
            "backfill", "a mechanism that learns first", "baseline", "it releases from the start"
        )
    return Plan.baseline(**given)


def load_plan(path: str) -> Plan:
    """Read a plan that ``rillet plan --save`` or :meth:`rillet.Plan.to_json` wrote."""
    from rillet.plan import Plan

    return Plan.from_json(read_text(path, "a plan that rillet plan --save wrote"))
