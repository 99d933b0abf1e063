"""What all experiments share: the stand-in data, loaded once, and how much work to do.

**Privacy.** Public and simulated data only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rillet import datasets
from rillet.paper.tails import Diagnosis, diagnose
from rillet.reproduce.paper_values import PAPER_RUNS, TABLE_1, TABLE_2, PaperRow

__all__ = ["Context", "StandIn"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BASKETS_LENGTH = 150_000


@dataclass(frozen=True, eq=False)
class StandIn:
    """A public stream that stands in for one of the paper's, or goes beyond them.

    ``table`` holds the rows of the paper's table for the stream it stands in for, if any.
    """

    name: str
    label: str
    quantity: str
    unit: str
    upper: float
    values: FloatArray = field(repr=False)
    table: tuple[PaperRow, ...] = ()

    @property
    def length(self) -> int:
        """How many observations, n."""
        return int(self.values.size)

    @property
    def axis(self) -> str:
        """Label of an axis, with the unit."""
        return f"{self.quantity} ({self.unit})"

    @cached_property
    def ordered(self) -> FloatArray:
        """The values, sorted."""
        ordered = np.sort(self.values)
        ordered.setflags(write=False)
        return ordered

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Tests and curves of the tail."""
        return diagnose(self.ordered)


@dataclass
class Context:
    """How much to compute, and whom to tell how far it is.

    Parameters
    ----------
    quick : bool
        Fewer runs and coarser curves, for a result within two minutes.
    tell : callable
        Called with a few words before each longer step.
    """

    quick: bool = False
    tell: Callable[[str], None] = lambda _: None

    _memory: dict[str, Any] = field(default_factory=dict, repr=False)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What ``make`` returns, made once and shared by the experiments that need it."""
        if name not in self._memory:
            self._memory[name] = make()
        return self._memory[name]

    def pick(self, full: int, quick: int) -> int:
        """The one or the other."""
        return quick if self.quick else full

    @property
    def runs(self) -> int:
        """Runs of a whole mechanism at step n: as many as the paper, or a quarter of them."""
        return self.pick(PAPER_RUNS, PAPER_RUNS // 4)

    @cached_property
    def trips(self) -> StandIn:
        """Simulated commutes, for the paper's train trips."""
        self.tell("simulating 25,000,000 trips")
        values = datasets.trips()
        values.setflags(write=False)
        return StandIn("trips", "Trips", "trip time", "minutes", 1440.0, values, TABLE_1)

    @cached_property
    def baskets(self) -> StandIn:
        """Baskets of The Complete Journey, for the paper's supermarket."""
        self.tell("loading baskets")
        values = datasets.load("baskets").values[:BASKETS_LENGTH]
        return StandIn("baskets", "Baskets", "basket total", "dollars", 3000.0, values, TABLE_2)

    @cached_property
    def _flights(self) -> tuple[FloatArray, NDArray[np.datetime64]]:
        self.tell("loading flights")
        return datasets.flights_with_time()

    @cached_property
    def flights(self) -> StandIn:
        """Air times out of New York in 2013."""
        return StandIn("flights", "Flights", "air time", "minutes", 1440.0, self._flights[0])

    @cached_property
    def flight_hours(self) -> IntArray:
        """Hour of the scheduled departure, local."""
        return self._flights[1].astype("datetime64[h]").astype(np.int64) % 24

    @cached_property
    def flight_weekdays(self) -> IntArray:
        """Weekday of the scheduled departure; Monday is 0."""
        return (self._flights[1].astype("datetime64[D]").astype(np.int64) + 3) % 7

    @cached_property
    def power(self) -> StandIn:
        """One household's power, minute by minute."""
        self.tell("loading household power")
        values = datasets.load("household_power").values
        return StandIn("household_power", "Household power", "power", "kW", 36.0, values)

    @property
    def all(self) -> tuple[StandIn, ...]:
        """Every stream."""
        return self.baskets, self.trips, self.flights, self.power
