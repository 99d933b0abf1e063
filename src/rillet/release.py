"""Releases: the public records that a stream gives out.

**Privacy.** Everything here is post-processing of noisy values: it may be shown to anybody.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from rillet.errors import MissingExtra, ParameterError

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str | int, ...]
FloatArray = NDArray[np.float64]


@lru_cache(maxsize=64)
def noise_deviations(confidence: float, law: str) -> float:
    """How many standard deviations of noise an interval needs.

    Gaussian noise is exact.  A sum of Laplace draws lies between a single Laplace draw and a
    Gaussian; the larger of the two multiples covers every such sum (a test measures it).
    """
    if not 0 < confidence < 1:
        raise ParameterError("confidence", "a number between 0 and 1", confidence)
    gaussian = -float(ndtri((1 - confidence) / 2))
    return gaussian if law == "gaussian" else max(gaussian, -math.log1p(-confidence) / math.sqrt(2))


class Release:
    """One release: the noisy running sum and mean after ``t`` observations.

    Attributes
    ----------
    key : tuple
        The stream's declared key.
    t : int
        Number of observations.
    sum, sum_noise_std, mean, mean_noise_std : float
        Noisy values and the standard deviation of their noise.  Clipping bias is not in it.
    threshold, clip_lower : float
        The clipping range in force: values were clipped to [clip_lower, threshold].
    clipped_share : float
        Estimated share of values beyond the range, from released counts; NaN where none are kept.
    statistic : str
        Which of them ``value`` and ``noise_std`` are.
    noise_law : str
        ``"laplace"`` or ``"gaussian"``.
    post_processing : tuple of str
        What was done to the decoded sum, if anything.
    """

    __slots__ = (
        "_unit_std",
        "clip_lower",
        "clipped_share",
        "key",
        "noise_law",
        "post_processing",
        "statistic",
        "sum",
        "t",
        "threshold",
    )

    def __init__(
        self,
        key: Key,
        t: int,
        sum: float,  # noqa: A002 - the public name
        unit_std: float,
        threshold: float,
        clip_lower: float,
        clipped_share: float,
        statistic: str,
        noise_law: str,
        post_processing: tuple[str, ...] = (),
    ) -> None:
        self.key = key
        self.t = t
        self.sum = sum
        self._unit_std = unit_std
        self.threshold = threshold
        self.clip_lower = clip_lower
        self.clipped_share = clipped_share
        self.statistic = statistic
        self.noise_law = noise_law
        self.post_processing = post_processing

    @property
    def mean(self) -> float:
        """Noisy average."""
        return self.sum / self.t

    @property
    def sum_noise_std(self) -> float:
        """Standard deviation of the noise in ``sum``."""
        return self._unit_std * (self.threshold - self.clip_lower)

    @property
    def mean_noise_std(self) -> float:
        """Standard deviation of the noise in ``mean``."""
        return self._unit_std / self.t * (self.threshold - self.clip_lower)

    @property
    def value(self) -> float:
        """The plan's statistic."""
        return self.mean if self.statistic == "mean" else self.sum

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in ``value``."""
        return self.mean_noise_std if self.statistic == "mean" else self.sum_noise_std

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Noise interval: covers the statistic of the *clipped* values with this probability."""
        reach = noise_deviations(confidence, self.noise_law) * self.noise_std
        return self.value - reach, self.value + reach

    def to_record(self) -> dict[str, Any]:
        """The record of JSON lines, with the same names."""
        return {
            "key": list(self.key),
            "t": self.t,
            "value": self.value,
            "noise_std": self.noise_std,
            "sum": self.sum,
            "sum_noise_std": self.sum_noise_std,
            "mean": self.mean,
            "mean_noise_std": self.mean_noise_std,
            "threshold": self.threshold,
            "clip_lower": self.clip_lower,
            "clipped_share": None if math.isnan(self.clipped_share) else self.clipped_share,
            "statistic": self.statistic,
            "noise_law": self.noise_law,
            "post_processing": list(self.post_processing),
        }

    def _fields(self) -> tuple[object, ...]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        if math.isnan(self.clipped_share):  # unknown equals unknown
            fields["clipped_share"] = None
        return tuple(fields.values())

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, Release) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        low, high = self.interval(0.95)
        name = f" of {self.key}" if self.key else ""
        return (
            f"Release({self.statistic}{name} at t={self.t}: {self.value:.6g}, "
            f"95 % noise interval [{low:.6g}, {high:.6g}], clipped at {self.threshold:.6g})"
        )


