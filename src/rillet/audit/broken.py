"""Mechanisms with one mistake each, made by others or by us: an audit must catch every one.

Each is the real code with one part replaced, for as long as the audit runs.  What the charges would
refuse by themselves is let through (:data:`UNCHECKED`), so that the audit has to see it.

**Privacy.** None: never to release anything with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import numpy as np

import rillet.fleet
import rillet.gather.grid
import rillet.plan.calibrate
import rillet.step
import rillet.strategy.base
import rillet.strategy.toeplitz.buffered
import rillet.threshold.smooth
import rillet.threshold.tail
from rillet.audit.auditor import Effort, Report, audit
from rillet.audit.mechanisms import SUBJECTS, OneLook, Subject, by_clock, by_count
from rillet.fleet import Fleet
from rillet.gather.gate import Gate
from rillet.layout import Layout
from rillet.levels import Tree
from rillet.noise import Keystream, LatticeNoise, Secret
from rillet.privacy import Charges, Cost, Guarantee, Person, root_down, root_up
from rillet.statistic import Histogram, Mean, Range, Sum, running
from rillet.statistic.counts import _Encoding
from rillet.strategy import BinaryTree, BufferedToeplitz, Contributions, Independent, Mechanism
from rillet.strategy.tree import TreeEncoder
from rillet.threshold import SmoothQuantile, TailHistogram
from rillet.threshold.calibration import Calibration

__all__ = ["BROKEN", "TINY", "Broken", "catch"]

#: Little is enough to catch a mistake.
TINY: Final = Effort(2**14, 2**15, 2**11, 2**13, 32, 4)

#: Where, what, and what to make of it.
Replacement: TypeAlias = tuple[Any, str, Callable[[Any], Any]]


@dataclass(frozen=True)
class Broken:
    """A mistake: what went wrong in words, where it is made, and in which mechanism it shows."""

    name: str
    mistake: str
    subject: Subject
    replacements: tuple[Replacement, ...]

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make the mistake."""
        with ExitStack() as stack:
            for owner, name, stand_in in self.replacements:
                own = owner.__dict__.get(name, None) if isinstance(owner, type) else None
                own = getattr(owner, name) if own is None or isinstance(own, classmethod) else own
                stack.enter_context(patch.object(owner, name, stand_in(own)))
            yield


def catch(broken: Broken, *, alpha: float, effort: Effort = TINY) -> Report:
    """Audit a broken mechanism with fresh secrets, until something is found."""
    with broken.made():
        return audit(broken.subject, effort, alpha=alpha, until_found=True)


# --- Stand-ins -----------------------------------------------------------------------------------


def _always(result: Any) -> Callable[[Any], Any]:
    return lambda _own: lambda *_, **__: result


def _quantised(change: Callable[[Any, Any, Any], Any]) -> Callable[[Any], Any]:
    """Another lattice: ``change`` gets raw values, their integers and the steps."""

    def stand_in(own: Any) -> Any:
        def quantise(raw_values: Any, lower: Any, width: Any, per_unit: Any, steps: Any) -> Any:
            units = own(raw_values, lower, width, per_unit, steps)
            raw = (np.asarray(raw_values, np.float64) - lower) * per_unit
            return np.asarray(change(raw, units, steps), np.int64)

        return quantise

    return stand_in


def _unclipped(raw: Any, _units: Any, steps: Any) -> Any:
    return np.clip(np.nan_to_num(raw), -9 * steps, 9 * steps)


def _with_nan(raw: Any, units: Any, _steps: Any) -> Any:
    return np.where(np.isnan(raw), -(2**40), units)


def _refusing(raw: Any, units: Any, steps: Any) -> Any:
    if (raw > 2 * np.max(steps)).any():
        raise ValueError("a value beyond the bounds")
    return units


