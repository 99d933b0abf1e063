"""What the commands share: the parser, numbers as people type them, output, the plan's options.

**Privacy.** Touches no data.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rillet.errors import InputError, OutputError, ParameterError

if TYPE_CHECKING:
    from rich.console import Console

    from rillet.options import Option
    from rillet.plan import Plan

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
        name, help=summary.replace("%", "%%"), description=description, **settings
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
    return float(_typed(text, float, "a number such as 0.5, 1e-6 or 2^-20"))


def whole(text: str) -> int:
    """A whole number: ``150000``, ``150_000``, ``1e6``, ``2^17``.

    Examples
    --------
    >>> whole("1e6"), whole("150_000")
    (1000000, 150000)
    """
    return int(_typed(text, int, "a whole number such as 150000, 150_000 or 1e6"))


def _typed(text: str, kind: type, expected: str) -> Any:
    from rillet.options import Option

    try:
        return Option("", kind, None).convert(text, texts=True)
    except ParameterError:
        raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}") from None


def show(value: float, digits: int = 4) -> str:
    """A number for a person: ``digits`` significant digits, no exponent where none is needed.

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


#: Whether notes are JSON lines, beside logs that are.
_NOTES = {"json": False}


def json_notes(*, wanted: bool = True) -> None:
    """Write what goes to standard error as JSON lines, or as plain text."""
    _NOTES["json"] = wanted


def note(text: str) -> None:
    """A line on standard error: what a person wants to know and a program must not read."""
    if _NOTES["json"]:
        fields = {"time": round(time.time(), 3), "level": "info", "part": "rillet", "message": text}
        text = json.dumps(fields)
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    """A line on standard error under rillet's name."""
    note(text if _NOTES["json"] else f"rillet: {text}")


def console(*, stderr: bool = False) -> Console:
    """Rich's console, with a fixed width when not a terminal."""
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
    parser: argparse.ArgumentParser,
    *,
    extra_mechanism: str = "",
    meaning: str = "",
    keyed: bool = True,
) -> None:
    """The options that make a plan, as :class:`rillet.Plan` declares them; of many keys too."""
    from rillet.plan import MECHANISMS

    group = parser.add_argument_group("promise and public facts")
    group.add_argument(
        "--mechanism",
        choices=[*MECHANISMS, *filter(None, [extra_mechanism])],
        help="auto (default): the most accurate known; paper: Perrier, Asghar, Kaafar (NDSS 2019); "
        "baseline: the plain binary tree at the bound. Without --missing the last two count a "
        "missing value as the middle of the range" + f"; {meaning}" * bool(meaning),
    )
    for option in (*_plan_options(), *_memory_options(), *_person_options()):
        if option.name in ("levels", "groups", "shared_threshold") and not keyed:
            continue
        flag = f"--{option.name.replace('_', '-')}"
        if option.type is bool:
            group.add_argument(flag, action="store_true", default=None, help=option.about)
            continue
        help_text = option.about
        if option in _person_options():
            help_text = f"to protect a person: {help_text}"
        if option.kinds is not None:
            help_text += f": {', '.join(option.kinds.own)}; with options as KIND:NAME=VALUE,…"
        default = "none" if option.name == "length" else option.default
        if isinstance(default, str | int | float):
            help_text += f" (default {default})"
        group.add_argument(
            flag,
            action="append" if option.several is not None else "store",
            type=_reader(option),
            metavar=option.metavar or "KIND",
            help=help_text.replace("%", "%%"),
        )
    group = parser.add_argument_group("the paper's parameters, for --mechanism paper")
    for option in _paper_options():
        group.add_argument(
            f"--{option.name.replace('_', '-')}",
            type=_reader(option),
            metavar={"calibration": "KIND", "law": "LAW"}.get(option.name, "X"),
            help=option.about + f" (default {option.default})" * (option.default is not None),
        )


def _paper_options() -> list[Option]:
    """The paper's own parameters; what it recommends for them, where that is another default."""
    from dataclasses import replace

    from rillet.paper.recommended import RECOMMENDED
    from rillet.plan import options_for

    known = options_for("auto")
    return [
        replace(option, default=RECOMMENDED.get(name, option.default))
        for name, option in options_for("paper").items()
        if name not in known
    ]


def _plan_options() -> list[Option]:
    """All but the keys, which come from a file, the unit, with its own flags, and amendments."""
    from rillet.options import options_of
    from rillet.plan import Plan

    return [
        option
        for name, option in options_of(Plan).items()
        if name not in ("keys", "unit", "amendments")
    ]


def _memory_options() -> list[Option]:
    """What a statistic looks back on."""
    from rillet.options import options_of
    from rillet.statistic import Mean

    return [option for option in options_of(Mean).values() if option.name != "share"]


def _person_options() -> list[Option]:
    from rillet.options import options_of
    from rillet.privacy import Person

    return list(options_of(Person).values())


def _reader(option: Option) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = option.convert(text, texts=True)
        except ParameterError as error:
            inner = error.parameter.removeprefix(option.name).removeprefix(".")
            raise argparse.ArgumentTypeError(
                f"{inner}: " * bool(inner) + f"expected {error.expected}, found {text!r}"
            ) from None
        return "none" if value is None else value

    return read


def given_plan_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of :func:`add_plan_options` that were given."""

    def given(names: Iterable[str]) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(args, name, None)) is not None}

    plan = given(["mechanism", *(option.name for option in _plan_options())])
    plan |= given(option.name for option in _paper_options())
    if memory := given(option.name for option in _memory_options()):
        plan["statistic"] = _remembering(plan.get("statistic"), memory)
    if person := given(option.name for option in _person_options()):
        plan["unit"] = {"kind": "person", **person}
    return plan


def _remembering(statistic: Any, memory: dict[str, Any]) -> Any:
    """A statistic, or each of several, with a window or a half-life."""
    from dataclasses import replace

    from rillet.options import options_of
    from rillet.statistic import Mean

    if isinstance(statistic, list):
        return [_remembering(part, memory) for part in statistic]
    statistic = Mean() if statistic is None else statistic
    kind: type = type(statistic)
    for name, given in memory.items():
        if name not in options_of(kind):
            raise ParameterError(name, "a statistic that has one", statistic.name)
        own = getattr(statistic, name)
        if own is not None:
            raise ParameterError(
                name,
                f"one {name.replace('_', '-')}",
                f"{given}, and {own} in --statistic",
                "it is given twice: leave one of them out",
            )
    return replace(statistic, **memory)


def missing_in_the_middle(mechanism: str) -> str:
    """What a named mechanism does with missing values, for one who did not say what should be."""
    skip = ", or choose another mechanism, which leaves such values out"
    if mechanism == "baseline":
        skip = ", or --missing skip, which leaves such values out"
    return (
        f"--mechanism {mechanism} counts a missing value (NaN, an empty cell, text) as the middle "
        f"of the range; give --missing none if there are none{skip}."
    )


def plan_from(
    args: argparse.Namespace, mechanism: str | None = None, keys: Sequence[Any] = ()
) -> Plan:
    """The plan that the options of :func:`add_plan_options` describe."""
    from rillet.plan import Plan

    given = given_plan_options(args)
    return Plan.from_table(
        {**given, "mechanism": mechanism or given.get("mechanism", "auto"), "keys": keys}
    )


def load_plan(path: str) -> Plan:
    """Read a plan that ``rillet plan --save`` or :meth:`rillet.Plan.to_json` wrote."""
    from rillet.plan import Plan

    return Plan.from_json(read_text(path, "a plan that rillet plan --save wrote"))
