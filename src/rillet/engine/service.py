"""What a run needs around it: state, source and sinks opened in order, signals, logs, metrics.

**Privacy.** Logs and metrics hold public numbers: counts of observations of declared keys, counts
of releases, names of files and keys.  What is private about a source, such as rows whose key was
not declared, is in none of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rillet.engine.reuse import claim, open_secret
from rillet.errors import MissingExtra, OutputError, ParameterError

if TYPE_CHECKING:
    from rillet.durable import DurableStreams
    from rillet.engine.config import Config
    from rillet.engine.job import Streams, Tally
    from rillet.sink.base import Sink
    from rillet.source import Block

log = logging.getLogger("rillet.service")


@contextmanager
def opened(
    config: Config, args: argparse.Namespace
) -> Iterator[tuple[Streams, Iterator[Block], dict[str, Sink]]]:
    """Open everything, in the order in which a mistake is cheapest: source, state, sinks."""
    from rillet.sink.registry import open_sink

    with ExitStack() as stack:
        if config.metrics is not None:
            _address(config.metrics)
        if config.state is not None:
            stack.enter_context(_logging(config))
        if config.state is None:
            yield _volatile(config, args, stack)
            return
        stop = stack.enter_context(_stopped_by_signals())
        streams = _durable(config, args, stack)
        last = streams.absorbed
        resumed = last is not None or streams.observations > 0
        source = stack.enter_context(config.open_source(stop))
        blocks = source.blocks(None if last is None else last.end)
        sinks: dict[str, Sink] = {}
        places = streams.places()
        for name, options in _wanted_sinks(config).items():
            place = places.get(name)
            sinks[name] = open_sink(options, place=place, key_columns=config.key_columns)
            stack.callback(sinks[name].close)
        log.info(
            "%s: %s keys, %s observations so far, %s",
            "going on" if resumed else "beginning",
            f"{len(streams.keys):,}",
            f"{streams.observations:,}",
            config.plan.guarantee,
        )
        try:
            yield streams, blocks, sinks
        finally:
            log.info("stopped: %s observations", f"{streams.observations:,}")


def _volatile(
    config: Config, args: argparse.Namespace, stack: ExitStack
) -> tuple[Streams, Iterator[Block], dict[str, Sink]]:
    """A run that leaves nothing but its output."""
    from rillet.engine.job import MemoryStreams
    from rillet.sink.json_lines import JsonLinesSink
    from rillet.sink.registry import open_sink

    blocks = stack.enter_context(config.open_source()).blocks()
    secret = open_secret(args.secret)
    sinks: dict[str, Sink] = {}
    for options in config.sinks:
        sink: Sink
        if options["kind"] in ("jsonl", "stdout"):
            sink = JsonLinesSink(options.get("path", "-"), existing=args.existing)
        else:
            sink = open_sink(options, place=None, key_columns=config.key_columns)
        stack.callback(sink.close)
        sinks[_sink_name(options, config)] = sink
    if args.secret is not None:
        _claim(config, args.secret, secret)
    return MemoryStreams(config.plan, secret, config.run), blocks, sinks


def _durable(config: Config, args: argparse.Namespace, stack: ExitStack) -> DurableStreams:
    from rillet.durable import DurableStreams

    assert config.state is not None
    begun = (config.state / "state.db").exists()
    secret = None
    if not begun:
        # Whatever is wrong with the source is found out before a state is made for it.
        config.open_source().check()
        _check_sinks(config, {})
        if args.secret is not None:
            secret = open_secret(args.secret)
            _claim(config, args.secret, secret)
    streams = DurableStreams(
        config.state,
        config.plan,
        secret=secret,
        key_file=config.key_file,
        run=config.run,
        restored=args.restored,
    )
    stack.callback(streams.close)
    _check_replay(config, streams)
    return streams


def _check_replay(config: Config, streams: DurableStreams) -> None:
    """Compare the last block absorbed with what the file has there now."""
    last = streams.absorbed
    if last is None:
        return
    with config.open_source() as source:
        if source.replayable:
            streams.check_absorbed(source.replay(last.start, last.rows))


def _claim(config: Config, path: str, secret: Any) -> None:
    if "path" not in config.source:
        raise ParameterError("secret", "none with a source that cannot be read again", path)
    claim(path, secret, config.plan.digest, config.run, config.source["path"])


def _wanted_sinks(config: Config) -> dict[str, Mapping[str, Any]]:
    """The options of each sink, by what the state knows it by: public, without passwords."""
    assert config.state is not None
    # On disk before the outbox forgets it, also if the power fails.
    public = {"kind": "sqlite", "path": str(config.state / "releases.db"), "synchronous": "full"}
    wanted: dict[str, Mapping[str, Any]] = {"releases.db": public}
    for options in config.sinks:
        name = _sink_name(options, config)
        if name in wanted:
            raise ParameterError("sink", "each sink once", name)
        wanted[name] = options
    return wanted


def _sink_name(options: Mapping[str, Any], config: Config) -> str:
    """Kind and target, a path as it was typed: the folder of a configuration may move."""
    path = options.get("path")
    if isinstance(path, str) and Path(path).is_relative_to(config.folder):
        path = Path(path).relative_to(config.folder)
    names = (path, options.get("table"), options.get("topic"))
    return ":".join([str(options.get("kind")), *(str(name) for name in names if name)])


# --- checking ------------------------------------------------------------------------------------


def check(config: Config, *, restored: bool, say: Callable[[str], None]) -> int:
    """Check everything that a run would use, and say what was found; spends nothing."""
    say(config.plan.describe())
    source = config.open_source()
    source.check()
    say(f"source: {source.name} can be read")
    for kind in _check_sinks(config, _check_state(config, say, restored=restored)):
        say(f"sink: {kind} can be written")
    if config.metrics is not None:
        _address(config.metrics)
    say("all is well; nothing was released and nothing spent")
    return 0


def _check_sinks(config: Config, places: Mapping[str, Any]) -> list[str]:
    """Check all sinks, as they stood when they last acknowledged; return their kinds."""
    from rillet.sink.registry import check_sink

    wanted = list(config.sinks)
    if config.state is not None:
        _wanted_sinks(config)  # each once
        if "releases.db" in places:
            public = {"kind": "sqlite", "path": str(config.state / "releases.db")}
            check_sink(public, place=places["releases.db"])
    for options in wanted:
        place = places.get(_sink_name(options, config))
        check_sink(options, place=place, key_columns=config.key_columns)
    return [str(options["kind"]) for options in wanted]


def _check_state(
    config: Config, say: Callable[[str], None], *, restored: bool
) -> dict[str, dict[str, int] | None]:
    """Check the state, if there is one; return where each sink stood."""
    if config.state is None:
        return {}
    if not (config.state / "state.db").exists():
        say(f"state: {config.state} will be made")
        return {}
    from rillet.durable import DurableStreams

    with DurableStreams(
        config.state,
        config.plan,
        key_file=config.key_file,
        run=config.run,
        restored=restored,
        only_look=True,
    ) as streams:
        _check_replay(config, streams)
        say(f"state: {config.state} goes on after {streams.observations:,} observations")
        return streams.places()


# --- signals, logs, metrics ----------------------------------------------------------------------


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """SIGTERM and SIGINT finish the block under way, deliver, and stop; a second one stops now."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, _: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        log.info("%s: finishing the block under way", signal.Signals(number).name)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _JsonFormatter(logging.Formatter):
    """One JSON object to a line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": round(record.created, 3),
                "level": record.levelname.lower(),
                "part": record.name,
                "message": record.getMessage(),
            }
        )


@contextmanager
def _logging(config: Config) -> Iterator[None]:
    """Logs of rillet on standard error; no other library's, which might quote what they carry."""
    handler = logging.StreamHandler(sys.stderr)
    if config.log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("rillet")
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(config.log_level.upper())
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ParameterError("metrics", "HOST:PORT, as 127.0.0.1:9464", text)
    return host.strip("[]"), int(port)


