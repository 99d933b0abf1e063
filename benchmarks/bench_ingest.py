"""Observations by HTTP: acknowledged when durable, beside the same app that throws them away.

Sixteen clients over loopback. All requests that wait go into one commit, so clients that come
together pay for one.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache, partial
from pathlib import Path

from frame import Comparison, Contender

CLIENTS = 16
BATCH = 1_000
_HOST = "127.0.0.1"

_NO_OP = """
import sys
from rillet.source.http import HttpOptions, make_app
from rillet.source.keys import Wanted
from rillet.web.access import Tokens
from rillet.web.server import listen, serve

class Nothing:
    async def put(self, raw_rows, key):
        return True

options = HttpOptions(address="127.0.0.1:0", retries_file="", rate=0)
app = make_app(Wanted("value"), Nothing(), options, Tokens())
serve(app, listen(("127.0.0.1", int(sys.argv[1]))))
"""

_CONFIG = """
[plan]
mechanism = "baseline"
epsilon = 1.0
upper = 50.0
length = 1_000_000_000
every = 1000

[source]
kind = "http"
address = "127.0.0.1:{port}"
retries_file = "live/retries.db"
rate = 0

[state]
folder = "live"
"""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return int(listener.getsockname()[1])


@cache
def _server(*, durable: bool) -> int:
    """Start a server in a process of its own; its port."""
    port, folder = _free_port(), Path(tempfile.mkdtemp(prefix="rillet-bench-"))
    words = [sys.executable, "-c", _NO_OP, str(port)]
    if durable:
        (folder / "live.toml").write_text(_CONFIG.format(port=port), encoding="ascii")
        words = [sys.executable, "-m", "rillet", "run", "--config", "live.toml", "--quiet"]
    process = subprocess.Popen(words, cwd=folder)
    atexit.register(_stop, process)
    for _ in range(600):
        try:
            socket.create_connection((_HOST, port), 1.0).close()
        except OSError:
            time.sleep(0.05)
        else:
            return port
    raise RuntimeError("the server did not start in 30 s")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(30)


async def _client(port: int, request: bytes, times: int) -> None:
    """Send a request again and again over one connection, each when the last is answered."""
    reader, writer = await asyncio.open_connection(_HOST, port)
    for _ in range(times):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    writer.close()


def load(port: int, rows: int, times: int) -> None:
    """All clients at once, each so many requests of so many observations."""
    body = json.dumps(
        [{"value": number % 50} for number in range(rows)] if rows > 1 else {"value": 3}
    )
    head = f"POST /observations HTTP/1.1\r\nHost: {_HOST}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    async def all_clients() -> None:
        await asyncio.gather(*(_client(port, request, times) for _ in range(CLIENTS)))

    asyncio.run(all_clients())


def _comparison(title: str, rows: int, times: int, *, within: float | None) -> Comparison:
    durable, nothing = (
        partial(load, _server(durable=durable), rows, times) for durable in (True, False)
    )
    operations = CLIENTS * rows * times
    return Comparison(
        title,
        "observation",
        [
            Contender("rillet, durable", durable, operations),
            Contender("the same app, thrown away", nothing, operations, rillet_within=within),
        ],
        processes=True,
    )


def bench_batches() -> Comparison:
    """A thousand to a request: at least a fifth of what throwing them away reaches."""
    return _comparison("ingest by HTTP, 1,000 to a request", BATCH, 10, within=5.0)


def bench_one_by_one() -> Comparison:
    """One to a request: what a request costs."""
    return _comparison("ingest by HTTP, one to a request", 1, 100, within=None)
