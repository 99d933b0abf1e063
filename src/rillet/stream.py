"""One stream, for programs: feed it observations, take releases.

Everything runs through one pure function, :func:`rillet.step.step`; :class:`Stream` wraps it, with
a faster form for one observation at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from rillet.errors import NotReady, ParameterError
from rillet.layout import Layout
from rillet.noise import FloatArray, Secret
from rillet.privacy import Charges
from rillet.release import Key, Release, Releases
from rillet.scalar import ScalarRun
from rillet.step import StreamState, step

#: Scalar updates that are still being learned from are handed on in blocks of this many.
_PENDING: Final = 4096


class Stream:
    """A running stream: feed it observations, take releases.

    **Privacy.** ``update`` and ``update_many`` touch raw data; what they return is public.  The
    object holds unreleased data and a secret; its ``repr`` shows public numbers only.

    Get one from :meth:`rillet.Plan.open` or :meth:`rillet.Plan.resume`.
    """

    def __init__(self, layout: Layout, key: Key, state: StreamState) -> None:
        self._layout = layout
        self._key = key
        self._state = state
        self._raw_pending: list[float] = []
        self._scalar: ScalarRun | None = None

    def update(self, value: float) -> Release | None:
        """Absorb one observation; return the release that it completes, if any."""
        scalar = self._scalar
        if scalar is None:
            if self._state.t + len(self._raw_pending) < self._layout.lag:
                return self._learn_from(value)
            scalar = self._scalar = ScalarRun.begin(self._layout, self._key, self._settled())
            if scalar is None:  # this strategy has no scalar form, or the stream is full
                return self._update_block(value)
        if scalar.room == 0:
            self._settled()
            return self.update(value)
        return scalar.absorb(value if type(value) is float else _as_float(value))

    def update_many(self, values: ArrayLike | Iterable[object]) -> Releases:
        """Absorb many observations, in order: the same as the loop over :meth:`update`."""
        raw_block = as_observations(values)
        self._state, releases = step(self._layout, self._key, self._settled(), raw_block)
        return releases

    def release(self) -> Release:
        """The latest release again, the very same numbers."""
        latest = self._scalar.latest if self._scalar is not None else self._state.latest
        if latest is None:
            layout = self._layout
            first = layout.lag or min(layout.every, layout.length)
            raise NotReady(
                f"no release yet: the first comes after {first:,} observations, "
                f"and {self.t:,} have been absorbed"
            )
        return latest

    @property
    def t(self) -> int:
        """Number of observations absorbed."""
        ahead = len(self._raw_pending) if self._scalar is None else self._scalar.absorbed
        return self._state.t + ahead

    @property
    def key(self) -> Key:
        """The stream's declared key."""
        return self._key

    @property
    def secret(self) -> Secret:
        """The stream's own secret as it is now: :meth:`rillet.Plan.resume` takes it."""
        return self._settled().secret

    @property
    def charges(self) -> Charges:
        """What each observation has been charged so far."""
        return self._layout.charges().after(self.t)

    @property
    def backfill(self) -> Releases | None:
        """Releases for the first ``lag`` observations, when the plan has ``backfill=True``."""
        return self._state.backfill

    def snapshot(self) -> bytes:
        """The whole state, sealed under the stream's secret, for :meth:`rillet.Plan.resume`."""
        from rillet.state.snapshot import seal_state

        return seal_state(self._layout, self._key, self._settled())

    def __repr__(self) -> str:
        name = f" {self._key}" if self._key else ""
        return f"<Stream{name}: t={self.t:,}, {self._layout.guarantee}>"

    def _learn_from(self, value: float) -> Release | None:
        pending = self._raw_pending
        pending.append(_as_float(value))
        if len(pending) < _PENDING and self._state.t + len(pending) < self._layout.lag:
            return None
        self._settled()
        return self._state.latest

    def _update_block(self, value: float) -> Release | None:
        before = self._state.latest
        raw_block = np.array([_as_float(value)])
        self._state, _ = step(self._layout, self._key, self._state, raw_block)
        return None if self._state.latest is before else self._state.latest

    def _settled(self) -> StreamState:
        """Bring the block state up to date with what scalar updates absorbed."""
        if self._raw_pending:
            raw_block = np.array(self._raw_pending)
            self._raw_pending = []
            self._state, _ = step(self._layout, self._key, self._state, raw_block)
        if self._scalar is not None:
            self._state = self._scalar.finish()
            self._scalar = None
        return self._state


def _as_float(value: object) -> float:
    """Any object becomes a float; what is not a real number becomes NaN, which is clipped later."""
    if isinstance(value, complex) or value is np.ma.masked:  # these would warn
        return float("nan")
    try:
        return float(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - an object's own conversion; whether it fails is private
        return float("nan")


def as_observations(values: ArrayLike | Iterable[object]) -> FloatArray:
    """A flat float array with one entry an observation, each as :meth:`Stream.update` takes it.

    **Privacy.** Touches raw data; total: never raises or warns because of a value.  Sets and
    mappings are refused: they have no order, and which kind a program passes is public.
    """
    if isinstance(values, (Set, Mapping)):
        kind = type(values).__name__
        raise ParameterError("values", "a sequence, an array or an iterator", f"a {kind}")
    if isinstance(values, Iterator):
        values = list(values)
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(object), np.nan)
    try:
        raw = np.asarray(values)
        if raw.dtype.kind in "biuf":
            with np.errstate(over="ignore"):  # a wider float may become infinite
                return np.ascontiguousarray(raw, np.float64).reshape(-1)
        raw_objects = np.asarray(values, object).reshape(-1).tolist()
    except Exception:  # noqa: BLE001 - ragged, or an object's own conversion
        raw_objects = list(values)  # type: ignore[arg-type]
    return np.array([_as_float(value) for value in raw_objects], np.float64)
