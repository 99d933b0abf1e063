"""What every sink must keep; `check_sink` puts one through it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from rillet.errors import OutputError
from rillet.release import NUMBERS, Key, Release, Releases, key_text
from rillet.sink.base import Position, Sink
from rillet.testing.violation import ContractViolation

__all__ = ["SinkTarget", "check_sink", "made_up_releases"]

Record: TypeAlias = dict[str, Any]

#: Keys that are hard to write: empty, numbers, quotes, other scripts, control characters, halves of
#: surrogate pairs, texts that look like something else.
STRANGE_KEYS: tuple[Key, ...] = (
    (),
    ("north", 3),
    ("17",),
    (18,),
    ("",),
    ('["north",3]',),
    ("Zürich", "東京"),
    ('quote " and \\ and %s %% {}',),
    ("tab\tline\nnull\0",),
    ("x" * 300, -(10**30)),
    (10**30,),
    ("lone \ud800",),
)


class SinkTarget(Protocol):
    """What a sink writes to, empty at first."""

    def open(self, position: Position | None = None) -> Sink:
        """A sink for this target, open at this position."""

    def records(self) -> Iterable[Record]:
        """All that is published there, read by other means, as `rillet.release.Release` says it."""


def made_up_releases(
    keys: tuple[Key, ...] = (("north",), ("south",)),
    releases: int = 20,
    *,
    names: tuple[str, ...] = ("mean",),
    first: int = 51,
    seed: int = 1,
    scale: float = 1000.0,
) -> Releases:
    """Releases for tests: ``releases`` of every key, in turn; equal arguments give equal numbers.

    **Privacy.** Made from no data.
    """
    random = np.random.default_rng(seed)
    key_of = np.tile(np.arange(len(keys)), releases)
    at = 1_700_000_000_000_000 + np.arange(len(key_of)) // 7 * 1_234_567
    t = np.repeat(np.arange(first, first + releases), len(keys))
    row_of = np.repeat(key_of, len(names))
    total = random.normal(size=len(row_of)) * scale * np.repeat(t, len(names))
    noise = random.random(len(row_of)) * 30
    shares = np.where(np.arange(len(keys)) % 2 == 0, np.nan, random.random(len(keys)))
    count = np.repeat(t, len(names)) * 1.0
    mean, mean_noise = total / count, noise / count * 0.75
    first_name = np.tile(np.arange(len(names)) == 0, len(key_of))

    def known(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.where(first_name, column, np.nan)  # sums are known for the first name alone

    columns = {
        "value": mean,
        "noise_std": mean_noise,
        "noise_covariance": known(-noise),
        "noise_slack": known(noise / 3),
        "sum": known(total),
        "sum_noise_std": known(noise),
        "mean": known(mean),
        "mean_noise_std": known(mean_noise),
        "count": known(count),
        "count_noise_std": known(noise * 0.01),
        "clipping_below": noise / 5,
        "clipping_above": known(noise / 4),
        "clip_lower": (-random.random(len(keys)))[row_of],
        "clip_upper": (100 + random.random(len(keys)) * 50)[row_of],
        "clipped_share": shares[row_of],
    }
    return Releases(keys, key_of, t, at, names, columns, "laplace", ("clamped",), "weibull")


def check_sink(
    new_target: Callable[[], SinkTarget],
    *,
    exactly_once: bool = True,
    checks: Sequence[str] | None = None,
) -> None:
    """Put a kind of sink through the promises of `rillet.sink.base.Sink`.

    **Privacy.** For tests: all releases are made up.

    Parameters
    ----------
    new_target : callable
        Returns a new, empty `SinkTarget` each time.
    exactly_once : bool
        False for a sink that cannot look at what it published: what is delivered again may then be
        there again, and other values are not noticed.
    checks : sequence of str, optional
        Which promises to look at; all by default. Their names are in :data:`CHECKS`.

    Raises
    ------
    ContractViolation
        If a promise is broken.
    """
    for name in CHECKS if checks is None else checks:
        target = new_target()
        try:
            CHECKS[name](target, exactly_once)
        except OutputError as error:
            raise ContractViolation(name, target, f"it was not to fail here: {error}") from error


def replaced(original: Releases, *, at: Any = None, **columns: Any) -> Releases:
    """The same releases with other columns."""
    known = {number: original.rows(number) for number in NUMBERS}
    return Releases(
        original.keys,
        original.key_of,
        original.t,
        original.at if at is None else at,
        original.names,
        {**known, **columns},
        **original.common,
    )


def changed(original: Releases, row: int, name: str = "value") -> Releases:
    """The same but for the last bit of one number, or a known number where none was."""
    column = original.rows(name).copy()
    column[row] = 0.0 if np.isnan(column[row]) else np.nextafter(column[row], np.inf)
    return replaced(original, **{name: column})


def _deliver(target: SinkTarget, *parts: Releases, at: Position | None = None) -> Position | None:
    """Deliver, close, and give the position, as a state would keep it."""
    sink = target.open(at)
    try:
        for part in parts:
            sink.deliver(part)
        position = sink.position()
    finally:
        sink.close()
    return None if position is None else json.loads(json.dumps(position))


def _identity(record: Record) -> str:
    return json.dumps([record["key"], record["t"], record["name"]])


def _expect(
    promise: str, target: SinkTarget, parts: Iterable[Releases], *, again: bool = False
) -> None:
    """The target has the records of these releases, each once (or again, where that is allowed)."""
    expected = sorted((row for part in parts for one in part for row in one), key=_identity)
    found = sorted(target.records(), key=_identity)
    if again:
        found = [row for row, last in zip(found, [None, *found], strict=False) if row != last]
    if found == expected:
        return
    wrong = next((pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]), None)
    detail = f"expected {len(expected)} records, found {len(found)}"
    if wrong is not None:
        detail += f"; expected {wrong[0]}, found {wrong[1]}"
    raise ContractViolation(promise, target, detail)


def _expect_refusal(promise: str, target: SinkTarget, act: Callable[[], Any], *words: str) -> None:
    try:
        act()
    except OutputError as error:
        missing = [word for word in words if word not in str(error)]
        if missing:
            raise ContractViolation(promise, target, f"{error} does not say {missing}") from None
        return
    raise ContractViolation(promise, target, "expected OutputError, nothing was raised")


# --- the promises --------------------------------------------------------------------------------


def _exact(target: SinkTarget, _exactly_once: bool) -> None:
    parts = [
        made_up_releases(STRANGE_KEYS, 3, first=1 + 3 * turn, seed=turn, scale=scale)
        for turn, scale in enumerate([1e-300, 1e-6, 1000.0, 1e290])
    ]
    last = made_up_releases(STRANGE_KEYS, 3, first=13)
    unknown = np.full(len(last), np.nan)
    parts.append(replaced(last, value=unknown, noise_std=unknown, mean=unknown))
    _deliver(target, *parts)
    _expect("publishing what is delivered, exactly", target, parts)


def _several_names(target: SinkTarget, _exactly_once: bool) -> None:
    names = ("mean", "0.5", 'quantile "0.9"')
    parts = [made_up_releases(STRANGE_KEYS[:5], 4, names=names, first=n) for n in (1, 5)]
    _deliver(target, *parts)
    _expect("a record for each name", target, parts)


def _many_keys(target: SinkTarget, _exactly_once: bool) -> None:
    keys = tuple((f"meter {index}", index) for index in range(1000))
    parts = [made_up_releases(keys, 2), made_up_releases(keys, 1, first=53, seed=2)]
    _deliver(target, *parts)
    _expect("publishing what is delivered, exactly", target, parts)


def _nothing(target: SinkTarget, _exactly_once: bool) -> None:
    whole = made_up_releases()
    at = _deliver(target, whole[:0])
    at = _deliver(target, whole, whole[:0], at=at)
    _deliver(target, whole[:0], at=at)
    _expect("taking nothing", target, [whole])


def _slices(target: SinkTarget, _exactly_once: bool) -> None:
    whole = made_up_releases((("a",), ("b",), ("c",)), 5)
    parts = [whole[1:2], whole[5:6], whole[6:]]
    at = _deliver(target, *parts[:2])
    _deliver(target, parts[2], at=at)
    _expect("taking a part of the keys", target, parts)


def _again(target: SinkTarget, exactly_once: bool) -> None:
    """A crash between delivery and acknowledgement: the position is the old one."""
    parts = [made_up_releases(releases=6, first=1 + 6 * turn, seed=turn) for turn in range(3)]
    before = _deliver(target, parts[0])
    after = _deliver(target, *parts[1:], at=before)
    for _ in range(2):
        if _deliver(target, *parts[1:], at=before) != after:
            raise ContractViolation("again is harmless", target, "the position differs")
    _deliver(target, parts[1], at=before)
    _expect("again is harmless", target, parts, again=not exactly_once)


def _cut_differently(target: SinkTarget, exactly_once: bool) -> None:
    at: Position | None = None
    parts = []
    for turn, cut in enumerate((1, 17, 30, 55)):
        keys: tuple[Key, ...] = ((f"a{turn}",), (f"b{turn}",))
        whole = made_up_releases(keys, 40, names=("mean", "more"))
        before = _deliver(target, whole[:10], at=at)
        _deliver(target, whole[10:20], whole[20:40], at=before)
        at = _deliver(target, whole[10 : 10 + cut], whole[10 + cut :], at=before)
        parts.append(whole)
    _expect("again is harmless, however it is cut", target, parts, again=not exactly_once)


def _another_time(target: SinkTarget, exactly_once: bool) -> None:
    """A state that was restored releases the same again, later: the first time stays."""
    if not exactly_once:
        return
    whole = made_up_releases(names=("mean", "more"))
    before = _deliver(target, whole[:0])
    _deliver(target, whole[:13], at=before)
    later = replaced(whole, at=whole.at + np.timedelta64(1_000_001, "us"))
    _deliver(target, later, at=before)
    _expect("the first time of a release stays", target, [whole[:13], later[13:]])


def _other_values(target: SinkTarget, exactly_once: bool) -> None:
    if not exactly_once:
        return
    promise = "never another value"
    names = ("mean", "more")
    original = made_up_releases((("north", 1), ("east",)), 20, names=names)
    more = made_up_releases((("north", 1), ("east",)), 5, names=names, first=71)
    before = _deliver(target, original[:0])
    _deliver(target, original, at=before)
    for row in (0, 13, 79):
        for number in NUMBERS:
            wrong = changed(original, row, number)
            release: Release = wrong[row // len(names)]
            words = key_text(release.key), f"t = {release.t:,} "
            sink = target.open(before)
            try:
                both = Releases.join([wrong, more])
                _expect_refusal(promise, target, partial(sink.deliver, both), *words)
            finally:
                sink.close()
    _expect(promise, target, [original])
    # What is right is taken by the sink that refused.
    sink = target.open(before)
    try:
        wrong = changed(original, 5)
        _expect_refusal(promise, target, lambda: sink.deliver(wrong))
        sink.deliver(Releases.join([original, more]))
    finally:
        sink.close()
    _expect(promise, target, [original, more])


def _closed(target: SinkTarget, _exactly_once: bool) -> None:
    whole = made_up_releases()
    sink = target.open()
    sink.deliver(whole)
    at = sink.position()
    _expect_refusal("one opening at a time", target, lambda: sink.open(at))
    sink.close()
    sink.close()
    _expect_refusal("saying that it is closed", target, lambda: sink.deliver(whole), "closed")
    sink.open(at).close()
    sink.check(at)
    _expect("closing", target, [whole])


def _closed_meanwhile(target: SinkTarget, exactly_once: bool) -> None:
    """A second signal, say: whatever was under way is there wholly or not at all."""
    keys = tuple((f"meter {index}",) for index in range(50))
    parts = [made_up_releases(keys, 20, first=1 + 20 * turn, seed=turn) for turn in range(6)]
    sink = target.open()
    done: list[Releases] = []
    begun = threading.Event()

    def deliver() -> None:
        try:
            for part in parts:
                sink.deliver(part)
                done.append(part)
                begun.set()
        except OutputError:
            pass
        finally:
            begun.set()

    thread = threading.Thread(target=deliver)
    thread.start()
    begun.wait()
    sink.close()
    thread.join(60)
    if thread.is_alive():
        raise ContractViolation("closing is safe", target, "a delivery goes on after close")
    if exactly_once:
        position = sink.position()
        _expect("closing is safe", target, done)
        _deliver(target, *parts[len(done) :], at=position)
        _expect("closing is safe", target, parts)


def _positions(target: SinkTarget, _exactly_once: bool) -> None:
    def refused(promise: str, **position: Any) -> None:
        _expect_refusal(promise, target, lambda: target.open(position))

    refused("refusing a position of another kind", nonsense=1)
    position = _deliver(target, made_up_releases())
    for name, number in (position or {}).items():
        for bad in (-1, 1.5, "1", None):
            refused("refusing a position of another kind", **{name: bad})
        refused("noticing what is lost", **{name: number + 10**9})


def _name(target: SinkTarget, _exactly_once: bool) -> None:
    sink = target.open()
    sink.close()
    if not sink.name or sink.name not in sink.identity():
        raise ContractViolation("a name", target, f"found {sink.name!r}, {sink.identity()!r}")


#: The promises by name.
CHECKS: dict[str, Callable[[SinkTarget, bool], None]] = {
    check.__name__.removeprefix("_"): check
    for check in (
        _exact,
        _several_names,
        _many_keys,
        _nothing,
        _slices,
        _again,
        _cut_differently,
        _another_time,
        _other_values,
        _closed,
        _closed_meanwhile,
        _positions,
        _name,
    )
}
