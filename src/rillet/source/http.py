"""Observations by HTTP: whoever has a token posts them, and is answered when they are safe.

``POST /observations`` takes one observation or many: a JSON object or array, JSON lines, CSV with a
header, or an Arrow stream, with the names of the options.  The answer comes when the block that
they are in is absorbed durably; all requests that wait go into one block, so that one commit
serves them all.  A request counts whole or not at all.

A request with a header ``Idempotency-Key`` counts once, however often it is sent: a small file
remembers the keys of absorbed requests, block by block, and after a crash forgets those of blocks
that were not absorbed, since the state knows the number of its last one.

**Privacy.** Touches raw data. No answer repeats anything of a body, and nothing is logged. That a
key was not declared is told to who sent it, as are malformed bodies; a value never is the reason.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct

from rillet.errors import InputError, MissingExtra, ParameterError, RilletError
from rillet.extras import import_extra
from rillet.source.base import DEFAULT_BLOCK_ROWS, Block, Position, RawRows, Source, rows_to_a_block
from rillet.source.delimited import csv_rows
from rillet.source.json_lines import json_rows
from rillet.source.keys import UNDECLARED, DeclaredKeys, Wanted
from rillet.source.lines import RawRun
from rillet.source.parquet import arrow_columns, arrow_rows
from rillet.times import now, time_zone

__all__ = ["HttpOptions", "HttpSource"]

_JSON, _LINES, _CSV = "application/json", "application/x-ndjson", "text/csv"
_ARROW: Final = "application/vnd.apache.arrow.stream"
#: Rows that may wait to be absorbed; beyond, clients are asked to come again.
_MOST_WAITING: Final = 2**20
#: Seconds: for a body to arrive whole, and to look whether the run was stopped.
_BODY, _LOOK = 10.0, 0.1


class HttpOptions(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="http"
):
    """Options of an `HttpSource`.

    Parameters
    ----------
    address : str
        Where to listen: ``"127.0.0.1:8001"``; port 0 takes a free one.
    retries_file : str
        A file that remembers the idempotency keys of absorbed requests, best in the folder of the
        state; made if it does not exist, for its owner alone.
    tokens_file : str, optional
        Who may write: a file that ``rillet serve --new-token write`` makes.
    column : str
        The field or column with the value.
    time, person, sequence, zone : str, optional
        As of an `rillet.source.mqtt.MqttSource`.
    block_rows : int
        Most observations in a block; a request is not cut.
    remember : int
        How many idempotency keys are remembered.
    most_bytes : int
        The largest body.
    rate : float
        Requests a second that one address may send; 0: no limit.
    """

    address: str
    retries_file: str
    tokens_file: str | None = None
    column: Annotated[str, Meta(min_length=1)] = "value"
    time: str | None = None
    person: str | None = None
    sequence: str | None = None
    zone: str | None = None
    block_rows: Annotated[int, Meta(ge=1)] = DEFAULT_BLOCK_ROWS
    remember: Annotated[int, Meta(ge=1)] = 200_000
    most_bytes: Annotated[int, Meta(ge=1)] = 2**22
    rate: Annotated[float, Meta(ge=0)] = 2_000.0

    def __post_init__(self) -> None:
        from rillet.web.server import parse_address

        parse_address(self.address, "source.address")
        time_zone(self.zone)


class HttpSource(Source):
    """Takes observations by HTTP; needs Starlette and uvicorn, ``rillet[web]``.

    `blocks` listens until ``stop`` is set. Asking for the next block answers the requests of the
    one before.

    Parameters
    ----------
    options : HttpOptions
        Where to listen, and what bodies hold.
    keys : DeclaredKeys, optional
        The declared keys, with the names of the fields that hold their parts.
    stop : threading.Event, optional
        Once it is set, no further block comes.
    """

    Options: ClassVar[type[Struct]] = HttpOptions
    replayable = False
    redelivers = True
    live = True

    def __init__(
        self,
        options: HttpOptions,
        *,
        keys: DeclaredKeys | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        if keys is not None and not keys.columns:
            raise keys.wrong_columns()
        self._options, self._stop = options, stop or threading.Event()
        self._wanted = Wanted(
            options.column,
            keys=keys,
            sequence=options.sequence,
            time=options.time,
            zone=options.zone,
            person=options.person,
        )
        self._entry = _Entry(self._stop)
        self._heard_until = 0
        self._close: Callable[[], None] = lambda: None
        self.name = f"http://{options.address}/observations"
        self.identity = f"http:{options.column}"

    def check(self) -> None:
        """See whether the address is free and the tokens can be read. See `Source`."""
        self._listen().close()
        self._tokens()

    def _listen(self) -> Any:
        from rillet.web.server import listen, parse_address

        return listen(parse_address(self._options.address))

    def _tokens(self) -> Any:
        from rillet.web.access import Tokens

        file = self._options.tokens_file
        return Tokens() if file is None else Tokens.load(file)

    def blocks(
        self, start: Position | None = None, *, block_rows: int | None = None
    ) -> Iterator[Block]:
        """Listen, then return the blocks; see `Source`.

        **Privacy.** Touches raw data.
        """
        from rillet.web.server import serve

        number = 0 if start is None else start.get("batch")
        if type(number) is not int:
            raise ParameterError("start", "a position of a source by HTTP", "another")
        rows = rows_to_a_block(block_rows, self._options.block_rows)
        app = make_app(self._wanted, self._entry, self._options, self._tokens())
        listener = self._listen()
        self._entry.remember(
            _Retries(Path(self._options.retries_file), number, self._options.remember)
        )
        stopping: Future[Callable[[], object]] = Future()
        thread = threading.Thread(
            target=serve,
            args=(app, listener),
            kwargs={"signals": False, "started": stopping.set_result},
            name="rillet-http",
            daemon=True,
        )
        thread.start()
        stopping.result(30)
        port = listener.getsockname()[1]
        self.name = f"http://{self._options.address.rpartition(':')[0]}:{port}/observations"

        def close() -> None:
            self._entry.end()
            stopping.result()()
            thread.join(5)

        self._close = close
        return self._blocks(number, rows)

    def _blocks(self, number: int, most: int) -> Iterator[Block]:
        try:
            while not self._stop.is_set():
                before = now()
                requests = self._entry.take(most)
                if not requests:
                    self._heard_until = before
                    continue
                number += 1
                self._entry.note(number, requests)
                yield self._block(number, requests)
                self._entry.answer(requests)
        finally:
            self.close()

    def _block(self, number: int, requests: list[_Request]) -> Block:
        raw_rows = [request.raw_rows for request in requests]
        raw_columns: dict[str, Any] = {
            name: None if column is None else np.concatenate([getattr(r, name) for r in raw_rows])
            for name, column in raw_rows[0]._asdict().items()
        }
        sizes = [len(request.raw_rows.raw_values) for request in requests]
        return Block(
            position={"batch": number},
            start={"batch": number - 1},
            arrived=np.repeat([request.arrived for request in requests], sizes),
            **raw_columns,
        )

    @property
    def heard_until(self) -> int:
        """Before which nothing is held back; see `Source`."""
        return self._heard_until

    def close(self) -> None:
        """Stop listening; who was not answered is told that nothing was counted."""
        close, self._close = self._close, lambda: None
        close()


# --- requests that wait --------------------------------------------------------------------------


@dataclass
class _Request:
    """What one client sent, until it is answered. **Privacy.** Touches raw data."""

    raw_rows: RawRows = field(repr=False)
    digest: bytes | None
    arrived: int = field(default_factory=now)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    done: asyncio.Future[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.done = self.loop.create_future()


class _Entry:
    """The queue between the server's thread and the run's, and the keys of requests seen."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._waiting: deque[_Request] = deque()
        self._rows = 0
        self._under_way: dict[bytes, _Request] = {}
        self._taken: list[_Request] = []
        self._retries: _Retries | None = None
        self._changed = threading.Condition()

    def remember(self, retries: _Retries) -> None:
        self._retries = retries

    async def put(self, raw_rows: RawRows, key: str | None) -> bool | None:
        """Wait until it is absorbed: True, or False if it had been before; None if it cannot be."""
        digest = None if key is None else hashlib.sha256(key.encode()).digest()[:16]
        with self._changed:
            if digest is not None and self._retries is not None and digest in self._retries:
                return False
            request = None if digest is None else self._under_way.get(digest)
            if request is None:
                if self._stop.is_set() or self._rows > _MOST_WAITING:
                    return None
                request = _Request(raw_rows, digest)
                self._waiting.append(request)
                self._rows += len(raw_rows.raw_values)
                if digest is not None:
                    self._under_way[digest] = request
                self._changed.notify()
        return True if await asyncio.shield(request.done) else None

    def take(self, most: int) -> list[_Request]:
        """All that wait, up to so many rows but one request at least; none after a while."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stop.is_set(), _LOOK)
            taken: list[_Request] = []
            rows = 0
            while self._waiting and not self._stop.is_set():
                rows += len(self._waiting[0].raw_rows.raw_values)
                if taken and rows > most:
                    break
                taken.append(self._waiting.popleft())
            self._rows -= sum(len(request.raw_rows.raw_values) for request in taken)
            self._taken = taken
            return taken

    def note(self, number: int, requests: list[_Request]) -> None:
        """Keep the keys of a block, before it is absorbed."""
        digests = [request.digest for request in requests if request.digest is not None]
        if digests and self._retries is not None:
            self._retries.note(number, digests)

    def answer(self, requests: list[_Request], *, absorbed: bool = True) -> None:
        """Wake who waits for these."""
        with self._changed:
            for request in requests:
                if request.digest is not None:
                    self._under_way.pop(request.digest, None)
                    if absorbed and self._retries is not None:
                        self._retries.confirm(request.digest)
            self._taken = []
        by_loop = {request.loop for request in requests}
        for loop in by_loop:
            loop.call_soon_threadsafe(_wake, requests, absorbed)

    def end(self) -> None:
        """Refuse what is left, and what comes."""
        self._stop.set()
        with self._changed:
            left = [*self._waiting, *self._taken]
            self._waiting.clear()
            self._changed.notify_all()
        try:
            self.answer(left, absorbed=False)
        except RuntimeError:  # the server has ended, and nobody waits
            return
        finally:
            if self._retries is not None:
                self._retries.close()
                self._retries = None


def _wake(requests: list[_Request], absorbed: bool) -> None:
    for request in requests:
        if not request.done.done():
            request.done.set_result(absorbed)


class _Retries:
    """Digests of idempotency keys in a small database, each with the number of its block."""

    def __init__(self, path: Path, absorbed: int, remember: int) -> None:
        self._remember = remember
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.executescript(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                "CREATE TABLE IF NOT EXISTS "
                "retries(digest BLOB PRIMARY KEY, batch INTEGER NOT NULL) WITHOUT ROWID;"
                "CREATE INDEX IF NOT EXISTS by_batch ON retries(batch);"
            )
            # Blocks that the state does not have were not absorbed: they may come again.
            self._connection.execute("DELETE FROM retries WHERE batch > ?", (absorbed,))
            found = self._connection.execute("SELECT digest FROM retries ORDER BY batch")
            self._known = dict.fromkeys(digest for (digest,) in found)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"source.retries_file: expected a file that can be written, found: {reason}"
            ) from None

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    def note(self, number: int, digests: list[bytes]) -> None:
        """On disk before the block is absorbed."""
        self._connection.execute("BEGIN")
        self._connection.executemany(
            "INSERT OR REPLACE INTO retries VALUES (?, ?)", [(each, number) for each in digests]
        )
        if len(self._known) > self._remember:
            oldest = [digest for digest, _ in zip(self._known, range(len(digests)), strict=False)]
            for digest in oldest:
                del self._known[digest]
            self._connection.executemany(
                "DELETE FROM retries WHERE digest = ?", [(digest,) for digest in oldest]
            )
        self._connection.execute("COMMIT")

    def confirm(self, digest: bytes) -> None:
        """Its block was absorbed."""
        self._known[digest] = None

    def close(self) -> None:
        self._connection.close()


# --- the app -------------------------------------------------------------------------------------


def make_app(wanted: Wanted, entry: Any, options: HttpOptions, tokens: Any) -> Any:
    """The ASGI app that takes observations and hands them to an entry.

    **Privacy.** Touches raw data.
    """
    try:
        from starlette.applications import Starlette
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import JSONResponse, PlainTextResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise MissingExtra("starlette and uvicorn", "web", "to take observations") from None
    from rillet.web.access import Guard, problem

    bodies = _Bodies(wanted)
    busy = {"retry-after": "1"}

    async def observations(request: Request) -> Response:
        try:
            raw_body = await asyncio.wait_for(request.body(), _BODY)
        except TimeoutError:
            return problem(408, f"expected the whole body within {_BODY:g} seconds")
        except ClientDisconnect:
            return problem(400, "expected a whole body")
        key = request.headers.get("idempotency-key")
        if key is not None and not 1 <= len(key) <= 200:
            return problem(422, "expected an Idempotency-Key of 1 to 200 characters")
        kind = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
        try:
            raw_rows = bodies.read(kind, raw_body)
        except _Refused as refused:
            return problem(refused.status, refused.text)
        counted = await entry.put(raw_rows, key)
        if counted is None:
            return problem(503, "not counted: the run is stopping, or too much waits", busy)
        return JSONResponse({"accepted": len(raw_rows.raw_values), "repeated": not counted})

    def openapi(_: Request) -> Response:
        return JSONResponse(document(wanted))

    def alive(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    app = Starlette(
        routes=[
            Route("/observations", observations, methods=["POST"]),
            Route("/openapi.json", openapi),
            Route("/healthz", alive),
            Route("/readyz", alive),
        ],
        exception_handlers={
            404: lambda *_: problem(404, "expected POST /observations, found another path"),
            405: lambda *_: problem(405, "expected POST /observations", {"allow": "POST"}),
            500: lambda *_: problem(500, "unforeseen; please report it"),
        },
    )
    return Guard(
        app,
        role_of=lambda _, path: "write" if path == "/observations" else None,
        tokens=tokens,
        rate=options.rate,
        most_bytes=options.most_bytes,
    )


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text


class _Bodies:
    """Bodies of requests as rows, by their media types; raises `_Refused`.

    **Privacy.** Touches raw data. What is refused is the shape of a body, or a key.
    """

    def __init__(self, wanted: Wanted) -> None:
        self._wanted, self._rows_of_lines = wanted, json_rows(wanted)
        self._names = ", ".join(name for name in (wanted.column, *wanted.names) if name is not None)
        self._members = msgspec.json.Decoder(list[msgspec.Raw])
        self._readers = {
            _JSON: self._json,
            _LINES: self._lines,
            _CSV: self._csv,
            _ARROW: self._arrow,
        }

    def read(self, kind: str, raw_body: bytes) -> RawRows:
        """The rows of a body, at least one, all of declared keys."""
        if kind not in self._readers:
            raise _Refused(415, f"expected one of {', '.join(self._readers)}")
        raw_rows = self._readers[kind](raw_body)
        if raw_rows.key_of is not None and (raw_rows.key_of == UNDECLARED).any():
            raise _Refused(422, "expected declared keys alone; nothing of this was counted")
        return raw_rows

    def _json(self, raw_body: bytes) -> RawRows:
        raw_text = raw_body.strip()
        try:
            raw_members = self._members.decode(
                raw_text if raw_text[:1] == b"[" else b"[%b]" % raw_text
            )
        except (msgspec.DecodeError, RecursionError):
            raise _Refused(400, "expected JSON: an object, or an array of objects") from None
        return self._objects([bytes(member) for member in raw_members])

    def _lines(self, raw_body: bytes) -> RawRows:
        return self._objects([line.strip() for line in raw_body.split(b"\n") if line.strip()])

    def _objects(self, raw_lines: list[bytes]) -> RawRows:
        if not raw_lines or any(line[:1] != b"{" for line in raw_lines):
            raise _Refused(422, f"expected objects with the fields {self._names}")
        return self._rows_of_lines([line.replace(b"\n", b" ") for line in raw_lines])

    def _csv(self, raw_body: bytes) -> RawRows:
        header, _, raw_text = raw_body.partition(b"\n")
        raw_text = raw_text.removesuffix(b"\n")
        try:
            rows_of = csv_rows("body", header, self._wanted, ",")
        except RilletError:
            raise _Refused(422, f"expected a first line with the columns {self._names}") from None
        if not raw_text:
            raise _Refused(422, "expected at least one line behind the first")
        return rows_of(RawRun(raw_text, raw_text.count(b"\n") + 1, 0, 0))

    def _arrow(self, raw_body: bytes) -> RawRows:
        arrow = import_extra("pyarrow", package="pyarrow", extra="parquet", purpose="to read Arrow")
        try:
            with arrow.ipc.open_stream(raw_body) as stream:
                columns = arrow_columns("body", arrow, stream.schema, self._wanted)
                table = stream.read_all().combine_chunks()
        except RilletError:
            raise _Refused(422, f"expected the columns {self._names}, of fitting types") from None
        except (arrow.ArrowException, OSError, ValueError):
            raise _Refused(400, "expected an Arrow stream") from None
        if not table.num_rows:
            raise _Refused(422, "expected at least one row")
        (batch,) = table.to_batches()
        return arrow_rows(arrow, batch, columns, self._wanted)


def document(wanted: Wanted) -> dict[str, Any]:
    """The OpenAPI document."""
    from rillet.web.openapi import described, operation

    text = {"type": ["string", "integer"]}
    fields: dict[str, Any] = {str(wanted.column): {"type": ["number", "string", "null"]}}
    fields |= dict.fromkeys(wanted.texts, text)
    if wanted.time is not None:
        fields[wanted.time] = {"type": ["string", "number"]}
    one = {"type": "object", "properties": fields}
    accepted = {
        "type": "object",
        "properties": {"accepted": {"type": "integer"}, "repeated": {"type": "boolean"}},
        "required": ["accepted", "repeated"],
    }
    body = {
        "required": True,
        "content": {
            _JSON: {"schema": {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}},
            _LINES: {"schema": {"type": "string"}},
            _CSV: {"schema": {"type": "string"}},
            _ARROW: {"schema": {"type": "string", "format": "binary"}},
        },
    }
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "a request with the same key counts once",
        "schema": {"type": "string", "minLength": 1, "maxLength": 200},
    }
    post = operation(
        "Count observations: one or many, all or none, answered when they are durable",
        [key],
        content={_JSON: {"schema": accepted}},
        body=body,
        problems=(400, 408, 415, 422, 503),
    )
    return described(
        "Observations for a private stream",
        "What is sent here is private, and is published with noise alone.",
        {"/observations": {"post": post}},
        {},
    )
