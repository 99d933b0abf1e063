"""The app: the page, the releases by HTTP, and news as they come.

**Privacy.** Post-processing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
from collections.abc import AsyncIterator, Callable, Iterable
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import msgspec
import numpy as np

from rillet.errors import InputError, MissingExtra, ParameterError
from rillet.release import Key, key_shown, time_text
from rillet.times import moment
from rillet.web.access import Guard, Role, Tokens, problem
from rillet.web.answers import FORMATS, encoded
from rillet.web.live import Live
from rillet.web.metrics import metrics
from rillet.web.openapi import document

try:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
except ImportError:
    raise MissingExtra("starlette and uvicorn", "web", "to serve releases") from None

__all__ = ["PAGE", "make_app", "page_file"]

#: Files of the page by their paths, with their media types.
PAGE: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/uplot.js": ("vendor/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    "/uplot.css": ("vendor/uPlot.min.css", "text/css; charset=utf-8"),
}
#: Releases in one answer, by default and at most.
_USUAL, _MOST = 1_000, 1_000_000


def make_app(
    path: str | os.PathLike[str],
    *,
    tokens: Tokens | None = None,
    rate: float = 50.0,
    hosts: tuple[str, ...] = (),
) -> Guard:
    """The ASGI app that shows the releases of one run.

    **Privacy.** Post-processing: opens ``releases.db`` or Parquet files of releases to read,
    ``about.json`` and ``progress.json``, and nothing else.

    Parameters
    ----------
    path : path
        The folder of the run's state, a database of releases or a folder of Parquet files; it need
        not exist yet.
    tokens : Tokens, optional
        Who may read; by default everybody who can connect.
    rate, hosts
        As in :class:`rillet.web.access.Guard`.
    """
    live, tokens = Live(path), tokens or Tokens()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(live.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    answers = _Answers(live)
    routes = [
        *(Route(where, page_file(name, kind)) for where, (name, kind) in PAGE.items()),
        Route("/api/about", answers.about),
        Route("/api/keys", answers.keys),
        Route("/api/latest", answers.latest),
        Route("/api/releases", answers.releases),
        Route("/api/live", answers.live),
        Route("/metrics", answers.metrics),
        Route("/openapi.json", answers.openapi),
        Route("/healthz", answers.alive),
        Route("/readyz", answers.ready),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)],
        exception_handlers={
            404: lambda *_: problem(404, "expected a path of /openapi.json, found another"),
            405: lambda *_: problem(405, "expected GET, found another method", {"allow": "GET"}),
            500: lambda *_: problem(500, "unforeseen; please report it"),
        },
    )

    def role_of(_: str, path: str) -> Role | None:
        # The page itself asks for the token, so its files are for everybody.
        return "read" if path.startswith(("/api/", "/metrics")) else None

    return Guard(app, role_of=role_of, tokens=tokens, rate=rate, hosts=hosts)


@lru_cache(maxsize=16)
def _content(name: str) -> bytes:
    try:
        content = resources.files("rillet.web").joinpath("static", name).read_bytes()
        # What all pages begin with stands in one file.
        mark = b"<!-- head.html -->\n"
        return content.replace(mark, _content("head.html")) if mark in content else content
    except FileNotFoundError:
        raise InputError(
            f"{name}: expected the chart library, found none; in a checkout type: make chart"
        ) from None


def page_size() -> int:
    """Bytes of all files of the page, compressed."""
    return sum(len(gzip.compress(_content(name))) for name, _ in PAGE.values())


def check_page() -> None:
    """Raise if a file of the page is missing: the chart library comes at build time."""
    for name, _ in PAGE.values():
        _content(name)


def page_file(name: str, kind: str) -> Callable[[Request], Response]:
    """Answers with a file of the page."""

    def answer(_: Request) -> Response:
        return Response(_content(name), media_type=kind, headers={"cache-control": "no-cache"})

    return answer


class _Answers:
    """What each path answers."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def about(self, _: Request) -> Response:
        """The plan in words and numbers, how far the run is, and all keys together."""
        try:
            with self._live.open() as database:
                rollup, names = database.rollup(), database.names
        except InputError:
            rollup, names = [], ()
        return _json(
            {
                "about": self._live.about(),
                "progress": self._live.progress(),
                "names": names,
                "rollup": rollup,
            }
        )

    def keys(self, _: Request) -> Response:
        """All keys: declared ones, and the latest release and a short history of each."""
        self._live.wait()
        look = self._live.looks  # before the rest, so that nothing falls between
        declared = (self._live.about() or {}).get("keys", [])
        rows = [
            {**row, "spark": list(self._live.sparks.get(key, ()))}
            for key, row in list(self._live.latest.items())
        ]
        known = {row["key"] for row in rows}
        return _json(
            {
                "names": self._live.names,
                "keys": rows,
                "look": look,
                "learning": [key for key in declared if key not in known],
            }
        )

    def latest(self, request: Request) -> Response:
        """The last release of each key, or of one."""
        with _Answer() as answer, self._live.open() as database:
            form = _form(request)
            found = database.latest()
            if (key := request.query_params.get("key")) is not None:
                found = database.read(_key(key, database.keys), most=1)
            answer(Response(encoded(found, form), media_type=FORMATS[form]))
        return answer.given

    def releases(self, request: Request) -> Response:
        """The releases of one key, by range."""
        with _Answer() as answer, self._live.open() as database:
            form, asked = _form(request), request.query_params
            keys = database.keys
            if (shown := asked.get("key")) is not None:
                key = _key(shown, keys)
            elif len(keys) == 1:
                (key,) = keys
            else:
                raise ParameterError("key", "one of the keys that /api/keys lists", None)
            found = database.read(
                key,
                after=_whole(asked, "after"),
                since=_time(asked, "since"),
                until=_time(asked, "until"),
                most=_whole(asked, "most", least=1) or _USUAL,
                thin=_flag(asked, "thin"),
            )
            headers = {}
            if form == "csv":
                headers["content-disposition"] = 'attachment; filename="releases.csv"'
            answer(Response(encoded(found, form), media_type=FORMATS[form], headers=headers))
        return answer.given

    async def live(self, request: Request) -> Response:
        """Server-sent events: the latest of every key that moved, and all of one key."""
        with _Answer() as answer:
            asked = request.query_params
            shown = asked.get("key")
            after = _whole(asked, "after")
            resumed = request.headers.get("last-event-id", "")
            if resumed.isdecimal() and len(resumed) < 19:
                after = int(resumed)
            key = None if shown is None else _key(shown, self._live.keys())
            answer(
                StreamingResponse(
                    self._live.watch(key, after, _whole(asked, "look")).events(),
                    media_type="text/event-stream",
                    headers={"cache-control": "no-store"},
                )
            )
        return answer.given

    def metrics(self, request: Request) -> Response:
        """For Prometheus; ``values=true`` has the released values too."""
        self._live.wait()
        text = metrics(self._live, values=_flag(request.query_params, "values"))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    def openapi(self, _: Request) -> Response:
        """The description of all this."""
        return _json(document())

    def alive(self, _: Request) -> Response:
        """The process lives."""
        return Response("ok\n", media_type="text/plain")

    def ready(self, _: Request) -> Response:
        """There is a database that can be read."""
        try:
            with self._live.open():
                return Response("ok\n", media_type="text/plain")
        except InputError:
            return _not_yet()


