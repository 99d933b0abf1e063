"""Serve an app on an address: uvicorn, quiet, stopped by a signal or an event.

**Privacy.** Logs nothing: neither what clients ask for nor what they send.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import Any, Final

from rillet.errors import MissingExtra, OutputError, ParameterError

__all__ = ["listen", "parse_address", "serve"]

#: Connections that may be open at a time, and those that may wait to be.
_CONNECTIONS: Final = 2_000
_BACKLOG: Final = 1_024
#: Seconds that a client may keep a connection without asking, and that open answers get at the end.
_IDLE, _GRACE = 15, 1


def parse_address(text: str, name: str = "address") -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``PORT``; without a host, this machine alone.

    Examples
    --------
    >>> parse_address("8000"), parse_address("[::1]:80")
    (('127.0.0.1', 8000), ('::1', 80))
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ParameterError(name, "HOST:PORT, as 127.0.0.1:8000", text)
    return host.strip("[]") or "127.0.0.1", int(port)


def listen(address: tuple[str, int]) -> socket.socket:
    """A socket on this address; port 0 takes any that is free."""
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OutputError(
            f"address: expected to listen on {host}:{port}, found: {error.strerror}; stop whoever "
            "listens there, or choose another port"
        ) from None
    return listener


def serve(
    app: Any,
    listener: socket.socket,
    *,
    signals: bool = True,
    started: Callable[[Callable[[], object]], None] | None = None,
) -> None:
    """Serve until a signal comes, or until what ``started`` was given is called."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("uvicorn", "web", "to serve by HTTP") from None

    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        lifespan="on",
        server_header=False,
        date_header=False,
        limit_concurrency=_CONNECTIONS,
        backlog=_BACKLOG,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=_GRACE,
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            server.should_exit = True

        if signals:
            # uvicorn's own handlers would raise the signal again, and end what comes after.
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
        if started is not None:
            started(lambda: loop.call_soon_threadsafe(stop))
        await server._serve(sockets=[listener])

    asyncio.run(run())
