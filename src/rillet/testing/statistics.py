"""Statistical tests with exact p-values and one budget of false alarms for a whole suite.

Every check names itself and charges its α to a :class:`Budget` before it looks at the p-value;
a check that would overdraw the budget raises instead of running.  The probability that a correct
program fails anywhere in the suite is therefore at most the budget's total (union bound), which is
10⁻⁶ for :data:`SUITE`.

All p-values here are *valid*: under the hypothesis ``P(p ≤ α) ≤ α`` for every α and every sample
size.  They come from binomial, gamma and chi-square laws that hold exactly, never from a limit
theorem: at α = 10⁻⁹ the usual chi-square gate fails 19 times as often as it says even where 50
observations are expected in a cell (a test shows it).

**Privacy.** For tests and simulations only: touches no private data.

Examples
--------
>>> budget = Budget(1e-6)
>>> check("a fair coin", binomial_p_value(5021, 10_000, 0.5), budget=budget)
>>> check("a loaded coin", binomial_p_value(5900, 10_000, 0.5), budget=budget)
Traceback (most recent call last):
rillet.testing.statistics.StatisticalFailure: a loaded coin: p-value 9.6e-73 is below α = 1e-09
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammainc, gammaincc, gammaincinv
from scipy.stats import beta, binom, chi2

from rillet.errors import ParameterError

__all__ = [
    "SUITE",
    "Budget",
    "BudgetOverdrawn",
    "Fit",
    "StatisticalFailure",
    "binomial_p_value",
    "check",
    "clopper_pearson",
    "combine",
    "goodness_of_fit",
    "laplace_scale_p_value",
    "normal_scale_p_value",
    "sign_p_value",
]

#: Chance that a correct program fails any statistical test of the suite.
TOTAL_FALSE_ALARM: Final = Fraction(1, 10**6)
#: What a check takes unless it names another α: room for a thousand checks.
DEFAULT_ALPHA: Final = Fraction(1, 10**9)


# --- The budget ----------------------------------------------------------------------------------


class StatisticalFailure(AssertionError):
    """A measured result that a correct program gives with probability below α."""


class BudgetOverdrawn(AssertionError):
    """A check would bring the suite's chance of a false alarm above its budget."""


@dataclass
class Budget:
    """False-alarm budget of a test suite: what each check may cost, and what all have cost.

    Parameters
    ----------
    total
        Largest chance that a correct program fails any check charged here.
    default_alpha
        What a check is charged unless it says otherwise.
    """

    total: Fraction | float = TOTAL_FALSE_ALARM
    default_alpha: Fraction | float = DEFAULT_ALPHA
    _charged: list[tuple[str, Fraction]] = field(default_factory=list)

    def charge(self, name: str, alpha: Fraction | float | None = None) -> float:
        """Charge one check; return its α.  A name that runs twice is charged twice."""
        share = Fraction(self.default_alpha if alpha is None else alpha)
        if not 0 < share < 1:
            raise ParameterError("alpha", "a number between 0 and 1", alpha)
        if self.spent + share > Fraction(self.total):
            raise BudgetOverdrawn(
                f"{name}: α = {float(share):g} would bring {len(self._charged)} checks to "
                f"{float(self.spent + share):g}, beyond the budget of {float(self.total):g}; "
                "give checks a smaller α, or merge some"
            )
        self._charged.append((name, share))
        return float(share)

    @property
    def spent(self) -> Fraction:
        """Sum of all α charged so far."""
        return sum((share for _, share in self._charged), Fraction(0))

    @property
    def checks(self) -> Sequence[tuple[str, Fraction]]:
        """Every check with its α, in order."""
        return tuple(self._charged)


