"""Is a data set light-tailed? Diagnostics for public or historical data (PAK, section V-B).

**Definition** (PAK, definition 7). A law is light-tailed beyond its p-quantile x_p if from there on
its survival function stays below that of the exponential law with the same p-quantile:
P(X > x) ≤ e^{−γx} for x ≥ x_p, γ = −ln p/x_p. All distances are from the lower bound A.

**Test.** A sample of an exactly exponential tail lies above the curve at some x almost always, so
the definition alone would reject the very case it is made from. What counts is whether the sample
lies further above than chance explains. With U_i = e^{−γ(x_i − x_p)} for the k values beyond x_p,
which are uniform at the edge of the definition and larger inside it, two exact tests are combined:
the one-sided Kolmogorov-Smirnov distance, which sees the body of the tail, and the largest ratio
of the empirical to the exponential survival function, which sees its end. The latter exceeds c
with probability 1/c (Daniels 1945).

**Use.** One far outlier among many is enough to leave the definition, and harmless: what the bound
needs is that clipping at r·x_p loses no more than PAK eq. 16 says. So that is measured as well.

**Privacy.** Everything here reads raw values and tells about them. The results are NOT private:
for data that are public, or historical and released for this purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import ksone

from rillet.errors import ParameterError
from rillet.paper.bounds import alpha_outlier_light_tailed, decimal_fraction
from rillet.threshold.smooth_sensitivity import quantile_rank

__all__ = [
    "QUANTILES",
    "Diagnosis",
    "QuantileCurve",
    "TailCheck",
    "Verdict",
    "check_tail",
    "diagnose",
    "quantile_curve",
]

FloatArray = NDArray[np.float64]
Verdict = Literal["light", "consistent with light", "heavier", "too few"]

#: The values of p that are tried for p_max and drawn as curves.
QUANTILES: Final = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_FEWEST: Final = 20
_LEVEL: Final = 0.01
_CURVE_POINTS: Final = 40
_MULTIPLIERS: Final = (1.0, 1.5, 2.0, 3.0)
_BETA: Final = 0.02

NOTICE: Final = (
    "NOT PRIVATE: computed from raw values. Use it on public or historical data, and do not "
    "publish it for data that are to be protected."
)


@dataclass(frozen=True, slots=True)
class TailCheck:
    """The definition, tested beyond one quantile.

    **Privacy.** Tells about raw data: NOT private.

    Attributes
    ----------
    quantile : float
        p.
    value : float
        x̂_p, in units of the data.
    count, above : int
        How many values there are, and how many lie beyond x̂_p.
    worst_ratio : float
        Largest ratio of the empirical to the exponential survival function; the definition holds
        in the sample where it is at most 1.
    worst_at : float
        Where it is reached.
    p_value : float
        Probability of as large a violation at the edge of the definition, by chance.
    outlier_ratio : float
        What clipping at r·x̂_p really takes from the sum, over what PAK eq. 16 allows at
        β = 0.02: the largest for r = 1, 1.5, 2 and 3. At most 1 where the bound holds in use.
    verdict : str
        "heavier": a violation that chance does not explain at the given level. "consistent with
        light": one that it does. "light": none by more than one value. "too few": fewer than 20
        values beyond.
    """

    quantile: float
    value: float
    count: int
    above: int
    worst_ratio: float
    worst_at: float
    p_value: float
    outlier_ratio: float
    verdict: Verdict

    @property
    def light(self) -> bool:
        """Whether the data do not speak against a light tail."""
        return self.verdict in ("light", "consistent with light")

    @property
    def usable(self) -> bool:
        """Whether the bound on the clipped excess holds on these data, light-tailed or not."""
        return self.verdict != "too few" and self.outlier_ratio <= 1


@dataclass(frozen=True, slots=True)
class QuantileCurve:
    """r·x̂_p against x̂_{p^r} for one p and rising r (PAK, figure "quants").

    **Privacy.** Tells about raw data: NOT private.

    Attributes
    ----------
    quantile : float
        p.
    tail : tuple of float
        p^r.
    predicted : tuple of float
        A + r·x̂_p, what a light tail stays below.
    observed : tuple of float
        The empirical p^r-quantile.
    """

    quantile: float
    tail: tuple[float, ...]
    predicted: tuple[float, ...]
    observed: tuple[float, ...]

    @property
    def largest_excess(self) -> float:
        """Largest observed/predicted − 1: positive where the light-tail rule would fall short."""
        pairs = zip(self.observed, self.predicted, strict=True)
        return max((o / q - 1 for o, q in pairs if q > 0), default=0.0)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All diagnostics of one data set.

    **Privacy.** Tells about raw data: NOT private.
    """

    count: int
    left_out: int
    lower: float
    check: TailCheck
    checks: tuple[TailCheck, ...]
    curves: tuple[QuantileCurve, ...]
    largest_quantile: float | None
    largest_usable_quantile: float | None
    by_hour: Mapping[str, TailCheck] = field(default_factory=dict)
    by_weekday: Mapping[str, TailCheck] = field(default_factory=dict)

    def verdict(self) -> str:
        """The findings in words."""
        lines = [_in_words(self.check)]
        strict, usable = self.largest_quantile, self.largest_usable_quantile
        if strict is None:
            lines.append("By the definition no quantile tried is safe.")
        else:
            lines.append(f"By the definition p_max = {strict:g}, the largest p tried that is safe.")
        if usable is None:
            lines.append("In use no quantile tried is safe: do not rely on the light-tail bound.")
        else:
            lines.append(f"In use, by the excess that clipping takes, p_max = {usable:g}.")
        for name, groups in (("hour", self.by_hour), ("weekday", self.by_weekday)):
            if groups:
                lines.append(_groups_in_words(name, groups))
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the notice that they are not private."""
        found = asdict(self)
        return {"private": False, "notice": NOTICE, **found, "verdict": self.verdict()}


def _in_words(check: TailCheck) -> str:
    where = f"beyond x_p = {check.value:g} (p = {check.quantile:g}, {check.above:,} values)"
    if check.verdict == "too few":
        return f"Too few values {where} to tell: at least {_FEWEST} are needed."
    if check.verdict == "light":
        return f"Light-tailed {where}: the survival function stays below the exponential one."
    detail = (
        f"{check.worst_ratio:.3g} times the exponential survival function at {check.worst_at:g}, "
        f"p-value {check.p_value:.2g}"
    )
    taken = f"clipping takes {check.outlier_ratio:.2g} times what it allows"
    in_use = f"In use the bound {'holds' if check.usable else 'FAILS'}: {taken}."
    if check.verdict == "heavier":
        return f"NOT light-tailed {where}: {detail}. {in_use}"
    return f"Consistent with a light tail {where}: {detail}, which chance explains. {in_use}"


def _groups_in_words(name: str, groups: Mapping[str, TailCheck]) -> str:
    told = [check for check in groups.values() if check.verdict != "too few"]
    heavy = [group for group, check in groups.items() if check.verdict == "heavier"]
    if not told:
        return f"By {name}: too few values in every group to tell."
    values = [check.value for check in told]
    spread = f"x_p from {min(values):g} to {max(values):g}"
    if heavy:
        return f"By {name}: heavier than exponential in {', '.join(heavy)}; {spread}."
    return f"By {name}: no group of {len(told)} speaks against a light tail; {spread}."


def _ordered(values: ArrayLike, lower: float) -> FloatArray:
    exact = np.asarray(values, dtype=np.float64).ravel() - lower
    return np.sort(exact[np.isfinite(exact)])


def check_tail(
    values: ArrayLike, quantile: float = 0.005, *, lower: float = 0.0, level: float = _LEVEL
) -> TailCheck:
    """Test the definition of a light tail beyond the p-quantile.

    **Privacy.** Touches raw data; the result is NOT private.

    Parameters
    ----------
    values : array-like
        The data; what is not finite is left out.
    quantile : float
        p, 0 < p < 1.
    lower : float
        A, from which distances are measured.
    level : float
        A violation with a p-value below it counts.

    Examples
    --------
    >>> generator = np.random.default_rng(1)
    >>> check_tail(generator.exponential(30.0, 50_000)).light
    True
    >>> check_tail(generator.pareto(2.0, 50_000)).verdict
    'heavier'
    """
    if not 0 < quantile < 1:
        raise ParameterError("quantile", "a number between 0 and 1, both excluded", quantile)
    return _check_ordered(_ordered(values, lower), quantile, lower, level)


def _check_ordered(ordered: FloatArray, quantile: float, lower: float, level: float) -> TailCheck:
    count = int(ordered.size)
    if count == 0:
        return TailCheck(quantile, math.nan, 0, 0, math.nan, math.nan, 1.0, math.nan, "too few")
    value = float(ordered[quantile_rank(count, decimal_fraction(quantile)) - 1])
    beyond = ordered[np.searchsorted(ordered, value, side="right") :]
    above = int(beyond.size)
    shown = value + lower
    nan = math.nan
    if above < _FEWEST or value <= 0:
        return TailCheck(quantile, shown, count, above, nan, nan, 1.0, nan, "too few")
    gamma = -math.log(quantile) / value
    at_least = np.arange(above, 0, -1)
    more = above - np.searchsorted(beyond, beyond, side="right")
    # In logarithms: far out the exponential survival function is below the smallest float.
    log_ratio = np.log(at_least / count) + gamma * beyond
    worst = int(np.argmax(log_ratio))
    log_uniform = -gamma * (beyond - value)
    # Strictly above each value: data rounded to a unit are then judged at its marks, fairly.
    distance = float(np.max(more / above - np.exp(log_uniform)))
    body = float(ksone.sf(max(distance, 0.0), above))
    end = math.exp(min(0.0, -float(np.max(np.log(at_least / above) - log_uniform))))
    chance = min(1.0, 2 * min(body, end))
    verdict: Verdict = "consistent with light"
    if chance < level:
        verdict = "heavier"
    # x_p is itself one of the values, so the curve is known to one value and no better.
    elif np.all(more <= count * np.exp(-gamma * beyond) + 1):
        verdict = "light"
    ratio = math.exp(min(700.0, float(log_ratio[worst])))
    at, outlier = float(beyond[worst]) + lower, _outlier_ratio(beyond, value, quantile, count)
    return TailCheck(quantile, shown, count, above, ratio, at, chance, outlier, verdict)


def _outlier_ratio(beyond: FloatArray, value: float, quantile: float, count: int) -> float:
    """What clipping takes over what PAK eq. 16 allows; see `TailCheck.outlier_ratio`."""
    return max(
        float(np.maximum(beyond - r * value, 0).sum())
        / alpha_outlier_light_tailed(value, quantile, r, count, _BETA)
        for r in _MULTIPLIERS
    )


def quantile_curve(values: ArrayLike, quantile: float, *, lower: float = 0.0) -> QuantileCurve:
    """r·x̂_p against x̂_{p^r}, as far out as ten values remain.

    **Privacy.** Touches raw data; the result is NOT private.

    Parameters
    ----------
    values, quantile, lower
        As in `check_tail`.
    """
    return _curve_ordered(_ordered(values, lower), quantile, lower)


def _curve_ordered(ordered: FloatArray, quantile: float, lower: float) -> QuantileCurve:
    count = ordered.size
    smallest = 10 / max(count, 1)
    if quantile <= smallest:
        return QuantileCurve(quantile, (), (), ())
    tails = np.geomspace(quantile, smallest, _CURVE_POINTS)
    value = float(ordered[quantile_rank(count, decimal_fraction(quantile)) - 1])
    predicted = np.log(tails) / math.log(quantile) * value + lower
    ranks = [quantile_rank(count, decimal_fraction(float(tail))) - 1 for tail in tails]
    observed = ordered[ranks] + lower
    points = (tuple(curve.tolist()) for curve in (tails, predicted, observed))
    return QuantileCurve(quantile, *points)


def diagnose(
    values: ArrayLike,
    *,
    quantile: float = 0.005,
    lower: float = 0.0,
    hours: Sequence[int] | NDArray[np.int64] | None = None,
    weekdays: Sequence[int] | NDArray[np.int64] | None = None,
) -> Diagnosis:
    """All diagnostics of a public or historical data set.

    **Privacy.** Touches raw data; the result is NOT private.

    Parameters
    ----------
    values : array-like
        The data; what is not finite is left out.
    quantile : float
        The p at which to test, 0.005 as in PAK.
    lower : float
        A, from which distances are measured.
    hours, weekdays : sequence of int, optional
        For each value its hour (0 to 23) and weekday (Monday is 0); −1 where unknown.

    Examples
    --------
    >>> found = diagnose(np.random.default_rng(1).weibull(1.5, 50_000))
    >>> found.check.verdict, found.largest_quantile
    ('light', 0.1)
    """
    if not 0 < quantile < 1:
        raise ParameterError("quantile", "a number between 0 and 1, both excluded", quantile)
    exact = np.asarray(values, dtype=np.float64).ravel()
    ordered = _ordered(exact, lower)
    # One family of tests: the level is divided among them.
    level = _LEVEL / len(QUANTILES)
    checks = tuple(_check_ordered(ordered, p, lower, level) for p in QUANTILES)
    return Diagnosis(
        count=int(ordered.size),
        left_out=int(exact.size - ordered.size),
        lower=lower,
        check=_check_ordered(ordered, quantile, lower, _LEVEL),
        checks=checks,
        curves=tuple(_curve_ordered(ordered, p, lower) for p in QUANTILES),
        largest_quantile=_largest(checks, lambda check: check.light),
        largest_usable_quantile=_largest(checks, lambda check: check.usable),
        by_hour=_split(exact, hours, [f"{h:02d}:00" for h in range(24)], quantile, lower, "hours"),
        by_weekday=_split(exact, weekdays, WEEKDAYS, quantile, lower, "weekdays"),
    )


def _largest(checks: Sequence[TailCheck], safe: Callable[[TailCheck], bool]) -> float | None:
    """p_max: the largest p from which on downwards all that can be told is safe."""
    largest = None
    for check in sorted(checks, key=lambda check: check.quantile):
        if check.verdict == "too few":
            continue
        if not safe(check):
            break
        largest = check.quantile
    return largest


def _split(
    exact: FloatArray,
    groups: Sequence[int] | NDArray[np.int64] | None,
    names: Sequence[str],
    quantile: float,
    lower: float,
    parameter: str,
) -> dict[str, TailCheck]:
    if groups is None:
        return {}
    which = np.asarray(groups, dtype=np.int64).ravel()
    if which.shape != exact.shape:
        raise ParameterError(parameter, f"one for each of {exact.size:,} values", which.size)
    present = [index for index in range(len(names)) if np.any(which == index)]
    level = _LEVEL / max(1, len(present))
    return {
        names[index]: _check_ordered(_ordered(exact[which == index], lower), quantile, lower, level)
        for index in present
    }
