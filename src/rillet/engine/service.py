"""Run a job: state, source and sinks opened in order, signals, logs; or check it, changing nothing.

**Privacy.** Logs hold public numbers: counts of observations of declared keys, counts of releases,
names of files and keys.  What is private about a source, such as rows whose key was not declared,
is in none of them.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from rillet.engine.about import told, told_before
from rillet.engine.config import Config, load_config
from rillet.engine.job import Courier, Job, Summary, check_replay, ticks_at_once
from rillet.engine.learning import Learning
from rillet.engine.metrics import listening
from rillet.errors import InputError, OutputError, ParameterError, StateError
from rillet.noise import Secret
from rillet.sink import make_sink
from rillet.sink.file import Readers
from rillet.sink.parquet import latest_time
from rillet.sink.sqlite import latest_times
from rillet.source import DeclaredKeys, Source, open_source
from rillet.source.by_tick import DEFAULT_BLOCK_ROWS, ByTick
from rillet.state.folder import check_beginning
from rillet.times import moment, show_moment

if TYPE_CHECKING:
    from rillet.sink.base import Sink
    from rillet.streams import Streams

log = logging.getLogger("rillet.service")

FileName: TypeAlias = str | os.PathLike[str]
#: The sink that every durable run has, by its kind.  On disk before the outbox forgets it, also if
#: the power fails.
_PUBLIC: Final = {
    "sqlite": ("releases.db", {"kind": "sqlite", "synchronous": "full"}),
    "parquet": ("releases", {"kind": "parquet"}),
}
_PUBLIC_NAMES: Final = frozenset(name for name, _ in _PUBLIC.values())


def run(
    config: FileName | Mapping[str, Any] | Config,
    *,
    secret: FileName | None = None,
    restored: bool = False,
    until: object = None,
    watch: Callable[[Summary], None] | None = None,
    stop: threading.Event | None = None,
) -> Summary:
    r"""Run a job until its source ends or it is stopped: what ``rillet run`` does.

    A durable one in the main thread is also stopped by SIGTERM and SIGINT: it finishes and delivers
    the block under way.

    **Privacy.** Touches raw data, a block at a time; returns, raises and logs public numbers only.

    Parameters
    ----------
    config
        A TOML file, a mapping with the same tables, or what :func:`load_config` made of them.
    secret
        A file that keeps the secret of the noise, made if it does not exist.
    restored
        Go on although the state was copied or restored from a backup.
    until
        By the clock, over a finished file: ticks that end later stay open, for a later run over
        the file when it has grown.  By default it is complete: all ticks of the plan are closed.
    watch
        Called with the :class:`Summary` at the start, after each block and at the end.
    stop
        When it is set, the job ends after the block under way.

    Raises
    ------
    RilletError
        As its kinds say.  What was released until then is delivered.
    KeyboardInterrupt
        At a second signal.  The state is closed; a sink that hangs is left to the end of the
        process.

    Examples
    --------
    >>> file = Path("trips.csv")
    >>> _ = file.write_text("minutes\n12.5\n9.0\n")
    >>> summary = run(
    ...     {
    ...         "plan": {"epsilon": 1.0, "upper": 60.0, "length": 100, "mechanism": "baseline"},
    ...         "source": {"path": "trips.csv"},
    ...         "sink": [{"kind": "jsonl", "path": "releases.jsonl"}],
    ...     }
    ... )
    >>> summary.observations, summary.delivered
    (2, 2)
    """
    stop = threading.Event() if stop is None else stop
    with _opened(load_config(config), secret, stop, restored=restored, until=until) as job:
        job.run(watch)
        return job.summary


@contextmanager
def _opened(
    config: Config,
    secret: FileName | None,
    stop: threading.Event,
    *,
    restored: bool,
    until: object,
) -> Iterator[Job]:
    """Open everything, in the order in which a mistake is cheapest."""
    with ExitStack() as stack:
        stack.enter_context(_logging(config))
        serve = stack.enter_context(listening(config.metrics)) if config.metrics else None
        durable = config.state is not None
        if durable:
            stack.enter_context(_stopped_by_signals(stop))
        source = _source(config, stop)
        until_tick = _until_tick(config, source, until)
        sinks = _sinks(config)
        streams = _streams(config, source, sinks, secret, restored=restored)
        stack.callback(streams.close)
        if config.state is not None and config.readers != "owner":
            _let_pass(config.state, config.readers)
        source = stack.enter_context(_in_order(config, source, streams, stop, until_tick))
        check_replay(source, streams.store, config.state)
        positions = streams.store.sinks()
        couriers = {}
        for name, sink in sinks.items():
            sink.open(positions[name][1] if name in positions else None)
            couriers[name] = Courier(sink, failed=stop.set)
            stack.push(couriers[name].end)
        last = 0 if config.state is None else last_release(config.state)
        job = Job(
            config.plan,
            streams,
            source,
            couriers,
            last_release=last,
            until_tick=until_tick,
            stop=stop,
            of_keys=_of_keys(config, streams),
        )
        if serve is not None:
            serve(lambda: job.summary)
        if config.state is not None:
            readers = Readers.named(config.readers)
            stack.enter_context(told(config.state, config.plan, lambda: job.summary, readers))
        log.info(
            "%s: %s, %s so far, %s",
            "going on" if streams.absorbed else "beginning",
            f"{len(config.plan.keys_now):,} keys" if config.plan.keys else "no keys",
            _so_far(streams),
            config.plan.guarantee_now,
        )
        try:
            yield job
            if streams.waiting:
                raise _ended_early(source, streams)
            if not durable and not job.summary.releases:
                raise _nothing_released(config, source, streams)
        finally:
            log.info("stopped: %s", _so_far(streams))


def _of_keys(config: Config, streams: Streams) -> Learning | None:
    """How far each key is before its first release, where observations of several are counted."""
    if config.plan.clock is not None or len(config.plan.keys) < 2:
        return None
    if not streams.absorbed or config.state is None:
        return Learning(config.plan, None)
    return Learning(config.plan, told_before(config.state))


def _so_far(streams: Streams) -> str:
    what = "observations" if streams.layout.clock is None else "ticks"
    return f"{streams.absorbed:,} {what}"


def _source(config: Config, stop: threading.Event) -> Source:
    tree = config.plan.tree
    keys = DeclaredKeys(tree.keys, config.key_columns) if config.plan.keys else None
    source = open_source(_table(config), keys=keys, stop=stop)
    clock = config.plan.clock
    if clock is not None and not source.live:
        if "time" not in config.source:
            raise ParameterError(
                "source.time", "the column with the time of each row", None, "type --time COLUMN"
            )
        if "sequence" in config.source:
            raise ParameterError(
                "source.sequence",
                "none for a finished file by the clock, which is read in the order of time",
                config.source["sequence"],
            )
        if config.state is not None and not source.replayable:
            raise ParameterError(
                "state", "none for a pipe by the clock, which cannot be read again", config.state
            )
    if source.redelivers and config.state is None:
        # What was counted would not be remembered, and a broker would be told that messages are
        # safe which are not: what comes again would count twice.
        raise ParameterError(
            "state",
            "a durable run, with a state, for a source that may give an observation twice (follow, "
            "sequence, a broker)",
            None,
        )
    return source


def _until_tick(config: Config, source: Source, until: object) -> int | None:
    """The last tick that has ended by this time; None if none is given."""
    clock = config.plan.clock
    if until is None:
        return None
    if clock is None or source.live:
        raise ParameterError("until", "none but by the clock, over a finished file", until)
    reached = np.array([moment(until, clock.zone, "until")])
    return max(0, int(clock.tick_of(reached)[0]) - 1)


def _in_order(
    config: Config,
    source: Source,
    streams: Streams,
    stop: threading.Event,
    until_tick: int | None = None,
) -> Source:
    """By the clock a finished source in the order of time, with the streams' pseudonyms."""
    plan, gate = config.plan, streams.store.gate
    if plan.clock is None or source.live:
        return source
    last, keys = None if plan.length is None else plan.last_t, len(streams.keys)
    ends = [tick for tick in (last, until_tick) if tick is not None]
    return ByTick(
        source,
        plan.clock,
        min(ends, default=None),
        # So many that a tick with a row of each key, and some of late ones, is one block.
        block_rows=config.source.get("block_rows", max(DEFAULT_BLOCK_ROWS, 2 * keys)),
        block_ticks=ticks_at_once(keys),
        pseudonyms=None if gate is None else gate.pseudonyms,
        folder=config.state,
        stop=stop,
    )


