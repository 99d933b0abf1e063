"""A server of our own for a test: on loopback, in a thread, stopped at the end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rillet.web.server import listen, serve

PATIENCE = 20.0


class Server:
    """An app on a port of loopback; may be stopped, and started again on the same port."""

    def __init__(self, app: Any, port: int = 0) -> None:
        self._app, self.port = app, port
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> Server:
        listener = listen(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        ready = threading.Event()

        def started(stop: Callable[[], object]) -> None:
            self._stop = stop
            ready.set()

        def run() -> None:
            serve(self._app, listener, signals=False, started=started)

        self._thread = threading.Thread(target=run, name="server", daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE)
        return self

    def stop(self) -> None:
        if self._thread is not None:
            self._stop()
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive()
            self._thread = None


@contextlib.contextmanager
def served(app: Any) -> Iterator[Server]:
    server = Server(app).start()
    try:
        yield server
    finally:
        server.stop()