class ReleaseColumns(ABC):
    """What follows from the columns of many releases, whatever stream each of them is of.

    **Privacy.** Post-processing.
    """

    t: NDArray[np.int64]
    sum: FloatArray
    threshold: FloatArray
    clip_lower: FloatArray
    clipped_share: FloatArray
    statistic: str
    noise_law: str
    post_processing: tuple[str, ...]

    if TYPE_CHECKING:  # a plain column in one class, worked out late in the other

        @property
        def unit_std(self) -> FloatArray:
            """Noise std of ``sum`` per unit of clipping range."""

    @abstractmethod
    def _keys(self) -> Iterable[Key]:
        """The key of each release; may go on for ever if it is always the same."""

    @property
    def common(self) -> dict[str, Any]:
        """What is the same for all of them, by name."""
        return {
            "statistic": self.statistic,
            "noise_law": self.noise_law,
            "post_processing": self.post_processing,
        }

    @property
    def mean(self) -> FloatArray:
        """Noisy averages."""
        return self.sum / self.t

    @property
    def sum_noise_std(self) -> FloatArray:
        """Standard deviations of the noise in ``sum``."""
        return self.unit_std * (self.threshold - self.clip_lower)

    @property
    def mean_noise_std(self) -> FloatArray:
        """Standard deviations of the noise in ``mean``."""
        return self.unit_std / self.t * (self.threshold - self.clip_lower)

    @property
    def value(self) -> FloatArray:
        """The plan's statistic."""
        return self.mean if self.statistic == "mean" else self.sum

    @property
    def noise_std(self) -> FloatArray:
        """Standard deviations of the noise in ``value``."""
        return self.mean_noise_std if self.statistic == "mean" else self.sum_noise_std

    def interval(self, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Noise intervals, as :meth:`Release.interval`."""
        reach = noise_deviations(confidence, self.noise_law) * self.noise_std
        return self.value - reach, self.value + reach

    def __len__(self) -> int:
        return len(self.t)

    def __iter__(self) -> Iterator[Release]:
        columns = (
            self.t,
            self.sum,
            self.unit_std,
            self.threshold,
            self.clip_lower,
            self.clipped_share,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for (t, total, unit_std, threshold, lower, clipped_share), key in zip(
            rows, self._keys(), strict=False
        ):
            yield Release(
                key,
                t,
                total,
                unit_std,
                threshold,
                lower,
                clipped_share,
                self.statistic,
                self.noise_law,
                self.post_processing,
            )

    def to_pandas(self) -> pd.DataFrame:
        """One row a release, with the names of the record."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtra("pandas", "data") from None
        names = [
            "t",
            "value",
            "noise_std",
            "sum",
            "sum_noise_std",
            "mean",
            "mean_noise_std",
            "threshold",
            "clip_lower",
            "clipped_share",
        ]
        return pd.DataFrame({name: getattr(self, name) for name in names})


@dataclass(frozen=True, eq=False)
class Releases(ReleaseColumns):
    """Many releases of one stream, as arrays; iterates as :class:`Release`.

    ``t``, ``sum`` and the derived ``mean``, ``value``, ``noise_std``, … are arrays of one length.
    """

    key: Key
    t: NDArray[np.int64]
    sum: FloatArray
    unit_std_or_later: FloatArray | Callable[[slice], FloatArray] = field(repr=False)
    threshold: FloatArray
    clip_lower: FloatArray
    clipped_share: FloatArray
    statistic: str
    noise_law: str
    post_processing: tuple[str, ...] = ()

    @cached_property
    def unit_std(self) -> FloatArray:
        """Noise std of ``sum`` per unit of clipping range; worked out when it is asked for."""
        return self._unit_std_in(slice(None))

    def _unit_std_in(self, place: slice) -> FloatArray:
        known = self.unit_std_or_later
        return known(place) if callable(known) else known[place]

    def _keys(self) -> Iterable[Key]:
        return repeat(self.key)

    @overload
    def __getitem__(self, place: int) -> Release: ...
    @overload
    def __getitem__(self, place: slice) -> Releases: ...
    def __getitem__(self, place: int | slice) -> Release | Releases:
        """One release, or some of them."""
        if isinstance(place, slice):
            return Releases(
                self.key,
                self.t[place],
                self.sum[place],
                self._unit_std_in(place),
                self.threshold[place],
                self.clip_lower[place],
                self.clipped_share[place],
                self.statistic,
                self.noise_law,
                self.post_processing,
            )
        return Release(
            self.key,
            int(self.t[place]),
            float(self.sum[place]),
            float(self._unit_std_in(slice(place, place + 1 or None))[0]),
            float(self.threshold[place]),
            float(self.clip_lower[place]),
            float(self.clipped_share[place]),
            self.statistic,
            self.noise_law,
            self.post_processing,
        )

    @staticmethod
    def join(parts: list[Releases]) -> Releases:
        """Releases of one stream that follow each other."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        return Releases(
            first.key,
            np.concatenate([part.t for part in parts]),
            np.concatenate([part.sum for part in parts]),
            _joined_unit_std(parts),
            np.concatenate([part.threshold for part in parts]),
            np.concatenate([part.clip_lower for part in parts]),
            np.concatenate([part.clipped_share for part in parts]),
            first.statistic,
            first.noise_law,
            first.post_processing,
        )


def _joined_unit_std(parts: list[Releases]) -> Callable[[slice], FloatArray]:
    """The noise of several parts, worked out when it is asked for; cheap for the last alone."""

    def unit_std(place: slice) -> FloatArray:
        if place == slice(-1, None) and len(parts[-1]):
            return parts[-1]._unit_std_in(place)
        return np.concatenate([part.unit_std for part in parts])[place]

    return unit_std
