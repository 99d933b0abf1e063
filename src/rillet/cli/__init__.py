"""The command line: one module to a command, thin over the library.

Each module has ``add_parser(subparsers)``, which declares the command, and ``run(args)``, which
does it and returns the exit code.  Heavy parts are imported when a command runs, so that help is
quick.

Exit codes: 0 done, 2 wrong parameters, 3 a spend was refused, 4 damaged or mismatched state, 5
input or output failed, 130 interrupted; 1 is anything else.

**Privacy.** What is printed comes from public numbers and released values; an error that nobody
foresaw is named by its class and place only, since its message might quote an observation.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

from rillet.cli.common import CommandParser, examples, warn
from rillet.errors import OutputError, ParameterError, RilletError, StateError, StreamEnded

__all__ = ["COMMANDS", "build_parser", "main"]

#: In the order in which a newcomer meets them; each is a module of this package.
COMMANDS = ("demo", "plan", "run", "state", "ledger", "diagnose", "reproduce")

_INTERRUPTED = 130
_UNFORESEEN = 1
_TRACEBACK = "RILLET_TRACEBACK"


def build_parser() -> argparse.ArgumentParser:
    """The whole grammar of the command line."""
    from rillet import __version__

    parser = CommandParser(
        prog="rillet",
        description="Live statistics of a private stream, with differential privacy for every "
        "observation.",
        epilog=examples(
            ("rillet demo", "see it work on public data"),
            (
                "rillet plan --epsilon 1 --delta 2^-20 --upper 3000 --length 150_000 --typical 20",
                "",
            ),
            ("rillet run trips.csv --column minutes --epsilon 1 --delta 2^-20 --upper 1440", ""),
            ("rillet run --help", "all options of a command"),
        ),
    )
    parser.add_argument("--version", action="version", version=f"rillet {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name in COMMANDS:
        importlib.import_module(f"rillet.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show ε shows a question mark instead of an error.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return ParameterError.exit_code
    try:
        code = int(args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_left()
    except OutputError as error:
        if isinstance(error.__cause__, BrokenPipeError):
            return _reader_left()
        return _report(error, args)
    except RilletError as error:
        return _report(error, args)
    except KeyboardInterrupt:
        warn("interrupted")
        return _INTERRUPTED
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        return _unforeseen(error)
    return code


def _report(error: RilletError, args: argparse.Namespace) -> int:
    """One line on standard error, with parameters under the names that were typed."""
    text = " ".join(str(error).split())
    parameter = text.partition(":")[0]
    named = isinstance(error, (ParameterError, StateError, StreamEnded))
    if named and parameter in vars(args) and parameter not in ("run", "command", "file"):
        text = f"--{parameter.replace('_', '-')}{text.removeprefix(parameter)}"
    warn(text)
    return error.exit_code


def _reader_left() -> int:
    """Whoever read our output has gone, as ``head`` does: nothing to tell, nobody to tell it."""
    # The interpreter flushes standard output at exit, which would fail once more and say so.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OutputError.exit_code


def _unforeseen(error: Exception) -> int:
    """Name a bug without its message, which might quote an observation."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = ""
    if place is not None:
        code = place.tb_frame.f_code
        where = f" at {os.path.basename(code.co_filename)}:{place.tb_lineno}"  # noqa: PTH119
    warn(
        f"unforeseen {type(error).__name__}{where}; please report it. Its message is not shown, "
        f"since it might quote an observation; {_TRACEBACK}=1 shows everything"
    )
    return _UNFORESEEN
