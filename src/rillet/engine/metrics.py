"""Metrics for Prometheus, and whether the job is alive, over HTTP.

**Privacy.** Public numbers only: counts of observations of declared keys, counts of releases.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from rillet.errors import MissingExtra, OutputError

if TYPE_CHECKING:
    from rillet.engine.job import Summary

#: Connections at a time, and seconds that each may be silent: idle ones must not pile up.
_CONNECTIONS: Final = 8
_SILENCE: Final = 5.0
#: Paths that answer ``ok``: a job listens when it is ready, and until it ends.
_ALIVE: Final = ("/health", "/healthz", "/readyz")


@contextmanager
def listening(address: tuple[str, int]) -> Iterator[Callable[[Callable[[], Summary]], None]]:
    """Listen on an address; yield what is called with a function that says how far the job is.

    Raises
    ------
    OutputError
        If the address is taken, or cannot be listened on.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError:
        raise MissingExtra("prometheus-client", "metrics", "to serve metrics") from None
    registry = CollectorRegistry()

    class Handler(BaseHTTPRequestHandler):
        timeout = _SILENCE

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            content = generate_latest(registry) if path == "/metrics" else b"ok\n"
            self.send_response(200 if path in ("/metrics", *_ALIVE) else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = _Server(address, Handler)
    except OSError as error:
        host, port = address
        raise OutputError(
            f"metrics: expected to listen on {host}:{port}, found: {error.strerror}; stop whoever "
            "listens there, or choose another port"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="rillet-metrics", daemon=True)

    def serve(summary: Callable[[], Summary]) -> None:
        registry.register(_Numbers(summary))
        thread.start()

    try:
        yield serve
    finally:
        if thread.is_alive():
            server.shutdown()
            thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has gone."""


class _Numbers:
    """A collector that asks the job at each scrape, so that nothing lags behind."""

    def __init__(self, summary: Callable[[], Summary]) -> None:
        self._summary = summary

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            InfoMetricFamily,
        )

        from rillet import __version__

        now = self._summary()
        plan = now.plan
        facts = {"version": __version__, "plan": plan.digest.hex()[:16]}
        yield InfoMetricFamily("rillet", "What is running", facts)
        for name, meaning, value in (
            (
                (
                    "observations",
                    "Observations absorbed since the state was begun",
                    now.observations,
                )
                if now.plan.clock is None
                else ("ticks", "Ticks closed since the state was begun", now.observations)
            ),
            ("releases", "Releases that this process had to deliver", now.releases),
            ("delivered", "Releases of these that every sink has", now.delivered),
            ("left_out", "Observations left out as seen before, by sequence numbers", now.left_out),
        ):
            yield CounterMetricFamily(f"rillet_{name}", meaning, value)
        for name, meaning, number in (
            ("epsilon", "Promise ε for each observation", plan.epsilon),
            ("delta", "Promise δ for each observation", plan.delta),
            ("keys", "Declared keys", len(plan.keys_now) or 1),
            (
                "keys_learning",
                "Declared keys before their first release",
                now.of_keys.left if now.of_keys is not None else int(not now.last_release),
            ),
            ("last_block_timestamp_seconds", "When the last block was absorbed", now.last_block),
            ("learning_ratio", "Learned share of what the first release needs", _learned(now)),
            (
                "delivery_lag_seconds",
                "How long releases have waited for a sink; 0 when none does",
                time.time() - now.last_block if now.delivered < now.releases else 0.0,
            ),
        ):
            yield GaugeMetricFamily(f"rillet_{name}", meaning, number)


def _learned(now: Summary) -> float:
    """Of what the first release needs, of several keys on average; 1 when all of it has come."""
    if now.of_keys is not None:
        return now.of_keys.share
    if now.last_release:
        return 1.0
    return min(1.0, now.observations / max(now.plan.layout.first_release, 1))
