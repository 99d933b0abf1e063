"""What the paper prints, with table and row: kept apart from everything that rillet computes.

Perrier, Asghar, Kaafar, "Private continual release of real-valued data streams", NDSS 2019 (PAK).
Figures are counted in the order in which they appear.

**Privacy.** Published numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "BANDS",
    "BETA",
    "CRITERIA",
    "DELTA",
    "EPSILON",
    "HEADLINE_LAG",
    "LARGEST_QUANTILE",
    "PAPER_RUNS",
    "TABLE_1",
    "TABLE_2",
    "Band",
    "PaperRow",
    "row_of",
]

#: Section VI-A: fixed for all experiments.
EPSILON: Final = 1.0
DELTA: Final = 2.0**-20
BETA: Final = 0.02
#: Section V-B, p_max.
LARGEST_QUANTILE: Final = 0.005
#: Section VII-A: lag and number of runs of the experiments.
HEADLINE_LAG: Final = 50_000
PAPER_RUNS: Final = 20_000
#: Section VI-B: the lags that the two criteria are said to ask for.
CRITERIA: Final = (20_000, 80_000)


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A row of Table I or II; the β's are shares of β.

    ``threshold_share`` 0 means: no gain, plain BT from the first observation.
    """

    lag: int
    improvement_factor: float
    multiplier: float
    rank_factor: float
    quantile: float
    threshold_share: float
    beta_qt: float
    beta_lt: float
    beta_lap: float
    beta_out: float
    beta_rt: float


#: Table I, "Optimized parameters for the train trips dataset", n = 25,000,000.
TABLE_1: Final = (
    PaperRow(40_000, 1.00, 1.00, 1.00, 0.0050, 0.00, 0.00, 0.00, 1.00, 0.00, 0.00),
    PaperRow(50_000, 2.32, 1.63, 0.85, 0.0050, 0.80, 0.09, 0.30, 0.41, 0.09, 0.09),
    PaperRow(60_000, 2.80, 1.49, 0.83, 0.0049, 0.90, 0.13, 0.23, 0.37, 0.13, 0.13),
    PaperRow(100_000, 3.69, 1.76, 0.87, 0.0048, 0.90, 0.07, 0.10, 0.68, 0.07, 0.07),
    PaperRow(300_000, 4.34, 1.91, 0.87, 0.0050, 0.79, 0.11, 0.11, 0.57, 0.11, 0.11),
)

#: Table II, "Optimized parameters for the supermarket dataset", n = 150,000.
TABLE_2: Final = (
    PaperRow(40_000, 1.00, 1.00, 1.00, 0.0050, 0.00, 0.00, 0.00, 1.00, 0.00, 0.00),
    PaperRow(50_000, 4.23, 1.00, 0.81, 0.0050, 0.82, 0.23, 0.19, 0.19, 0.19, 0.19),
    PaperRow(60_000, 4.86, 1.08, 0.82, 0.0049, 0.88, 0.15, 0.27, 0.27, 0.15, 0.15),
    PaperRow(100_000, 6.67, 1.11, 0.85, 0.0046, 0.81, 0.07, 0.07, 0.71, 0.07, 0.07),
)


@dataclass(frozen=True, slots=True)
class Band:
    """A value that the paper reports, and the band in which a reproduction must lie.

    The paper's data are not public, so a stand-in can only come near: the bands were set before
    the mechanisms were written.
    """

    paper: float
    low: float
    high: float
    where: str

    def holds(self, value: float) -> bool:
        """Whether a value lies in the band."""
        return self.low <= value <= self.high


#: Mean |error| at step n, BT over the mechanism, m = 50,000, 20,000 runs.
BANDS: Final = {
    "trips": Band(3.5, 3.5, 5.0, "section VII-A1, parameters of Table I, row m = 50,000"),
    "baskets": Band(9.0, 8.0, 11.0, "section VII-A2, parameters of Table II, row m = 50,000"),
}


def row_of(table: tuple[PaperRow, ...], lag: int) -> PaperRow:
    """The row of a table for one lag.

    Examples
    --------
    >>> row_of(TABLE_2, 50_000).improvement_factor
    4.23
    """
    return next(row for row in table if row.lag == lag)
