"""Releases: the public records that streams give out, defined once for every spelling.

A *record* is one row (key, t, name): a statistic with several numbers gives several rows for each
release.  A *release* is the event (key, t) with its rows.  :data:`FIELDS` defines the record;
JSON lines, SQL, Arrow, pandas and the stored form all derive from it.

**Privacy.** Everything here is post-processing of noisy values: it may be shown to anybody.
"""

from __future__ import annotations

import json
import math
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from rillet.errors import MissingExtra, ParameterError, StateError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

Key: TypeAlias = tuple[str | int, ...]
FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
TimeArray: TypeAlias = NDArray[np.datetime64]
#: The fields of each row of a release.
Rows: TypeAlias = list[dict[str, Any]]
#: A column, or how to work out a part of it, by its name, when it is asked for.
Column: TypeAlias = NDArray[Any] | Callable[[str, slice], NDArray[Any]]


@dataclass(frozen=True)
class Field:
    """One field of the record.

    ``kind`` says what it holds (a time is text in ISO 8601 where there is no type for it); a field
    that is ``common`` has one value for all rows of a plan, one that is ``steady`` rarely changes
    within a key; one that is ``optional`` may be unknown: NaN in arrays, None in JSON and NULL in
    SQL.
    """

    name: str
    kind: Literal["key", "integer", "time", "number", "text", "texts"] = "number"
    optional: bool = False
    common: bool = False
    steady: bool = False


#: The record, in order.  ``sum`` to ``count_noise_std`` are known for running sums and means, and
#: ``noise_covariance`` where the value is divided by a noisy count; ``noise_lower`` and
#: ``noise_upper`` where the noise interval does not follow from the others; ``clipping_below`` and
#: ``clipping_above`` where something says how much was clipped.
FIELDS: Final = (
    Field("key", "key"),
    Field("t", "integer"),
    Field("at", "time"),
    Field("name", "text"),
    Field("value", optional=True),
    Field("noise_std", optional=True),
    Field("noise_covariance", optional=True),
    Field("noise_slack", optional=True),
    Field("noise_lower", optional=True),
    Field("noise_upper", optional=True),
    Field("sum", optional=True),
    Field("sum_noise_std", optional=True),
    Field("mean", optional=True),
    Field("mean_noise_std", optional=True),
    Field("count", optional=True),
    Field("count_noise_std", optional=True),
    Field("clipping_below", optional=True),
    Field("clipping_above", optional=True),
    Field("clip_lower", optional=True, steady=True),
    Field("clip_upper", optional=True, steady=True),
    Field("clipped_share", optional=True, steady=True),
    Field("noise_law", "text", common=True),
    Field("post_processing", "texts", common=True),
    Field("tail", "text", common=True),
)
#: Fields that are a number for each row, in the order of the record.
NUMBERS: Final = tuple(field.name for field in FIELDS if field.kind == "number")
#: Fields with one value for all rows of a plan.
COMMON: Final = tuple(field.name for field in FIELDS if field.common)


def key_text(key: Key) -> str:
    """The one way to write a key as text: compact JSON, in ASCII."""
    return json.dumps(key, separators=(",", ":"))


def key_shown(key: Key) -> str | int:
    """A key as one cell of a table: its only part as it is, several parts as :func:`key_text`.

    Different keys stay different.  Parts that a cell cannot hold or that look like JSON (text that
    begins with ``[`` or has characters that cannot be printed, numbers beyond 64 bits) are shown as
    JSON too.

    Examples
    --------
    >>> key_shown(("north",)), key_shown((7,)), key_shown(("north", 7))
    ('north', 7, '["north",7]')
    """
    if len(key) == 1:
        (part,) = key
        if isinstance(part, str):
            if part.isprintable() and not part.startswith("["):
                return part
        elif -(2**63) <= part < 2**63:
            return part
    return key_text(key)


def key_from_shown(shown: str | int) -> Key:
    """The key that :func:`key_shown` gave."""
    if isinstance(shown, str) and shown.startswith("["):
        return tuple(json.loads(shown))
    return (shown,)


def time_text(at: TimeArray) -> list[str]:
    """The one way to write times as text: ISO 8601 in UTC, all equally long, so that they sort.

    Examples
    --------
    >>> time_text(np.array(["2026-03-01T12:00"], "M8[us]"))
    ['2026-03-01T12:00:00.000000Z']
    """
    texts: list[str] = np.datetime_as_string(at, unit="us", timezone="UTC").tolist()
    return texts


def noise_deviations(confidence: float, law: str) -> float:
    """How many standard deviations of noise an interval needs.

    Gaussian noise is exact.  A sum of Laplace draws lies between a single Laplace draw and a
    Gaussian; the larger of the two multiples covers every such sum (a test measures it).
    """
    try:
        known = 0 < confidence < 1
    except (TypeError, ValueError):  # no number, or many
        known = False
    if not known:
        raise ParameterError("confidence", "a number between 0 and 1", confidence)
    return _deviations(float(confidence), law)


@lru_cache(maxsize=64)
def _deviations(confidence: float, law: str) -> float:
    gaussian = -float(ndtri((1 - confidence) / 2))
    return gaussian if law == "gaussian" else max(gaussian, -math.log1p(-confidence) / math.sqrt(2))