@contextmanager
def metrics(config: Config, streams: Streams) -> Iterator[Callable[[Tally], None]]:
    """Serve Prometheus metrics, if wanted; yield what keeps them up to date."""
    if config.metrics is None:
        yield lambda _: None
        return
    host, port = _address(config.metrics)
    try:
        from prometheus_client import CollectorRegistry, Gauge, Info, start_http_server
    except ImportError:
        raise MissingExtra("prometheus-client", "metrics", "to serve metrics") from None
    from rillet import __version__

    registry = CollectorRegistry()
    Info("rillet", "What is running", registry=registry).info(
        {"version": __version__, "plan": config.plan.digest.hex()[:16]}
    )
    plan = config.plan
    for name, meaning, value in (
        ("epsilon", "Promise ε for each observation", plan.epsilon),
        ("delta", "Promise δ for each observation", plan.delta),
        ("keys", "Declared keys", len(streams.keys)),
    ):
        Gauge(f"rillet_{name}", meaning, registry=registry).set(value)
    names = {
        "observations": "Observations of declared keys absorbed, since the state was begun",
        "releases": "Releases made by this process",
        "delivered": "Releases delivered to all sinks by this process",
        "last_block_seconds": "When the last block was absorbed, seconds since 1970",
    }
    gauges = {
        name: Gauge(f"rillet_{name}", meaning, registry=registry) for name, meaning in names.items()
    }
    gauges["observations"].set(streams.observations)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise OutputError(
            f"metrics: expected to listen on {config.metrics}, found: {error.strerror}"
        ) from None

    def count(tally: Tally) -> None:
        for name in ("observations", "releases", "delivered"):
            gauges[name].set(getattr(tally, name))
        gauges["last_block_seconds"].set(time.time())

    try:
        yield count
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