def _share_of_process() -> Fraction:
    """The budget of this process: the whole, or a worker's part when pytest-xdist runs several."""
    return TOTAL_FALSE_ALARM / max(1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


#: The budget of rillet's own suite; each parallel worker holds an equal part of it.
SUITE: Final = Budget(_share_of_process())


def check(
    name: str, p_value: float, *, alpha: Fraction | float | None = None, budget: Budget = SUITE
) -> None:
    """Fail when ``p_value`` is below the α that is charged for it.

    Raises
    ------
    StatisticalFailure
        A correct program does so with probability at most α.
    BudgetOverdrawn
        The budget has no room for this check.
    """
    level = budget.charge(name, alpha)
    if not p_value >= level:  # also NaN
        raise StatisticalFailure(f"{name}: p-value {p_value:.2g} is below α = {level:g}")


# --- Counts --------------------------------------------------------------------------------------


def binomial_p_value(
    successes: ArrayLike, trials: ArrayLike, low: ArrayLike, high: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Exact two-sided p-value of a count, for a success probability in ``[low, high]``.

    Twice the smaller tail, at most 1 (valid for every sample size, a little conservative).  When
    the probability is known only up to an interval, the end that makes each tail larger counts.

    References
    ----------
    C. J. Clopper, E. S. Pearson (1934), Biometrika 26; tails by the incomplete beta function.
    """
    count, out_of = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    smallest = np.asarray(low, np.float64)
    largest = smallest if high is None else np.asarray(high, np.float64)
    at_most = binom.cdf(count, out_of, smallest)
    at_least = binom.sf(count - 1, out_of, largest)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(at_most, at_least)))


def clopper_pearson(successes: int, trials: int, alpha: float) -> tuple[float, float]:
    """Interval that holds the success probability with confidence at least ``1 − alpha``."""
    low = 0.0 if successes == 0 else beta.ppf(alpha / 2, successes, trials - successes + 1)
    high = 1.0
    if successes < trials:
        high = beta.ppf(1 - alpha / 2, successes + 1, trials - successes)
    return float(low), float(high)


def sign_p_value(values: ArrayLike) -> float:
    """Exact sign test: are positive and negative values equally likely?  Zeros are left out.

    For independent symmetric ``x`` and ``y`` the product ``x·y`` must pass: a test of correlation.
    """
    signs = np.sign(np.asarray(values))
    positive, negative = int(np.sum(signs > 0)), int(np.sum(signs < 0))
    return float(binomial_p_value(positive, positive + negative, 0.5))


@dataclass(frozen=True)
class Fit:
    """How well counts fit probabilities.

    ``p_value`` decides.  ``pearson`` and ``cells`` describe: Pearson's X² over the cells in which
    at least five are expected, and how many these are.
    """

    p_value: float
    pearson: float
    cells: int


def goodness_of_fit(counts: ArrayLike, probabilities: ArrayLike) -> Fit:
    """Exact test that ``counts`` are multinomial with the given cell ``probabilities``.

    The cells are split in two halves of about equal probability, each half again, and so on.  Given
    the count of a node, the count of its left half is binomial, whatever happened elsewhere: the
    exact binomial p-values of the splits are, one after the other, valid given those before.
    Fisher's combination of the splits of one level is then valid for every sample size, without
    pooling, and so is the least over the levels times their number: coarse levels see smooth
    deviations, such as a wrong scale.  The least p-value of a single split times the number of
    splits sees single cells.  Twice the smaller of the two is returned.

    Parameters
    ----------
    counts, probabilities
        One entry a cell; the probabilities sum to 1 (within 10⁻⁹).

    References
    ----------
    R. A. Fisher (1932), Statistical Methods for Research Workers, section 21.1.
    """
    observed = np.asarray(counts, np.int64)
    expected = np.asarray(probabilities, np.float64)
    if observed.shape != expected.shape or observed.ndim != 1 or len(observed) < 2:
        raise ParameterError("counts", "as many counts as probabilities, at least 2", counts)
    if not np.all(expected >= 0) or not abs(expected.sum() - 1) < 1e-9:
        raise ParameterError("probabilities", "numbers that sum to 1", float(expected.sum()))
    total = int(observed.sum())
    splits = [binomial_p_value(*level) for level in _split_levels(observed, expected)]
    by_level = len(splits) * min((combine(level) for level in splits), default=1.0)
    single = sum(map(len, splits)) * min((float(level.min()) for level in splits), default=1.0)
    p_value = min(1.0, 2 * min(by_level, single))
    full = expected * total >= 5
    pearson = np.sum((observed[full] - expected[full] * total) ** 2 / (expected[full] * total))
    return Fit(p_value, float(pearson), int(full.sum()))


def _split_levels(
    observed: NDArray[np.int64], expected: NDArray[np.float64]
) -> Iterator[tuple[list[int], list[int], list[float]]]:
    """For every level of splits: counts on the left, counts of the nodes, shares of the left."""
    mass_before = np.concatenate(([0.0], np.cumsum(expected)))
    nodes = [(0, len(observed))]
    while nodes:
        left: list[int] = []
        trials: list[int] = []
        shares: list[float] = []
        halves = []
        for first, last in nodes:
            middle_mass = (mass_before[first] + mass_before[last]) / 2
            middle = first + 1 + int(np.searchsorted(mass_before[first + 1 : last], middle_mass))
            middle = min(middle, last - 1)
            halves += [(first, middle), (middle, last)]
            # Summed afresh: differences of running sums would cancel in the tails.
            mass = float(expected[first:last].sum())
            if mass > 0:
                left.append(int(observed[first:middle].sum()))
                trials.append(int(observed[first:last].sum()))
                shares.append(min(1.0, float(expected[first:middle].sum()) / mass))
        if left:
            yield left, trials, shares
        nodes = [(first, last) for first, last in halves if last - first > 1]


def combine(p_values: ArrayLike) -> float:
    """Fisher's combination of p-values that are valid one after the other.

    ``−2 Σ ln p`` is then at most a chi-square variable with two degrees of freedom for each.
    """
    p = np.asarray(p_values, np.float64)
    if p.size == 0:
        return 1.0
    with np.errstate(divide="ignore"):
        return float(chi2.sf(-2 * np.log(p).sum(), 2 * p.size))


# --- Scales --------------------------------------------------------------------------------------


def normal_scale_p_value(values: ArrayLike, std: float, *, error: float = 0.0) -> float:
    """Exact two-sided p-value: independent draws of N(0, std²).

    ``Σ z²/std²`` has a chi-square law.  When each value was moved by at most ``error`` (by
    rounding, say) the norm of all moves by at most ``error·√n``, and the least extreme counts.
    """
    x = np.asarray(values, np.float64)
    norm, moved = float(np.linalg.norm(x)), error * x.size**0.5
    at_most = gammainc(x.size / 2, ((norm + moved) / std) ** 2 / 2)
    at_least = gammaincc(x.size / 2, (max(norm - moved, 0.0) / std) ** 2 / 2)
    return float(min(1.0, 2 * min(at_most, at_least)))


def laplace_scale_p_value(values: ArrayLike, scale: float, *, error: float = 0.0) -> float:
    """Exact two-sided p-value: independent Laplace draws of this ``scale``.

    ``Σ |z|/scale`` has a gamma law; ``error`` as in :func:`normal_scale_p_value`.
    """
    x = np.abs(np.asarray(values, np.float64))
    size, moved = float(x.sum()), error * x.size
    at_most = gammainc(x.size, (size + moved) / scale)
    at_least = gammaincc(x.size, max(size - moved, 0.0) / scale)
    return float(min(1.0, 2 * min(at_most, at_least)))


def smallest_detectable_ratio(draws: int, alpha: float, power: float) -> float:
    """Ratio of standard deviations that :func:`normal_scale_p_value` finds with chance ``power``.

    For the power test beside a test: a ratio above this one is found at least so often.
    """
    gate = gammaincinv(draws / 2, 1 - alpha / 2)
    return float((gate / gammaincinv(draws / 2, 1 - power)) ** 0.5)
