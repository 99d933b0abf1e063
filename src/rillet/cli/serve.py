"""``rillet serve``: the live page and the releases by HTTP.

**Privacy.** Shows what was released. The process that serves opens no state.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rillet.cli.common import add_command, examples, note, number, read_text, say
from rillet.errors import ParameterError


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "serve",
        run,
        description="""
        Show the releases of a run as a live page, and give them out by HTTP.

        PATH is the folder of a durable run (`rillet run --state DIR`), its releases.db, or a folder
        of Parquet files; it may come later. Only public files are opened. The page is at the
        address that is printed, and /openapi.json describes what programs can ask for: JSON, CSV,
        Arrow, and news as server-sent events. It listens on this machine alone unless --address
        says otherwise.

        With --config FILE the run is started too, in a process of its own, which alone has the
        state: with a [source] of kind "http" it takes observations by HTTP.
        """,
        epilog=examples(
            ("rillet serve live", "the page of a run, on port 8000 of this machine"),
            ("rillet serve --config live.toml", "run a plan, and show what it releases"),
            (
                "rillet serve --new-token read --tokens tokens",
                "make a token; its hash is kept, the token is shown once",
            ),
            (
                "rillet serve live --address 0.0.0.0:8000 --tokens tokens --name stats.example.org",
                "for others, who need a token; put TLS in front of it",
            ),
        ),
    )
    parser.add_argument("path", metavar="PATH", nargs="?", help="a folder, or releases.db")
    parser.add_argument(
        "--config", metavar="FILE", help="also run what this file says, in a process of its own"
    )
    parser.add_argument(
        "--address",
        default="127.0.0.1:8000",
        metavar="HOST:PORT",
        help="where to listen (default 127.0.0.1:8000); port 0 takes a free one",
    )
    parser.add_argument("--tokens", metavar="FILE", help="only who has a token of this file")
    parser.add_argument(
        "--new-token",
        choices=("read", "write"),
        help="make a token, add its hash to --tokens, print it, and end",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="a name of this server besides localhost and addresses; may be given several times",
    )
    parser.add_argument(
        "--rate",
        type=number,
        default=50.0,
        metavar="N",
        help="requests a second from one address (default 50); 0 is no limit",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from rillet.web.access import Tokens

    if args.new_token is not None:
        return _new_token(args)
    path = args.path if args.config is None else _folder(args)
    if path is None:
        raise ParameterError("path", "the folder of a run, or releases.db", None)
    from rillet.web.app import check_page, make_app
    from rillet.web.server import listen, parse_address, serve

    check_page()
    tokens = None if args.tokens is None else Tokens.load(args.tokens)
    names = tuple(name.lower() for name in args.name)
    app = make_app(path, tokens=tokens, rate=args.rate, hosts=names)
    listener = listen(parse_address(args.address))
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    say(f"http://{shown}:{port}/ shows {path}; stop it with Ctrl-C")
    if (tokens is None or not tokens.needs("read")) and not host.startswith(("127.", "::1")):
        note("everybody who can reach this address can read; --tokens asks for a token")
    sys.stdout.flush()
    with _running(args.config) as job:
        serve(app, listener)
        return 0 if job is None else job.stop()


def _folder(args: argparse.Namespace) -> Path:
    """The folder of the state that a configuration names; the rest is for the run to check."""
    if args.path is not None:
        raise ParameterError("path", "nothing beside --config, which says it already", args.path)
    try:
        tables = tomllib.loads(read_text(args.config, "a configuration"))
        return Path(args.config).parent / str(tables["state"]["folder"])
    except (tomllib.TOMLDecodeError, KeyError, TypeError):
        expected = "TOML with a table [state] and its folder"
        raise ParameterError("config", expected, args.config) from None


class _Job:
    """``rillet run`` in a process of its own."""

    def __init__(self, config: str) -> None:
        words = [sys.executable, "-m", "rillet", "run", "--config", config]
        self._process = subprocess.Popen(words)  # noqa: S603

    def stop(self) -> int:
        """Let it finish the block under way; its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait()


@contextmanager
def _running(config: str | None) -> Iterator[_Job | None]:
    job = None if config is None else _Job(config)
    try:
        yield job
    finally:
        if job is not None:
            job.stop()


def _new_token(args: argparse.Namespace) -> int:
    from rillet.noise.secret import access_token
    from rillet.web.access import Tokens

    if args.tokens is None:
        raise ParameterError("tokens", "the file that keeps the hash", None)
    token = access_token()
    Tokens.add(args.tokens, args.new_token, token)
    say(token)
    note(f"it may {args.new_token}; {args.tokens} has its hash, and the token is not shown again")
    return 0