#: The confidence of an interval that is kept in the record, in ``noise_lower`` and ``noise_upper``.
INTERVAL_KEPT: Final = 0.95


def noise_interval(
    confidence: float,
    law: str,
    value: Any,
    std: Any,
    covariance: Any,
    slack: Any,
    noise_lower: Any,
    noise_upper: Any,
    count: Any,
    count_std: Any,
    clip_lower: Any,
    clip_upper: Any,
) -> tuple[Any, Any]:
    """The value with enough deviations of its noise on both sides; of numbers or arrays.

    A value that is a ratio with a noisy count has Fieller's interval: the values M for which the
    noisy sum minus M times the noisy count is within the deviations of *its* noise, which is exact
    at any count.  With d = M - value, std and count_std / count this is

        d² <= deviations² · (std² - 2 · covariance · d + d² · (count_std / count)²).

    Where that does not bound d, or there is no value yet, it is the clipping range.  ``slack`` is
    added to each deviation.  An interval that the record has is taken as it is.

    **Privacy.** Post-processing.

    References
    ----------
    Fieller, "Some problems in interval estimation", J. R. Statist. Soc. B 16 (1954).
    """
    deviations, kept = noise_deviations(confidence, law), ~np.isnan(noise_lower)
    if confidence > INTERVAL_KEPT and np.any(kept):
        expected = f"at most {INTERVAL_KEPT}, for which the interval is worked out"
        raise ParameterError("confidence", expected, confidence)
    with np.errstate(all="ignore"):
        reach = deviations * (std + np.where(np.isnan(slack), 0.0, slack))
        # Squares as products: the powers of numbers and of arrays differ in the last bit.
        share = deviations * count_std / count
        bend = 1 - share * share
        shift = deviations * deviations * covariance
        root = np.sqrt(shift * shift + bend * reach * reach)
        plain = np.isnan(covariance)
        low = np.where(plain, value - reach, value - (root + shift) / bend)
        high = np.where(plain, value + reach, value + (root - shift) / bend)
        open_ended = np.isnan(value) | ~(plain | (bend > 0))
    low, high = np.where(open_ended, clip_lower, low), np.where(open_ended, clip_upper, high)
    return np.where(kept, noise_lower, low), np.where(kept, noise_upper, high)


#: The fields from which the noise interval follows, in the order of its arguments.
FOR_NOISE_INTERVAL: Final = (
    *("value", "noise_std", "noise_covariance", "noise_slack", "noise_lower", "noise_upper"),
    *("count", "count_noise_std", "clip_lower", "clip_upper"),
)


def _interval(
    confidence: float, law: str, tail: str, below: Any, above: Any, value: Any, *noise: Any
) -> tuple[Any, Any]:
    """The noise interval, wider by what clipping may be off; of numbers or arrays.

    Noise and the estimate of what was clipped are independent, so that their squares add up.
    Without a tail what is clipped may be all that the bounds allow, and is added as it is.

    **Privacy.** Post-processing.
    """
    low, high = noise_interval(confidence, law, value, *noise)
    scale = noise_deviations(confidence, "gaussian") / noise_deviations(INTERVAL_KEPT, "gaussian")
    # A number that was mended may lie beyond the interval that was worked out before.
    middle = np.where(np.isnan(value), (low + high) / 2, np.clip(value, low, high))
    with np.errstate(invalid="ignore"):
        down, up = middle - low, high - middle
        if tail == "bound":
            return low - max(scale, 1.0) * below, high + max(scale, 1.0) * above
        below, above = scale * below, scale * above
        # Where nothing is clipped it is the noise interval, to the last bit.
        lower = np.where(below == 0, low, middle - np.sqrt(down * down + below * below))
        upper = np.where(above == 0, high, middle + np.sqrt(up * up + above * above))
    return lower, upper


#: Those from which the interval for the unclipped values follows.
_FOR_INTERVAL: Final = ("clipping_below", "clipping_above", *FOR_NOISE_INTERVAL)


