"""A page that compares mechanisms on public data, as they go: for demonstrations.

**Privacy.** Shows the truth, so it is for public data alone; who calls it answers for that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from rillet.web.access import Guard, Tokens
from rillet.web.app import PAGE, page_file

__all__ = ["Show", "make_compare_app"]

_LOOK: Final = 0.1
_OWN: Final = {
    "/": ("compare.html", "text/html; charset=utf-8"),
    "/compare.js": ("compare.js", "text/javascript; charset=utf-8"),
}


@dataclass
class Show:
    """What the page shows: facts, and points that are added while it runs."""

    #: ``title``, ``question``, ``promise``, ``unit``, ``length``; ``labels`` and ``lags``.
    about: dict[str, Any]
    #: Each with ``t``, ``truth``, and ``value``, ``low``, ``high`` of each mechanism.
    points: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False


def make_compare_app(show: Show) -> Guard:
    """The ASGI app of the comparison."""

    async def events() -> AsyncIterator[bytes]:
        yield _event("about", show.about)
        sent = 0
        while True:
            ended = show.ended
            if new := show.points[sent:]:
                sent += len(new)
                yield _event("points", new)
            if ended:
                yield _event("end", {})
                return
            await asyncio.sleep(_LOOK)

    def race(_: Request) -> Response:
        headers = {"cache-control": "no-store"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield

    files = {**PAGE, **_OWN}
    routes = [Route(path, page_file(*file)) for path, file in files.items() if path != "/app.js"]
    app = Starlette(routes=[*routes, Route("/api/race", race)], lifespan=lifespan)
    return Guard(app, role_of=lambda *_: None, tokens=Tokens())


def _event(name: str, content: Any) -> bytes:
    return f"event: {name}\ndata: ".encode() + msgspec.json.encode(content) + b"\n\n"
