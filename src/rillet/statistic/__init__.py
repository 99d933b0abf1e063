"""Statistics: what a release reports as its ``value``.  All are post-processing of noisy sums."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar


class Statistic(ABC):
    """A public, frozen description; the subclasses are frozen dataclasses."""

    #: Tag in JSON.
    name: ClassVar[str]


@dataclass(frozen=True)
class Mean(Statistic):
    """The running average: noisy sum divided by the public number of observations."""

    name: ClassVar[str] = "mean"


@dataclass(frozen=True)
class Sum(Statistic):
    """The running sum."""

    name: ClassVar[str] = "sum"


STATISTICS: dict[str, type[Statistic]] = {kind.name: kind for kind in (Mean, Sum)}

__all__ = ["STATISTICS", "Mean", "Statistic", "Sum"]