# --- what was asked ------------------------------------------------------------------------------


class _Answer:
    """Turns what is wrong with a question into an answer."""

    given: Response

    def __enter__(self) -> _Answer:
        return self

    def __call__(self, response: Response) -> None:
        self.given = response

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> bool:
        if isinstance(error, ParameterError):
            status = 404 if error.parameter == "key" else 422
            self.given = problem(status, f"{error.parameter}: expected {error.expected}")
        elif isinstance(error, InputError):
            self.given = _not_yet()
        elif isinstance(error, MissingExtra):
            self.given = problem(406, str(error))
        else:
            return False
        return True


def _not_yet() -> Response:
    return problem(503, "expected a database of releases, found none yet", {"retry-after": "5"})


def _json(content: Any) -> Response:
    return Response(
        msgspec.json.encode(content),
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


def _form(request: Request) -> str:
    asked = request.query_params.get("format")
    if asked is None:
        accepted = request.headers.get("accept", "")
        found = [form for form, kind in FORMATS.items() if kind.split(";")[0] in accepted]
        return found[0] if found else "json"
    if asked not in FORMATS:
        raise ParameterError("format", f"one of {', '.join(FORMATS)}", asked)
    return asked


def _key(shown: str, keys: Iterable[Key]) -> Key:
    """The key of this text; numbers are shown as numbers, and come back as text."""
    for key in keys:
        if str(key_shown(key)) == shown:
            return key
    raise ParameterError("key", "one of the keys that /api/keys lists", shown)


def _whole(asked: Any, name: str, least: int = 0) -> int | None:
    text = asked.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or not least <= int(text[:19]) <= 2**62:
        raise ParameterError(name, f"a whole number of at least {least}", text)
    number = int(text[:19])
    return min(number, _MOST) if name == "most" else number


def _flag(asked: Any, name: str) -> bool:
    return asked.get(name, "") not in ("", "0", "false")


def _time(asked: Any, name: str) -> str | None:
    text = asked.get(name)
    if text is None:
        return None
    try:
        return time_text(np.array([moment(text, name=name)], "M8[us]"))[0]
    except (ParameterError, ValueError, OverflowError):
        raise ParameterError(name, "a time such as 2026-01-01T00:00Z", text) from None