class Release:
    """One release: the event (key, t) with one row for each number of the statistic.

    Attributes speak of the first row; ``release["0.9"]`` is another row by its name, and iterating
    gives all rows as records.

    Releases are equal if their keys, t and rows are: ``at``, when they were released, is left out,
    so that a replay gives equal ones.

    Attributes
    ----------
    key : tuple
        The stream's declared key.
    t : int
        Number of observations.
    at : datetime.datetime
        The time of the release, in UTC.
    name : str
        Which number this is: ``"mean"``, ``"sum"``, or a name of the statistic's own.
    value, noise_std : float
        The statistic, and the standard deviation of its noise.  Clipping bias is not in it.  NaN
        while there is no value yet: a mean before its noisy count has left 0 behind.
    noise_covariance : float
        Where the value is divided by a noisy count, the covariance of the noise of both, divided by
        the count; otherwise NaN.
    noise_slack : float
        Where no value is taken to be missing although a few may be, by how much that may be off
        for each deviation: the interval has it besides the noise.  Otherwise NaN, or 0.
    noise_lower, noise_upper : float
        Of a quantile, the bin edges that enclose it with 95 %; with ``sane`` output the noise
        interval for 95 % of what it was before.  Otherwise NaN.
    sum, sum_noise_std, mean, mean_noise_std, count, count_noise_std : float
        Of running sums and means; NaN for other statistics.  A public count has noise 0.
    clipping_below, clipping_above : float
        How far below and above the value the statistic of the *unclipped* values may lie because
        of clipping, with 95 % if the tail is what ``tail`` says; 0 where nothing is clipped, NaN
        where nothing says how much is, infinite (null in JSON and SQL) where a quantile may lie
        beyond the outermost edge of its bins.
    clip_lower, clip_upper : float
        The clipping range in force; NaN for a statistic that does not clip.
    clipped_share : float
        Estimated share of values beyond the range, from released counts; NaN where none are kept.
    noise_law : str
        ``"laplace"`` or ``"gaussian"``.
    post_processing : tuple of str
        What was done to the decoded numbers, if anything.
    tail : str
        What is assumed of values beyond the clipping range: ``"weibull"``, a tail of that family
        that fits the counts of a learned range; ``"bound"``, nothing but the declared bounds;
        ``"none"`` where nothing within the bounds is clipped, ``"unknown"`` where nothing says how
        much is.
    """

    __slots__ = ("_at", "_rows", "key", "t")

    def __init__(
        self,
        key: Key,
        t: int,
        at_microseconds: int,
        rows: Rows | tuple[Any, ...],
    ) -> None:
        self.key = key
        self.t = t
        self._at: float = at_microseconds
        # The rows, or a function and its arguments: many releases are made, few are read.
        self._rows = rows

    @property
    def at_microseconds(self) -> int:
        """The time of the release, in microseconds since 1970 UTC."""
        return int(self._at)

    @property
    def at(self) -> datetime:
        """The time of the release, in UTC."""
        return _EPOCH + timedelta(microseconds=self.at_microseconds)

    @property
    def rows(self) -> Rows:
        """The fields of each row but key, t and at, with NaN where a number is not known."""
        rows = self._rows
        if isinstance(rows, tuple):
            make, *arguments = rows
            self._rows = rows = make(*arguments)
        return rows

    def __getattr__(self, name: str) -> Any:
        """A field of the first row."""
        if name in _OF_A_ROW:
            return self.rows[0][name]
        raise AttributeError(f"a release has no {name!r}")

    def __getitem__(self, name: str) -> Release:
        """The row of this name, as a release of its own."""
        for row in self.rows:
            if row["name"] == name:
                return Release(self.key, self.t, self.at_microseconds, [row])
        known = ", ".join(repr(row["name"]) for row in self.rows)
        raise ParameterError("name", f"one of {known}", name)

    def noise_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Covers the statistic of the *clipped* values with this probability: the noise alone.

        With a noisy count it need not lie evenly around the value, and while that count is too
        small to say anything it is the clipping range.  That of a quantile is the one for 95 %,
        which also covers with any smaller probability.
        """
        numbers = np.array([self.rows[0][name] for name in FOR_NOISE_INTERVAL])
        low, high = noise_interval(confidence, self.noise_law, *numbers)
        return float(low), float(high)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Covers the statistic of the *unclipped* values with this probability: noise and clipping.

        If values beyond the clipping range have the tail that ``tail`` says.  Not known (NaN) where
        nothing says how much is clipped.  Of a quantile that may lie beyond the outermost edge it
        has no end there.
        """
        numbers = np.array([self.rows[0][name] for name in _FOR_INTERVAL])
        low, high = _interval(confidence, self.noise_law, self.tail, *numbers)
        return float(low), float(high)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The records: one mapping for each row, with the names of JSON lines and SQL."""
        for row in self.rows:
            yield {field.name: self._plain(row, field) for field in FIELDS}

    def _plain(self, row: Mapping[str, Any], field: Field) -> Any:
        if field.name == "key":
            return list(self.key)
        if field.name == "t":
            return self.t
        if field.name == "at":
            return time_text(np.array([self.at_microseconds], "M8[us]"))[0]
        value = row[field.name]
        if field.kind == "number" and not math.isfinite(value):
            return None
        return list(value) if field.kind == "texts" else value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Release):
            return NotImplemented
        one, another = (
            [(release.key, release.t), *({**row, "at": None} for row in release)]
            for release in (self, other)
        )
        return one == another

    def __hash__(self) -> int:
        return hash((self.key, self.t))

    def __reduce__(self) -> tuple[Any, ...]:
        return Release, (self.key, self.t, self.at_microseconds, list(self.rows))

    def __repr__(self) -> str:
        low, high = self.noise_interval(0.95)
        of = f" of {self.key}" if self.key else ""
        more = f" and {len(self.rows) - 1} more" if len(self.rows) > 1 else ""
        clipped = "" if math.isnan(self.clip_upper) else f", clipped at {self.clip_upper:.6g}"
        value = f"no {self.name} yet" if math.isnan(self.value) else f"{self.value:.6g}"
        return (
            f"Release({self.name}{of} at t={self.t}: {value}{more}, "
            f"95 % noise interval [{low:.6g}, {high:.6g}]{clipped})"
        )

    if TYPE_CHECKING:
        name: str
        value: float
        noise_std: float
        noise_covariance: float
        noise_slack: float
        noise_lower: float
        noise_upper: float
        sum: float
        sum_noise_std: float
        mean: float
        mean_noise_std: float
        count: float
        count_noise_std: float
        clip_lower: float
        clip_upper: float
        clipped_share: float
        clipping_below: float
        clipping_above: float
        noise_law: str
        post_processing: tuple[str, ...]
        tail: str


_OF_A_ROW: Final = frozenset(field.name for field in FIELDS) - {"key", "t", "at"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Releases:
    """Many releases of one plan, of one key or many, as columns; iterates as :class:`Release`.

    ``releases.value``, ``releases.noise_std``, … are arrays with the first number of each release;
    ``releases["0.9"]`` are the releases with another number alone.  ``len`` counts releases.

    **Privacy.** Post-processing.

    Parameters
    ----------
    keys : tuple of keys
        The distinct keys.
    key_of : integer array
        For each release the index of its key in ``keys``.
    t : integer array
        Number of observations of each release.
    at : array
        The time of each release: microseconds since 1970 UTC, or NumPy's ``datetime64[us]``, as
        which it is kept.
    names : tuple of str
        The rows of each release.
    columns : mapping
        By the names of :data:`NUMBERS`, an array with one entry for each row (the rows of a release
        beside each other), or a function from its name and a slice of rows to that part of it.  A
        column that is left out is unknown.
    noise_law, post_processing, tail
        As in :class:`Release`.
    """

    __slots__ = (
        *("_columns", "at", "key_of", "keys", "names", "noise_law", "post_processing", "t"),
        "tail",
    )

    def __init__(
        self,
        keys: tuple[Key, ...],
        key_of: IntArray,
        t: IntArray,
        at: IntArray | TimeArray,
        names: tuple[str, ...],
        columns: Mapping[str, Column],
        noise_law: str,
        post_processing: tuple[str, ...] = (),
        tail: str = "unknown",
    ) -> None:
        self.keys, self.key_of, self.t, self.names = keys, key_of, t, names
        self.at: TimeArray = at.view("M8[us]")
        self.noise_law, self.post_processing, self.tail = noise_law, post_processing, tail
        self._columns: dict[str, Column] = dict(columns)
        rows = len(t) * len(names)
        lengths = [len(column) for column in self._columns.values() if not callable(column)]
        if not len(key_of) == len(at) == len(t) or lengths.count(rows) != len(lengths):
            raise ParameterError("columns", f"arrays of {rows} rows", lengths)

    # --- columns ---------------------------------------------------------------------------------

    def rows(self, name: str) -> NDArray[Any]:
        """A column with one entry for each row; NaN where a number is not known."""
        if name in ("t", "at"):
            whole: NDArray[Any] = getattr(self, name)
            return whole if len(self.names) == 1 else np.repeat(whole, len(self.names))
        if name == "name":
            return np.tile(np.array(self.names), len(self.t))
        if name not in NUMBERS:
            raise AttributeError(f"releases have no column {name!r}")
        column = self._columns.get(name)
        rows = len(self.t) * len(self.names)
        if column is None:  # not kept: releases are stored alike whoever has looked
            return np.full(rows, np.nan)
        if callable(column):
            self._columns[name] = column = _worked_out(column, name, slice(0, rows))
        return column

    def __getattr__(self, name: str) -> NDArray[Any]:
        """The first number of each release."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self.rows(name)[:: len(self.names)]

    def noise_interval(self, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Noise intervals, as :meth:`Release.noise_interval`."""
        numbers = (getattr(self, name) for name in FOR_NOISE_INTERVAL)
        return noise_interval(confidence, self.noise_law, *numbers)

    def interval(self, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Intervals for the unclipped values, as :meth:`Release.interval`."""
        numbers = (getattr(self, name) for name in _FOR_INTERVAL)
        return _interval(confidence, self.noise_law, self.tail, *numbers)

    def band(self, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """What to draw: intervals with an end, where something says how much is clipped."""
        low, high = self.noise_interval(confidence)
        below, above = self.interval(confidence)
        return np.where(np.isfinite(below), below, low), np.where(np.isfinite(above), above, high)

    @property
    def common(self) -> dict[str, Any]:
        """What is the same for all of them, by name."""
        return {name: getattr(self, name) for name in COMMON}

    # --- releases --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.t)

    def __iter__(self) -> Iterator[Release]:
        return self._each(slice(None))

    def latest(self) -> dict[Key, Release]:
        """The last release of each key."""
        last = np.full(len(self.keys), -1)
        last[self.key_of] = np.arange(len(self))
        return {release.key: release for release in self._each(last[last >= 0])}

    def _each(self, chosen: slice | IntArray) -> Iterator[Release]:
        width = len(self.names)
        numbers = [
            self.rows(name).reshape(-1, width)[chosen].reshape(-1).tolist() for name in NUMBERS
        ]
        events = zip(
            self.key_of[chosen].tolist(),
            self.t[chosen].tolist(),
            self.at[chosen].view(np.int64).tolist(),
            strict=True,
        )
        for index, (key, t, at) in enumerate(events):
            rows = [
                {
                    "name": name,
                    **{
                        number: column[index * width + row]
                        for number, column in zip(NUMBERS, numbers, strict=True)
                    },
                    **self.common,
                }
                for row, name in enumerate(self.names)
            ]
            yield Release(self.keys[key], t, at, rows)

    @overload
    def __getitem__(self, index: int) -> Release: ...
    @overload
    def __getitem__(self, index: slice | str) -> Releases: ...
    def __getitem__(self, index: int | slice | str) -> Release | Releases:
        """One release, some of them, or one number of each by its name."""
        if isinstance(index, str):
            return self._named(index)
        if isinstance(index, slice):
            return self._part(*index.indices(len(self)))
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(index)
        return next(iter(self._part(number, number + 1, 1)))

    def _part(self, start: int, stop: int, stride: int) -> Releases:
        if (start, stop, stride) == (0, len(self), 1):
            return self
        width = len(self.names)
        columns: dict[str, Column] = {}
        for name, column in self._columns.items():
            if stride == 1:
                part = slice(start * width, max(start, stop) * width)
                # Only what is asked for is worked out: of a long block often the last alone.
                columns[name] = (
                    _worked_out(column, name, part) if callable(column) else column[part]
                )
            else:
                whole = self.rows(name).reshape(-1, width)
                columns[name] = whole[start : stop if stop >= 0 else None : stride].reshape(-1)
        index = slice(start, stop if stop >= 0 else None, stride)
        return Releases(
            self.keys,
            self.key_of[index],
            self.t[index],
            self.at[index],
            self.names,
            columns,
            **self.common,
        )

    def _named(self, name: str) -> Releases:
        if name not in self.names:
            raise ParameterError("name", f"one of {', '.join(map(repr, self.names))}", name)
        row, width = self.names.index(name), len(self.names)
        columns = {number: self.rows(number)[row::width] for number in self._columns}
        return Releases(self.keys, self.key_of, self.t, self.at, (name,), columns, **self.common)

    def __repr__(self) -> str:
        return (
            f"Releases({len(self):,} of {', '.join(self.names[:3])}"
            f"{', …' if len(self.names) > 3 else ''}, {len(self.keys):,} keys)"
        )

    # --- several together ------------------------------------------------------------------------

    @staticmethod
    def join(parts: Sequence[Releases], arrivals: Sequence[IntArray] | None = None) -> Releases:
        """Releases of one plan that follow each other, or in the order of ``arrivals``.

        ``arrivals`` has for each release of each part a number that grows with the order of
        publication, as the index of the observation that completed it.  Equal numbers keep the
        order of the parts, so that the result does not depend on how the input was cut into
        blocks.  Keys come in the order in which they first appear; where all parts know the very
        same keys, these stay, in their order.
        """
        if not parts:
            raise ParameterError("parts", "at least one", parts)
        first = parts[0]
        for part in parts:
            if (part.names, part.common) != (first.names, first.common):
                raise ParameterError("parts", f"releases of one plan, {first.common}", part.common)
        if len(parts) == 1 and arrivals is None:
            return first
        keys, key_of = _keys_together(parts)
        t = np.concatenate([part.t for part in parts])
        at = np.concatenate([part.at for part in parts])
        present = [name for name in NUMBERS if any(name in part._columns for part in parts)]
        columns: dict[str, Column]
        width = len(first.names)
        if arrivals is None:
            columns = dict.fromkeys(present, _joined(parts))
        else:
            order = np.argsort(np.concatenate(arrivals), kind="stable")
            row_order = order
            if width > 1:
                row_order = (order[:, None] * width + np.arange(width)).reshape(-1)
            # Part by part: what it took to work out the columns of one is gone before the next.
            rows_of = [[part.rows(name) for name in present] for part in parts]
            joined: dict[tuple[int, ...], NDArray[Any]] = {}
            columns = {}
            for name, rows in zip(present, zip(*rows_of, strict=True), strict=True):
                same = tuple(map(id, rows))  # some are the same number by two names
                if same not in joined:
                    joined[same] = np.concatenate(rows)[row_order]
                columns[name] = joined[same]
            t, at = t[order], at[order]
            key_of = key_of[order]
            if keys is not first.keys:
                keys, key_of = renumbered(keys, key_of)
        return Releases(keys, key_of, t, at, first.names, columns, **first.common)

    def compact(self) -> Releases:
        """The same releases, knowing their own keys only; a slice knows those of the whole."""
        seen = np.zeros(len(self.keys), bool)
        seen[self.key_of] = True
        if seen.all():
            return self
        keys, key_of = renumbered(self.keys, self.key_of)
        return Releases(keys, key_of, self.t, self.at, self.names, self._columns, **self.common)

    def by_key(self, column: NDArray[Any]) -> NDArray[Any] | None:
        """The value that a column of rows has for each key, or None if it changes within one."""
        key_of = self.key_of if len(self.names) == 1 else np.repeat(self.key_of, len(self.names))
        return _by(key_of, len(self.keys), column)

    # --- other forms -----------------------------------------------------------------------------

    def to_pandas(self) -> pd.DataFrame:
        """One row for each record, with its names."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtra("pandas", "data") from None
        width = len(self.names)
        columns: dict[str, Any] = {}
        for field in FIELDS:
            if field.name == "key":
                if self.keys not in ((), ((),)):
                    parts = (key[0] if len(key) == 1 else key for key in self.keys)
                    shown = np.fromiter(parts, object, len(self.keys))
                    columns["key"] = np.repeat(shown[self.key_of], width).tolist()
            elif field.common:
                value = self.common[field.name]
                columns[field.name] = ", ".join(value) if field.kind == "texts" else value
            elif field.kind == "time":
                columns[field.name] = pd.Series(self.rows(field.name)).dt.tz_localize("UTC")
            else:
                columns[field.name] = self.rows(field.name)
        return pd.DataFrame(columns)

    def to_arrow(self, names: Sequence[str] = ()) -> pa.Table:
        """One row for each record, with its names, or only these; unknown numbers are null."""
        try:
            import pyarrow as pa
        except ImportError:
            raise MissingExtra("pyarrow", "parquet") from None
        width, rows = len(self.names), len(self) * len(self.names)
        columns: dict[str, Any] = {}
        for field in FIELDS:
            if names and field.name not in names:
                continue
            if field.kind == "key":
                columns[field.name] = _shown_keys(self.keys).take(np.repeat(self.key_of, width))
            elif field.name == "name":
                columns[field.name] = pa.array(self.names).take(
                    np.tile(np.arange(width), len(self))
                )
            elif field.kind == "texts":
                texts = pa.array(self.common[field.name], pa.string())
                offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(texts))
                whole = texts.take(np.tile(np.arange(len(texts)), rows))
                columns[field.name] = pa.ListArray.from_arrays(offsets, whole)
            elif field.common:
                columns[field.name] = pa.repeat(pa.scalar(self.common[field.name]), rows)
            elif field.kind == "time":
                columns[field.name] = pa.array(self.rows(field.name), pa.timestamp("us", "UTC"))
            else:
                column = self.rows(field.name)
                known = np.isfinite(column)
                columns[field.name] = pa.array(column, mask=None if known.all() else ~known)
        return pa.table(columns)

    def to_polars(self) -> pl.DataFrame:
        """One row for each record, with its names; unknown numbers are null."""
        import polars as pl

        width, rows = len(self.names), len(self) * len(self.names)
        columns: dict[str, Any] = {}
        for field in FIELDS:
            if field.kind == "key":
                shown = [key_shown(key) for key in self.keys]
                if not all(isinstance(key, int) for key in shown):
                    shown = list(map(str, shown))
                columns[field.name] = pl.Series(shown).gather(np.repeat(self.key_of, width))
            elif field.common:
                columns[field.name] = pl.Series([self.common[field.name]]).new_from_index(0, rows)
            elif field.kind == "time":
                columns[field.name] = pl.Series(self.rows(field.name)).dt.replace_time_zone("UTC")
            else:
                columns[field.name] = pl.Series(self.rows(field.name), nan_to_null=True)
        return pl.DataFrame(columns)

    def to_bytes(self, known: tuple[Key, ...] | None = None) -> bytes:
        """Everything, compactly: equal releases give equal bytes, whatever other keys they know.

        ``known`` are keys that the reader has as well, all of theirs among them: their texts are
        left out then.

        The layout: ``rilletRT``, version and length of the header as unsigned 32-bit numbers, the
        header in JSON, the arrays that it lists, the CRC-32 of all before it; all little-endian.
        A column that never changes is stored as one number, one that never changes within a key or
        a t as one for each of these, and one that follows from others by their names
        (:func:`origins`).
        """
        if known is None:
            keys, key_of = renumbered(self.keys, self.key_of)
        else:
            keys, key_of = known, _indices_in(known, self.keys)[self.key_of]
        own = Releases(keys, key_of, self.t, self.at, self.names, self._columns, **self.common)
        listed: list[tuple[str, str, str]] = []
        arrays: list[bytes] = []
        for name, column in (("key_of", key_of), ("t", self.t)):
            kind = np.min_scalar_type(int(column.max(initial=0))).newbyteorder("<").str
            listed.append((name, kind, "release"))
            arrays.append(column.astype(kind).tobytes())
        moments = own.at.view(np.int64).astype("<i8")
        one = _is_constant(moments)  # a block, released at once
        listed.append(("at", "<i8", "all" if one else "release"))
        arrays.append(moments[:1].tobytes() if one else moments.tobytes())
        columns = {
            name: np.ascontiguousarray(own.rows(name)) for name in NUMBERS if name in self._columns
        }
        found, (cell_of, cells) = origins(columns, own.rows("t")), _cells(self.t, len(self.names))
        derived: list[tuple[str, str, str]] = []
        for name, (origin, divided) in found.items():
            if origin != name:
                derived.append((name, "ratio" if divided else "same", origin))
                continue
            column = columns[name]
            if _is_constant(column):
                by, column = "all", column[:1]
            elif 2 * cells <= len(column) and (short := _by(cell_of, cells, column)) is not None:
                by, column = "t", short
            elif (short := own.by_key(column)) is not None:
                by, column = "key", short
            else:
                by = "row"
            listed.append((name, "<f8", by))
            arrays.append(column.astype("<f8", copy=False).tobytes())
        header = json.dumps(
            {
                "releases": len(own),
                "keys": keys if known is None else None,
                "names": self.names,
                **self.common,
                "columns": listed + derived,
            },
            separators=(",", ":"),
        ).encode("ascii")
        parts = [_MAGIC, _START.pack(_VERSION, len(header)), header, *arrays]
        check = 0
        for part in parts:
            check = zlib.crc32(part, check)
        return b"".join([*parts, _CHECK.pack(check)])

    @staticmethod
    def from_bytes(content: bytes, known: tuple[Key, ...] | None = None) -> Releases:
        """What :meth:`to_bytes` wrote, exactly, given the keys that it was told are known.

        Raises
        ------
        StateError
            If the bytes are damaged, or of a version that this one does not know.
        """
        start = len(_MAGIC) + _START.size
        if content[: len(_MAGIC)] != _MAGIC or len(content) < start + _CHECK.size:
            raise StateError(
                "stored releases: expected bytes that begin with rilletRT, found others; "
                "restore them from a backup"
            )
        version, size = _START.unpack_from(content, len(_MAGIC))
        if version != _VERSION:
            raise StateError(
                f"stored releases: expected version {_VERSION}, found {version}; "
                "read them with the version of rillet that wrote them, or with a later one"
            )
        end = len(content) - _CHECK.size
        if zlib.crc32(memoryview(content)[:end]) != _CHECK.unpack_from(content, end)[0]:
            raise StateError(
                "stored releases: expected what was written, found other bytes (the check sum "
                "differs); restore them from a backup"
            )
        header = json.loads(content[start : start + size])
        if (header["keys"] is None) != (known is not None):
            raise StateError(
                "stored releases: expected to be read as they were written, with the same keys "
                "known or none, found otherwise"
            )
        keys = tuple(map(tuple, header["keys"])) if known is None else known
        names = tuple(header["names"])
        count, offset = header["releases"], start + size
        arrays: dict[str, NDArray[Any]] = {}
        for name, kind, by in header["columns"]:
            if kind in ("same", "ratio"):
                t = np.repeat(arrays["t"], len(names)).astype(np.float64)
                origin = t if by == "t" else arrays[by]
                with np.errstate(all="ignore"):
                    arrays[name] = origin / t if kind == "ratio" else origin
                continue
            rows = {"all": 1, "release": count, "row": count * len(names), "key": len(keys)}
            cell_of, rows["t"] = _cells(arrays["t"], len(names)) if by == "t" else (None, 0)
            found = np.frombuffer(content, kind, rows[by], offset)
            offset += found.nbytes
            if by == "key":
                found = found[np.repeat(arrays["key_of"], len(names))]
            elif by == "t":
                found = found[cell_of]
            elif by == "all":
                found = np.broadcast_to(found, count * (len(names) if name in NUMBERS else 1))
            arrays[name] = found.astype(np.float64 if name in NUMBERS else np.int64)
        return Releases(
            keys,
            arrays.pop("key_of"),
            arrays.pop("t"),
            arrays.pop("at"),
            names,
            arrays,
            header["noise_law"],
            tuple(header["post_processing"]),
            header["tail"],
        )

    if TYPE_CHECKING:
        value: FloatArray
        noise_std: FloatArray
        noise_covariance: FloatArray
        noise_slack: FloatArray
        noise_lower: FloatArray
        noise_upper: FloatArray
        sum: FloatArray
        sum_noise_std: FloatArray
        mean: FloatArray
        mean_noise_std: FloatArray
        count: FloatArray
        count_noise_std: FloatArray
        clip_lower: FloatArray
        clip_upper: FloatArray
        clipped_share: FloatArray
        clipping_below: FloatArray
        clipping_above: FloatArray


_MAGIC = b"rilletRT"
_VERSION = 4
#: After the magic: version, length of the header.
_START = struct.Struct("<II")
_CHECK = struct.Struct("<I")


def _is_constant(column: NDArray[Any]) -> bool:
    """Whether all numbers are the same, by their bits; not of an empty column."""
    bits = column.view(np.uint64)
    return len(bits) > 0 and bool(bits[0] == bits[-1]) and bool((bits == bits[0]).all())


def _by(number_of: IntArray, count: int, column: NDArray[Any]) -> NDArray[Any] | None:
    """The value that a column has for each of some numbers, or None if it changes within one."""
    values = np.zeros(count, column.dtype)
    values[number_of] = column
    bits = f"u{column.dtype.itemsize}"  # by their bits: unknown equals unknown
    constant = np.array_equal(values[number_of].view(bits), np.ascontiguousarray(column).view(bits))
    return values if constant else None


def _cells(t: IntArray, width: int) -> tuple[IntArray, int]:
    """For each row the number of its t and name, from the first t on, and how many there are."""
    first, last = (int(t.min()), int(t.max())) if len(t) else (0, -1)
    cell_of = t - first
    if width > 1:
        cell_of = np.add.outer(cell_of * width, np.arange(width)).ravel()
    return cell_of, (last - first + 1) * width


def origins(columns: Mapping[str, FloatArray], t: IntArray) -> dict[str, tuple[str, bool]]:
    """For each column the one that has its numbers, and whether they are to be divided by ``t``.

    A column often equals another, or ``t``, or another divided by ``t``; one that does not is its
    own.  Bit for bit: the same operation on the same doubles gives the same doubles.
    """
    times = t.astype(np.float64)
    distinct, heads = {"t": times}, {"t": _head(times)}
    same: dict[str, str] = {}
    for name, column in columns.items():
        head = _head(column)
        same[name] = next(
            (
                other
                for other, known in distinct.items()
                if heads[other] == head and _equal(column, known)
            ),
            name,
        )
        if same[name] == name:
            distinct[name], heads[name] = column, head
    del distinct["t"]
    divided: dict[str, str] = {}
    with np.errstate(all="ignore"):
        quotients = {name: _head(whole[:1] / times[:1]) for name, whole in distinct.items()}
        for name, column in distinct.items():
            for other, whole in distinct.items():
                # One that others follow from stays.
                if other == name or other in divided or name in divided.values():
                    continue
                if heads[name] == quotients[other] and _equal(column, whole / times):
                    divided[name] = other
                    break
    return {name: (divided.get(own, own), own in divided) for name, own in same.items()}


def _head(column: FloatArray) -> list[int]:
    """The bits of the first number, if there is one: most columns differ in it."""
    head: list[int] = column[:1].view(np.uint64).tolist()
    return head


def _equal(one: FloatArray, other: FloatArray) -> bool:
    """Whether two columns are the same, bit for bit."""
    return np.array_equal(one.view(np.uint64), other.view(np.uint64))


#: What works out columns remembers what it was asked last, and several sinks ask.
_working: Final = threading.RLock()


def _worked_out(
    column: Callable[[str, slice], NDArray[Any]], name: str, part: slice
) -> NDArray[Any]:
    """A part of a column, worked out by one thread at a time."""
    with _working:
        return column(name, part)


def _joined(parts: Sequence[Releases]) -> Column:
    """Columns of several parts, worked out when asked for; cheap for the end alone."""

    def column(name: str, part: slice) -> NDArray[Any]:
        last = parts[-1]
        rows = sum(len(each.t) for each in parts) * len(last.names)
        start = rows - len(last.t) * len(last.names)
        known = last._columns.get(name)
        if part.start >= start and callable(known):
            return known(name, slice(part.start - start, part.stop - start))
        return np.concatenate([each.rows(name) for each in parts])[part]

    return column


def _keys_together(parts: Sequence[Releases]) -> tuple[tuple[Key, ...], IntArray]:
    """The keys of several parts, and for each release the index of its own."""
    keys = parts[0].keys
    if all(part.keys is keys for part in parts):
        return keys, np.concatenate([part.key_of for part in parts])
    indices: dict[Key, int] = {}
    own = (
        np.array([indices.setdefault(key, len(indices)) for key in part.keys], np.int64)
        for part in parts
    )
    key_of = [index[part.key_of] for index, part in zip(own, parts, strict=True)]
    return tuple(indices), np.concatenate(key_of)


def _indices_in(known: tuple[Key, ...], keys: tuple[Key, ...]) -> IntArray:
    """Where each key is among known ones."""
    if known is keys:
        return np.arange(len(keys))
    indices = {key: index for index, key in enumerate(known)}
    return np.array([indices[key] for key in keys], np.int64)


#: Keys that were shown lately, and how, by the first of them and their number: a fleet's are the
#: same at every tick, and so are those of each of several groups.
_SHOWN: dict[tuple[Key, int], tuple[tuple[Key, ...], Any]] = {}
_MOST_SHOWN: Final = 64


def _shown_keys(keys: tuple[Key, ...]) -> pa.Array:
    """Keys as cells of an Arrow table: numbers if all of them are, else text."""
    import pyarrow as pa

    name = keys[0] if keys else (), len(keys)
    known, shown = _SHOWN.get(name, ((), None))
    if shown is None or (known is not keys and known != keys):
        cells = list(map(key_shown, keys))
        if not all(isinstance(cell, int) for cell in cells):
            cells = list(map(str, cells))
        shown = pa.array(cells)
        if len(_SHOWN) >= _MOST_SHOWN:
            _SHOWN.clear()
        _SHOWN[name] = keys, shown
    return shown


def renumbered(keys: tuple[Key, ...], key_of: IntArray) -> tuple[tuple[Key, ...], IntArray]:
    """The keys that appear, in the order in which they do."""
    unseen = len(key_of)
    first = np.full(len(keys), unseen)
    first[key_of[::-1]] = np.arange(unseen)[::-1]  # the last assignment is the first appearance
    order = np.argsort(first, kind="stable")[: int(np.count_nonzero(first < unseen))]
    new = np.empty(len(keys), np.int64)
    new[order] = np.arange(len(order))
    return tuple(keys[index] for index in order.tolist()), new[key_of]