def _table(config: Config) -> Mapping[str, Any]:
    """The source's options, with the plan's zone for times that have none."""
    table, plan = config.source, config.plan
    if plan.unit is not None and "person" not in table:
        raise ParameterError(
            "source.person", "the column with the person of each row", None, "type --person COLUMN"
        )
    if plan.unit is None and "person" in table:
        raise ParameterError(
            "source.person",
            "none: the plan protects single observations",
            table["person"],
            "to protect persons, type --most M as well",
        )
    if plan.clock is None:
        if "time" in table:
            raise ParameterError(
                "source.time", "none in a run by count", table["time"], 'or give every="1h"'
            )
    elif "time" in table and plan.zone is not None and "zone" not in table:
        return {**table, "zone": plan.zone}
    return table


def _sinks(config: Config) -> dict[str, Sink]:
    """The sinks, not open yet, by what the state knows them by."""
    sinks: dict[str, Sink] = {}
    if config.state is not None:
        name, public = _PUBLIC[config.releases]
        for other, (found, _) in _PUBLIC.items():
            if found != name and (config.state / found).exists():
                raise ParameterError(
                    "state.releases", f"{other!r}, as this state was begun", config.releases
                )
        sinks[name] = make_sink(
            {**public, "path": str(config.state / name), "readers": config.readers}
        )
    elif not config.sinks:
        raise ParameterError("sink", "at least one sink, or a state", None)
    for options in config.sinks:
        sink = make_sink(options, key_columns=config.key_columns)
        name = sink.identity(config.folder)
        if name in sinks:
            raise ParameterError("sink", "each sink once", name)
        sinks[name] = sink
    return sinks