def _spoilt(raw: Any, units: Any, steps: Any) -> Any:
    return units if not np.isnan(raw).any() else np.full_like(units, np.max(steps) // 2)


def _unrounded(own: Any) -> Any:
    def sensitivity(self: Any, leaves: int, steps: int) -> Fraction:
        whole, rounding = own(self, leaves, steps), own(self, leaves, 0)
        return Fraction(root_down(whole) - root_up(rounding)) ** 2 if steps else Fraction(0)

    return sensitivity


def _in_floats(own: Any) -> Any:
    def encode(self: Any, state: Any, first: int, exact_leaves: Any) -> Any:
        following, nodes = own(self, state, first, exact_leaves)
        exact_sum = state[0][-1] + np.cumsum(exact_leaves)
        return following, nodes + np.rint(exact_sum.astype(np.float32)).astype(np.int64) - exact_sum

    return encode


def _float_nodes(own: Any) -> Any:
    def encode(self: Any, state: Any, first: int, exact_leaves: Any) -> Any:
        following, nodes = own(self, state, first, exact_leaves)
        return following, nodes * 1.0

    return encode


def _same_for_siblings(own: Any) -> Any:
    kept: dict[int, Secret] = {}

    def draw(mechanism: Any, secret: Secret, purpose: str, *more: Any) -> Any:
        leaf = more[-1]
        if leaf == 1:
            kept.clear()
        return own(mechanism, kept.setdefault(leaf % 2, secret), purpose, *more)

    return draw


def _same_for_keys(_own: Any) -> Any:
    def draw(self: Any, _start: int, count: int) -> Any:
        return np.tile(self._noise.draw(0, count), (self._count, 1))

    return draw


def _few_bits(own: Any) -> Any:
    kept, middle = np.uint64(0x3FF << 54 | 1), np.uint64(1 << 53)  # ten bits and the sign

    def words(self: Any, start: int, count: int) -> Any:
        return own(self, start, count) & kept | middle

    return words


def _short_seed(own: Any) -> Any:
    def generate() -> Secret:
        seed = int(own().to_bytes()[-9:-1], 16) >> 1
        return Secret(seed.to_bytes(32, "big"))

    return staticmethod(generate)


def _fixed_seed(_own: Any) -> Any:
    return staticmethod(lambda: Secret(bytes(32)))


def _fresh_noise(own: Any) -> Any:
    generate = Secret.generate
    return lambda _self, *purpose: own(generate(), *purpose)


def _without_spent(own: Any) -> Any:
    def warm_up(plan: Any, strategy: Any, lag: int, _spent: Cost, first_look: Any) -> Any:
        return own(plan, strategy, lag, Cost(), first_look)

    return warm_up


def _other_delta(own: Any) -> Any:
    def mu(guarantee: Guarantee, *already: Cost) -> float:
        return float(own(replace(guarantee, delta=math.sqrt(guarantee.delta)), *already))

    return mu


def _dropping(own: Any) -> Any:
    def group(layout: Any, grid: Any, raw_values: Any, place: Any, *more: Any) -> Any:
        number = np.arange(len(place)) - np.searchsorted(place, place)
        return own(layout, grid, raw_values[number < 2], place[number < 2], *more)

    return group


def _telling(own: Any) -> Any:
    def measure(self: Any, raw_values: Any, *more: Any) -> Any:
        return replace(own(self, raw_values, *more), observations=len(raw_values))

    return measure


def _stopping(own: Any) -> Any:
    def run(layout: Any, key: Any, state: Any, raw_block: Any, *more: Any) -> Any:
        following, parts = own(layout, key, state, raw_block, *more)
        return following, [] if (raw_block > layout.bounds.upper).any() else parts

    return run


def _closed_by_data(own: Any) -> Any:
    def advance(
        layout: Any, key: Any, state: Any, raw_values: Any, tick_of: Any, until: int
    ) -> Any:
        newest = int(tick_of[-1]) if len(tick_of) else state.t
        return own(layout, key, state, raw_values, tick_of, max(state.t, min(until, newest)))

    return advance


def _bare_median(_own: Any) -> Any:
    def centre(raw_values: Any, bounds: Range, *_: Any, **__: Any) -> float:
        inside = np.clip(np.nan_to_num(raw_values), bounds.lower, bounds.upper)
        return float(np.clip(np.median(inside), bounds.lower + 1, bounds.upper - 1))

    return centre


def _local_sensitivity(_own: Any) -> Any:
    def sensitivity(raw_sorted: Any, rank: int, lower: float, upper: float, _b: float) -> float:
        padded = np.concatenate([[lower], raw_sorted, [upper]])
        return float(max(padded[rank + 1] - padded[rank], padded[rank] - padded[rank - 1]))

    return sensitivity


def _all_digits(_own: Any) -> Any:
    def learned(bounds: Range, distance: Any) -> Range:
        return Range(bounds.lower, min(bounds.upper, bounds.lower + max(float(distance), 1e-3)))

    return learned


def _gate_open(own: Any) -> Any:
    def decide(self: Any, person_of: Any, tick_of: Any) -> Any:
        entered, entries = own(self, person_of, tick_of)
        return np.ones_like(entered), entries

    return decide


def _only_seen(own: Any) -> Any:
    def add(self: Fleet, key_of: Any, raw_values: Any) -> None:
        seen = self.tree.__dict__.get("_seen", np.empty(0, np.int64))
        self.tree.__dict__["_seen"] = np.union1d(seen, key_of)
        own(self, key_of, raw_values)

    return add


#: The charges do not refuse what costs more than was promised.
UNCHECKED: Final[Replacement] = (Charges, "__post_init__", _always(None))
_QUANTISE: Final = (rillet.gather.grid, "_quantise")
_OF_MEAN: Final = Subject("mean", "", lambda: by_count(BinaryTree(), statistic=Sum()))


def _halved(_own: Any) -> Any:
    return lambda _self, steps: ((max(1, steps // 2),),)


BROKEN: Final = tuple(
    Broken(name, mistake, SUBJECTS[on] if isinstance(on, str) else on, tuple(replacements))
    for name, mistake, on, *replacements in (
        (
            "tree-short",
            "a tree one level short: log2 n",
            "binary-tree",
            (BinaryTree, "sensitivity", lambda own: lambda s, n, k: own(s, n - 1, k)),
        ),
        (
            "tree-flat",
            "noise without the height of the tree",
            "binary-tree",
            (BinaryTree, "sensitivity", lambda _: lambda _s, _n, k: Fraction(k)),
        ),
        (
            "past-its-length",
            "a mechanism of fixed length run to twice its length",
            "binary-tree",
            (BinaryTree, "sensitivity", lambda own: lambda s, n, k: own(s, n // 2, k)),
        ),
        (
            "half-the-range",
            "sensitivity of half the range",
            "binary-tree",
            (running._Count, "moves", _halved),
        ),
        (
            "variance-for-std",
            "a variance where a standard deviation is wanted",
            "buffered-toeplitz",
            (rillet.strategy.base, "gaussian_std", lambda own: lambda *a: math.sqrt(own(*a))),
            UNCHECKED,
        ),
        (
            "less-noise-than-stated",
            "draws of half their stated scale",
            "binary-tree",
            (LatticeNoise, "draw", lambda own: lambda *a: own(*a) // 2),
        ),
        (
            "noise-of-siblings",
            "noise cached by sibling, shared by other nodes",
            "binary-tree",
            (rillet.fleet, "draw", _same_for_siblings),
        ),
        (
            "noise-of-keys",
            "one generator copied for each key: all have the same noise",
            "binary-tree",
            (rillet.fleet._Keys, "draw", _same_for_keys),
        ),
        (
            "no-ratchet",
            "a secret that never moves on, under noise that counts on it",
            "binary-tree",
            (Secret, "ratchet", lambda _: lambda self, _steps=1: self),
        ),
        (
            "noise-of-plans",
            "noise keyed by the secret, not by the mechanism",
            "binary-tree",
            (Layout, "digest", lambda _: bytes(32)),
        ),
        (
            "fresh-on-replay",
            "fresh noise when the same data are run again",
            "binary-tree",
            (Secret, "keystream", _fresh_noise),
        ),
        (
            "short-seed",
            "a seed of 31 bits",
            "secrets",
            (Secret, "generate", _short_seed),
        ),
        ("fixed-seed", "a fall-back to seed 0", "secrets", (Secret, "generate", _fixed_seed)),
        (
            "few-bits",
            "a uniform of ten bits, whose tail ends too soon",
            "binary-tree",
            (Keystream, "words", _few_bits),
        ),
        (
            "float-noise",
            "textbook noise in floats",
            "binary-tree",
            (LatticeNoise, "draw", lambda own: lambda *a: own(*a) * 1.0),
        ),
        (
            "float-nodes",
            "floats left of the noise",
            "binary-tree",
            (TreeEncoder, "encode", _float_nodes),
        ),
        (
            "float-sums",
            "running sums in 32-bit floats",
            Subject("", "", lambda: by_clock(BinaryTree(), Mean(), leaves=16)),
            (TreeEncoder, "encode", _in_floats),
        ),
        (
            "clipped-after",
            "values clipped after the noise only",
            _OF_MEAN,
            (*_QUANTISE, _quantised(_unclipped)),
        ),
        (
            "nan-survives",
            "NaN survives the clipping",
            _OF_MEAN,
            (*_QUANTISE, _quantised(_with_nan)),
        ),
        (
            "raises",
            "an error that depends on a value",
            _OF_MEAN,
            (*_QUANTISE, _quantised(_refusing)),
        ),
        (
            "spoilt-block",
            "one bad cell turns its whole block to NaN",
            _OF_MEAN,
            (*_QUANTISE, _quantised(_spoilt)),
        ),
        (
            "look-not-charged",
            "observations that feed a look and the sum, charged for the sum alone",
            "learned-by-count",
            (Mechanism, "with_less", lambda own: lambda s, part: (s.steps, own(s, part)[1])),
        ),
        (
            "warm-up-not-charged",
            "the warm-up pays for the threshold, or for its sum",
            "learned-by-count",
            (rillet.plan.calibrate, "_warm_up", _without_spent),
            UNCHECKED,
        ),
        (
            "delta-dropped",
            "noise for another δ than the promised one",
            "buffered-toeplitz",
            (rillet.strategy.base, "gaussian_mu", _other_delta),
            UNCHECKED,
        ),
        (
            "rounding-not-charged",
            "an encoder that rounds and does not charge it",
            Subject("", "", lambda: by_clock(BufferedToeplitz(), leaves=12)),
            (BufferedToeplitz, "sensitivity", _unrounded),
            (BufferedToeplitz, "refined", lambda _: lambda self, *_: self),
            (rillet.strategy.base, "choose_steps", _always(16)),
            UNCHECKED,
        ),
        (
            "split",
            "two columns that share a budget get more than all of it",
            Subject("", "", lambda: by_clock(BufferedToeplitz(), Mean())),
            (Mechanism, "split", lambda own: lambda *a: (own(*a)[0], own(*a)[1] * 9 // 8)),
        ),
        (
            "replace-as-add",
            "a replaced observation charged as an added one",
            Subject(
                "", "", lambda: by_count(BinaryTree(), statistic=Histogram(bins=(0.0, 10.0, 50.0)))
            ),
            (
                _Encoding,
                "largest_move",
                lambda own: lambda self, **_: own(self, replaced=False),
            ),
        ),
        (
            "look-half-charged",
            "counts of a look move in two places, one is charged",
            "tail-histogram",
            (TailHistogram, "count_sensitivity", lambda own: lambda *a, **b: own(*a, **b) / 2),
        ),
        (
            "count-not-hidden",
            "a look that tells how many values it was made from",
            "learned-by-clock",
            (TailHistogram, "measure", _telling),
        ),
        (
            "surplus-dropped",
            "a full tick drops the surplus: one observation more pushes out another",
            Subject("", "", lambda: by_clock(BinaryTree("gaussian"), Mean(), leaves=8)),
            (rillet.step, "_group_ticks", _dropping),
        ),
        (
            "closed-by-data",
            "a tick closed by the newest time seen",
            Subject("", "", lambda: by_clock(BinaryTree(), leaves=6)),
            (rillet.step, "advance_parts", _closed_by_data),
        ),
        (
            "keys-from-data",
            "only keys that occur are released",
            "binary-tree",
            (Fleet, "_add", _only_seen),
            (Tree, "live_rows", lambda _: property(lambda self: self.__dict__.get("_seen"))),
        ),
        (
            "stops-by-data",
            "nothing is released of a block with a large value",
            _OF_MEAN,
            (rillet.step, "_run_segment", _stopping),
        ),
        (
            "range-from-data",
            "the centre of a range taken from the data",
            "tail-histogram",
            (rillet.threshold.tail, "find_centre", _bare_median),
        ),
        (
            "local-sensitivity",
            "smooth sensitivity without its floor: the quantile goes out bare",
            "smooth-quantile",
            (rillet.threshold.smooth, "smooth_sensitivity", _local_sensitivity),
        ),
        (
            "gaussian-constants",
            "the paper's constants of smooth sensitivity with Gaussian noise",
            Subject("", "", lambda: OneLook(SmoothQuantile(law="gaussian", calibration="paper"))),
            (Calibration, "require_releasable", _always(None)),
        ),
        (
            "all-digits",
            "a learned bound with all its digits",
            Subject("", "", lambda: OneLook(SmoothQuantile(quantile=0.5), observations=1000)),
            (rillet.threshold.smooth, "learned_range", _all_digits),
        ),
        (
            "person-as-observation",
            "a person charged as one observation",
            "person",
            (rillet.plan.calibrate, "contributions_of", _always(Contributions())),
        ),
        (
            "person-in-looks",
            "a person in several looks or segments charged in one of them",
            "person-learned",
            (TailHistogram, "count_sensitivity", lambda own: lambda *a, **b: own(*a, **b) / 9),
        ),
        (
            "gate-open",
            "more of a person enters than was charged",
            Subject("", "", lambda: by_clock(Independent(), unit=Person(most=1), leaves=8)),
            (Gate, "decide", _gate_open),
        ),
        (
            "totals-not-charged",
            "totals of keys beside keys that have all of the budget",
            "totals",
            (rillet.plan.calibrate, "key_share", _always(Fraction(1))),
            UNCHECKED,
        ),
        (
            "amended-late",
            "another ε on the steps of the old one",
            "amended",
            (
                Mechanism,
                "for_promise",
                lambda own: lambda self, promise: replace(self, cost=own(self, promise).cost),
            ),
            UNCHECKED,
        ),
    )
)
