"""The command line: one module to a command, thin over the library.

Each module has ``add_parser(subparsers)``, which declares the command, and ``run(args)``, which
does it and returns the exit code.  Heavy parts are imported when a command runs, so that help is
quick.

Exit codes: 0 done, 2 wrong parameters, 3 a spend was refused, 4 damaged or mismatched state, 5
input or output failed, 130 interrupted; 1 is anything else.

**Privacy.** What is printed comes from public numbers and released values; an unforeseen
error is named by its class and line only, since its message might quote an observation.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Sequence

from rillet.cli.common import CommandParser, examples, json_notes, warn
from rillet.errors import OutputError, ParameterError, RilletError, StateError, StreamEnded

__all__ = ["COMMANDS", "build_parser", "main"]

#: In the order in which a newcomer meets them; each is a module of this package.
COMMANDS = (
    *("demo", "plan", "run", "serve", "watch", "plot"),
    *("state", "amend", "ledger", "threshold", "diagnose", "reproduce", "audit"),
)

_INTERRUPTED = 130
_UNFORESEEN = 1
_TRACEBACK = "RILLET_TRACEBACK"


def build_parser(command: str = "") -> argparse.ArgumentParser:
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
    # One command needs only its own module, which loads what its options are declared in.
    for name in (command,) if command in COMMANDS else COMMANDS:
        importlib.import_module(f"rillet.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show ε shows a question mark instead of an error.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    json_notes(wanted=False)
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser(argv[0] if argv else "")
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
        return _interrupted()
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        return _unforeseen(error)
    return code


def _interrupted() -> int:
    """End at once if a sink hangs: to tidy up under its thread could crash, and dump secrets."""
    if any(thread.name == "rillet-courier" for thread in threading.enumerate()):
        sys.stdout.flush()
        os._exit(_INTERRUPTED)
    return _INTERRUPTED


def _report(error: RilletError, args: argparse.Namespace) -> int:
    """One line on standard error, with parameters under the names that were typed."""
    text = " ".join(str(error).split())
    typed = text.partition(":")[0]
    # An option of a table, as source.column, has its own name here.
    parameter = typed.rpartition(".")[2]
    named = isinstance(error, (ParameterError, StateError, StreamEnded))
    named = named and parameter not in ("run", "command", "file", "words")
    if getattr(args, "config", None) is not None:  # what is wrong may be in the file
        named = named and getattr(args, parameter, None) not in (None, False)
    if named and parameter in vars(args):
        text = f"--{parameter.replace('_', '-')}{text.removeprefix(typed)}"
    warn(text)
    return error.exit_code


def _reader_left() -> int:
    """Exit silently on a closed pipe, as behind ``head``."""
    # The interpreter flushes standard output at exit, which would fail once more and say so.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OutputError.exit_code


def _unforeseen(error: Exception) -> int:
    """Name a bug without its message, which might quote an observation."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = ""
    if frame is not None:
        code = frame.tb_frame.f_code
        where = f" at {os.path.basename(code.co_filename)}:{frame.tb_lineno}"  # noqa: PTH119
    warn(
        f"unforeseen {type(error).__name__}{where}; please report it. Its message is not shown, "
        f"since it might quote an observation; {_TRACEBACK}=1 shows everything"
    )
    return _UNFORESEEN