def _let_pass(folder: Path, readers: str) -> None:
    """Let readers pass through the folder of a state, to what is theirs in it."""
    try:
        Readers.named(readers).give(folder, folder=1)
    except OSError as error:
        raise OutputError(
            f"{folder}: expected to let {readers} pass through it, found: {error.strerror}; only "
            "its owner can"
        ) from None


def last_release(folder: Path) -> int:
    """The largest t among the releases of a durable run, in whichever form it keeps them."""
    dataset = folder / _PUBLIC["parquet"][0]
    if dataset.exists():
        return latest_time(dataset)
    return max(latest_times(folder / _PUBLIC["sqlite"][0]).values(), default=0)


def _streams(
    config: Config,
    source: Source,
    sinks: Mapping[str, Sink],
    secret: FileName | None,
    *,
    restored: bool,
) -> Streams:
    """The streams, in memory or in a folder; whatever is wrong is found before a state is made."""
    plan, folder = config.plan, config.state
    if plan.clock is not None and folder is None and secret is not None:
        raise ParameterError(
            "secret",
            "none by the clock without a state, which alone remembers what the secret was used for",
            secret,
            "type --state DIR as well, or leave it out: a fresh secret is made",
        )
    begun = folder is not None and (folder / "state.db").exists()
    if not begun:
        source.check()
        _check_sinks(sinks, {})
    kept = {} if begun else _kept(secret)
    if folder is None:
        return plan.open_many(**kept)
    if not begun:
        check_beginning(folder, config.key_file, plan.guard(**kept))
    return plan.open_folder(
        folder, key_file=config.key_file, source=source.identity, restored=restored, **kept
    )


def _kept(name: FileName | None) -> dict[str, Any]:
    """The secret in a file, made if it does not exist, and the file that remembers its uses."""
    if name is None:
        return {}
    path = Path(name)
    if not path.exists():
        secret = Secret.generate()
        secret.save(path)
    elif path.stat().st_mode & 0o077:
        raise StateError(
            f"secret: expected a file that its owner alone can read, found mode "
            f"{path.stat().st_mode & 0o777:o}; type: chmod 600 {path}"
        )
    else:
        secret = Secret.load(path)
    if secret.for_tests_only:
        raise ParameterError(
            "secret",
            "a secret for releases",
            "one that Secret.for_tests made, which everybody knows",
            hint="name a new file, and it will be made",
        )
    return {"secret": secret, "uses": path.with_name(path.name + ".uses")}


