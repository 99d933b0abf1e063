"""The contract of a threshold: total, inside its bounds, on a public grid, keyed, within budget."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from rillet.errors import ParameterError
from rillet.gather.grid import Grid
from rillet.noise import FloatArray, Secret
from rillet.privacy import Guarantee, round_up
from rillet.statistic import Range
from rillet.testing.violation import ContractViolation
from rillet.threshold.base import GRID_BITS, SMALLEST_PART, Threshold
from rillet.threshold.centre import grid_number, grid_point

__all__ = ["check_threshold"]

#: Public bounds that every threshold must cope with.
BOUNDS = (
    Range(0.0, 1.0),
    Range(-5.0, 3000.0),
    Range(0.0, 1e300),
    Range(0.0, 1e-278),
    Range(1e9, 1e9 + 1e-3),
)


def check_threshold(
    threshold: Threshold,
    *,
    budget: Fraction = Fraction(1, 2),
    delta: float = 2.0**-20,
    sizes: tuple[int, ...] = (0, 1, 2, 7, 500),
    enough: int = 50_000,
    secrets: int = 4,
) -> None:
    """Check every promise of a threshold on streams made to break it.

    Parameters
    ----------
    threshold
        What to check.
    budget, delta
        What it may spend on each observation.
    sizes
        Numbers of observations to learn from.
    enough
        So many observations that the range learned is not simply the whole of the bounds.
    secrets
        How many secrets to try; a threshold that learns must use them.

    Raises
    ------
    ContractViolation
        Naming the broken promise.
    """
    cost = threshold.cost(budget, delta)
    if not cost.within(Guarantee(round_up(budget), delta)) or cost.epsilon > budget:
        raise ContractViolation(
            "its cost", threshold, f"may spend ({float(budget):g}, {delta:g}), but costs {cost}"
        )
    if not threshold.learns and (cost.epsilon or cost.delta or cost.mu_squared):
        raise ContractViolation("its cost", threshold, f"learns nothing, but costs {cost}")
    if threshold.look_share(2, 2):
        _check_counts(threshold)
    for size in (*sizes, enough):
        for number, bounds in enumerate(BOUNDS):
            secret = Secret.for_tests(number % secrets).derive("contract", size)
            tame = _repeatable(threshold, size, bounds, budget, delta, secret)
            for name, raw_values in _hard_streams(size, bounds):
                before = raw_values.copy()
                learned = _outcome(threshold, raw_values, bounds, budget, delta, secret)
                if not np.array_equal(raw_values, before, equal_nan=True):
                    raise ContractViolation(
                        "inputs never changed in place", threshold, f"values {name}"
                    )
                if not _refused_alike(threshold, name, learned, tame):
                    _check_range(threshold, name, learned, bounds)
    # With much data and few ends to choose from, noise may well not show: some size must show it.
    released = max(
        len(_released(threshold, size, budget, delta, secrets)) for size in (*sizes, enough)
    )
    if threshold.learns and released < 2:
        raise ContractViolation("keyed noise", threshold, "releases the same for every secret")
    if not threshold.learns and released > 1:
        raise ContractViolation("keyed noise", threshold, "is declared, but depends on the secret")


def _hard_streams(size: int, bounds: Range) -> Iterator[tuple[str, FloatArray]]:
    """Streams of one size that have broken others: the size is public, the values are not."""
    nan, inf = float("nan"), float("inf")
    middle = bounds.lower + (bounds.upper - bounds.lower) / 3
    yield "spread", np.linspace(bounds.lower, bounds.upper, size)
    yield "all equal", np.full(size, middle)
    yield "all at the lower bound", np.full(size, bounds.lower)
    yield "all at the upper bound", np.full(size, bounds.upper)
    yield "all NaN", np.full(size, nan)
    yield "all signalling NaN", np.full(size, 0x7FF0000000000001, np.uint64).view(np.float64)
    yield "all +inf", np.full(size, inf)
    yield "all -inf", np.full(size, -inf)
    yield "far beyond the bounds", np.resize([-1.7e308, 1.7e308], size)
    yield "subnormal", np.full(size, 5e-324)
    yield "mixed", np.resize([nan, middle, inf, -0.0, -inf, bounds.upper], size)


def _check_counts(threshold: Threshold) -> None:
    """Counts of later looks: of one size, additive, and no further apart than is charged."""
    for bounds in BOUNDS:
        streams = dict(_hard_streams(40, bounds))
        raw_singles = np.unique(np.concatenate(list(streams.values())))[:, None]
        empty = threshold.count(np.empty(0), bounds, None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exact_counts = [threshold.count(raw, bounds, None) for raw in raw_singles]
            for name, raw_values in streams.items():
                whole = threshold.count(raw_values.copy(), bounds, None)
                parts = [
                    threshold.count(part.copy(), bounds, None)
                    for part in np.split(raw_values, [0, 1, 17])
                ]
                same = all(part.shape == empty.shape for part in (*parts, *exact_counts))
                if not same or not np.array_equal(whole, np.sum(parts, axis=0)):
                    raise ContractViolation("additive counts", threshold, f"values {name}")
        moved = np.stack(exact_counts)[:, None] - np.stack(exact_counts)[None]
        for law, distance in (
            ("laplace", np.abs(moved).sum(-1).max()),
            ("gaussian", (moved**2).sum(-1).max()),
        ):
            if distance > threshold.count_sensitivity(law):
                raise ContractViolation(
                    "its count sensitivity", threshold, f"{distance} for {law} noise"
                )


def _repeatable(
    threshold: Threshold,
    size: int,
    bounds: Range,
    budget: Fraction,
    delta: float,
    secret: Secret,
) -> Range | Exception:
    """What a tame stream of that size gives, the same again when asked again."""
    raw_values = np.linspace(bounds.lower, bounds.upper, size)
    first = _outcome(threshold, raw_values, bounds, budget, delta, secret)
    second = _outcome(threshold, raw_values, bounds, budget, delta, secret)
    if first != second and not isinstance(first, Exception):
        raise ContractViolation("repeatable", threshold, f"{first} and {second} for one secret")
    return first


def _refused_alike(threshold: Threshold, name: str, learned: object, tame: object) -> bool:
    """Whether this size is refused; the *kind* of outcome must not depend on the values.

    A threshold may refuse public parameters (too few observations, say): then it must refuse every
    stream of that size, with the same words.
    """
    if not isinstance(learned, Exception) and not isinstance(tame, Exception):
        return False
    same = type(learned) is type(tame) and str(learned) == str(tame)
    if not same or not isinstance(learned, ParameterError):
        raise ContractViolation(
            "total", threshold, f"values that are {name} give {learned!r}, others {tame!r}"
        )
    return True


def _outcome(
    threshold: Threshold,
    raw_values: FloatArray,
    bounds: Range,
    budget: Fraction,
    delta: float,
    secret: Secret,
) -> Range | Exception:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning that depends on data is a leak as well
            return threshold.learn(raw_values, bounds, budget, delta, secret)
    except Exception as error:  # noqa: BLE001 - whatever it raises is the finding
        return error


def _check_range(threshold: Threshold, name: str, learned: object, bounds: Range) -> None:
    if not isinstance(learned, Range):
        raise ContractViolation("a range", threshold, f"found {learned!r} for values {name}")
    if not bounds.lower <= learned.lower < learned.upper <= bounds.upper:
        raise ContractViolation(
            "a range inside its bounds", threshold, f"{learned} for values {name} in {bounds}"
        )
    try:
        Grid(learned.lower, learned.upper, steps=1)
    except ParameterError as error:
        raise ContractViolation("a range that can be clipped to", threshold, str(error)) from error
    if threshold.learns and not on_public_grid(learned, bounds):
        raise ContractViolation(
            "a public grid", threshold, f"{learned!r} shows more than {GRID_BITS} significant bits"
        )


def on_public_grid(learned: Range, bounds: Range) -> bool:
    """Whether a learned range is a bound, or ``GRID_BITS`` significant bits away from the lower.

    The smallest range that may be learned is public too, and so is the even grid of ranges with
    two sides.
    """
    smallest = bounds.lower + bounds.width * SMALLEST_PART
    ends = (learned.lower, learned.upper)
    if all(grid_point(bounds, grid_number(bounds, end)) == end for end in ends):
        return True
    if learned.upper in (bounds.upper, smallest):
        return learned.lower == bounds.lower
    distance = learned.upper - bounds.lower
    mantissa, exponent = np.frexp(distance)
    coarse = float(np.ldexp(np.rint(np.ldexp(mantissa, GRID_BITS)), exponent - GRID_BITS))
    return learned.lower == bounds.lower and bounds.lower + coarse == learned.upper


def _released(
    threshold: Threshold, size: int, budget: Fraction, delta: float, secrets: int
) -> set[tuple[float, float]]:
    bounds = BOUNDS[1]
    raw_values = np.linspace(0.0, 100.0, size)
    outcomes = [
        _outcome(threshold, raw_values, bounds, budget, delta, Secret.for_tests(number))
        for number in range(secrets)
    ]
    return {(o.lower, o.upper) for o in outcomes if isinstance(o, Range)}