def _ended_early(source: Source, streams: Streams) -> InputError:
    return InputError(
        f"{source.name}: its last {streams.waiting:,} observations were not released: the secret "
        "was used for more, and they are compared with what follows them in whole chunks. Give at "
        "least as many observations as before, or use a new secret"
    )


def _nothing_released(config: Config, source: Source, streams: Streams) -> InputError:
    layout = config.plan.layout
    if layout.clock is not None:
        first = show_moment(layout.clock.end_of(layout.first_release))
        return InputError(
            f"{source.name}: the first release comes when tick {layout.first_release:,} is over, "
            f"at {first}, and {streams.absorbed:,} ticks are; nothing was released. Wait, or plan "
            "with an earlier start"
        )
    hint = "a shorter lag" if layout.lag else "a smaller every"
    return InputError(
        f"{source.name}: expected at least {layout.first_release:,} observations, after which the "
        f"first release comes, found {streams.observations:,}; nothing was released. Wait for more "
        f"data, or plan with {hint}"
    )


# --- checking ------------------------------------------------------------------------------------


def check(
    config: FileName | Mapping[str, Any] | Config,
    *,
    secret: FileName | None = None,
    restored: bool = False,
) -> Iterator[str]:
    """Check everything that a run would use; say what was found, and change and spend nothing.

    Raises
    ------
    RilletError
        As the run would.
    """
    config = load_config(config)
    yield config.plan.describe()
    if keys := len(config.plan.keys_now):
        yield f"keys: this holds for each of {keys:,} keys"
    with ExitStack() as stack:
        stack.enter_context(_logging(config))
        if config.metrics is not None:
            stack.enter_context(listening(config.metrics))
            yield f"metrics: {config.metrics[0]}:{config.metrics[1]} is free"
        stop = threading.Event()
        source = _source(config, stop)
        source.check()
        yield f"source: {source.name} can be read"
        sinks, positions = _sinks(config), {}
        if config.state is not None and (config.state / "state.db").exists():
            streams = config.plan.open_folder(
                config.state,
                key_file=config.key_file,
                source=source.identity,
                restored=restored,
                only_look=True,
            )
            stack.callback(streams.close)
            source = stack.enter_context(_in_order(config, source, streams, stop))
            check_replay(source, streams.store, config.state)
            positions = streams.store.sinks()
            yield f"state: {config.state} goes on after {_so_far(streams)}"
        elif config.state is not None:
            kept = _kept(secret) if secret is not None and Path(secret).exists() else {}
            guard = config.plan.guard(**kept) if kept and kept["uses"].exists() else None
            check_beginning(config.state, config.key_file, guard)
            yield f"state: {config.state} will be made"
        _check_sinks(sinks, positions)
        for name, sink in sinks.items():
            if name not in _PUBLIC_NAMES:
                yield f"sink: {sink.name} can be written"
    yield "all checks passed; nothing was released and nothing spent"


def _check_sinks(sinks: Mapping[str, Sink], positions: Mapping[str, tuple[int, Any]]) -> None:
    """See whether they can be opened; what is in the state's folder is made with it."""
    for name, sink in sinks.items():
        if name not in _PUBLIC_NAMES or name in positions:
            sink.check(positions[name][1] if name in positions else None)


# --- signals, logs -------------------------------------------------------------------------------


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT finish the block under way, deliver, and stop; a second one stops now."""
    signals = 0
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        nonlocal signals
        signals += 1
        stop.set()
        if signals == 2:  # later ones must not disturb the closing of the state
            raise KeyboardInterrupt
        log.info("%s: finishing the block under way", signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _JsonFormatter(logging.Formatter):
    """One JSON object per line."""

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
    usual = "info" if config.state is not None else "warning"
    logger.setLevel((config.log_level or usual).upper())
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
