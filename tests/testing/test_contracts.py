"""The contract suites pass what is right, and name the promise that something broken breaks."""

import warnings
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest

from rillet.errors import ParameterError
from rillet.noise import LAPLACE, continuous_draw
from rillet.privacy import Cost
from rillet.strategy import BinaryTree, DecayedIndependent, HonakerTree, Independent
from rillet.strategy.base import AWAY, Decoder, Encoder, NoiseProcess, Strategy
from rillet.strategy.independent import IndependentDecoder, IndependentEncoder, IndependentStepper
from rillet.strategy.tree import TreeDecoder, TreeEncoder, TreeStepper
from rillet.testing import ContractViolation, check_strategy, check_threshold
from rillet.threshold import Finding, FixedThreshold, Look, TailHistogram, Threshold
from rillet.threshold.base import clip_to_bounds, land_on_grid


def broken_promise(check, subject, **options):
    with pytest.raises(ContractViolation) as raised:
        check(subject, **options)
    assert raised.value.promise in str(raised.value)
    return raised.value.promise


# --- Strategies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("kind", [BinaryTree, Independent])
def test_what_is_right_passes(kind, law):
    check_strategy(kind(law), max_leaves=6)


class OneLevelShort(BinaryTree):
    def sensitivity(self, leaves, steps):  # the published log2 n
        levels = max(1, (leaves - 1).bit_length())
        return Fraction(levels * steps ** (1 if self.law == "laplace" else 2))


class NotSquared(BinaryTree):
    def sensitivity(self, leaves, steps):  # L2 where its square is wanted
        return Fraction(leaves.bit_length() * steps)


class Doubled(BinaryTree):
    def sensitivity(self, leaves, steps):
        return 2 * super().sensitivity(leaves, steps)


class FloatSensitivity(BinaryTree):
    def sensitivity(self, leaves, steps):
        return float(super().sensitivity(leaves, steps))


class DeviationForVariance(BinaryTree):
    def weights(self, leaves, t):
        return np.sqrt(super().weights(leaves, t))


class WrongCovariance(Independent):
    def covariance(self, leaves, earlier, later):
        return np.maximum(earlier, later).astype(float)


class LooksAhead(Independent):
    def sensitivity(self, leaves, steps):
        return 10 * super().sensitivity(leaves, steps)

    def encoder(self, leaves):
        class Ahead(IndependentEncoder):
            def encode(self, state, first, exact_leaves):
                return (), exact_leaves + np.append(exact_leaves[1:], 0)

        return Ahead()


class CeilsLeaves(Independent):
    def encoder(self, leaves):
        class Even(IndependentEncoder):
            def encode(self, state, first, exact_leaves):
                return (), exact_leaves - exact_leaves % 2

        return Even()

    def stepper(self, leaves, absorbed, encoder_state, decoder_state):
        return None


class FloatNodes(Independent):
    def encoder(self, leaves):
        class Floats(IndependentEncoder):
            def encode(self, state, first, exact_leaves):
                return (), exact_leaves.astype(np.float64)

        return Floats()


class TwoNodesALeaf(Independent):
    def encoder(self, leaves):
        class Twice(IndependentEncoder):
            def encode(self, state, first, exact_leaves):
                return (), np.repeat(exact_leaves, 2)

        return Twice()


class ForgetsBetweenBlocks(BinaryTree):
    def encoder(self, leaves):
        class Forgetful(TreeEncoder):
            def encode(self, state, first, exact_leaves):
                return super().encode(self.start(), first, exact_leaves)

        return Forgetful(leaves.bit_length())


class ChangesItsState(BinaryTree):
    def decoder(self, leaves):
        class InPlace(TreeDecoder):
            def decode(self, state, first, noisy):
                following, prefix = super().decode(state, first, noisy)
                state[0][:] = following[0]
                return state, prefix

        return InPlace(leaves.bit_length())


class ChangesItsInput(Independent):
    def decoder(self, leaves):
        class InPlace(IndependentDecoder):
            def decode(self, state, first, noisy):
                following, prefix = super().decode(state, first, noisy)
                noisy[:] = prefix
                return following, prefix

        return InPlace()


SHARED = [0]


class SharesState(Independent):
    """One running total for all streams: right for one alone, wrong for two that take turns."""

    def decoder(self, leaves):
        class Shared(IndependentDecoder):
            def start(self):
                SHARED[0] = 0
                return super().start()

            def decode(self, state, first, noisy):
                if first == 1:
                    SHARED[0] = 0
                prefix = SHARED[0] + np.cumsum(noisy)
                if len(prefix):
                    SHARED[0] = int(prefix[-1])
                return (np.array([SHARED[0]]),), prefix

        return Shared()

    def stepper(self, leaves, absorbed, encoder_state, decoder_state):
        return None


class OffByOne(BinaryTree):
    def decoder(self, leaves):
        class Late(TreeDecoder):
            def decode(self, state, first, noisy):
                following, prefix = super().decode(state, first, noisy)
                return following, prefix + 1

        return Late(leaves.bit_length())

    def stepper(self, leaves, absorbed, encoder_state, decoder_state):
        return None


class SlowStepper(BinaryTree):
    def stepper(self, leaves, absorbed, encoder_state, decoder_state):
        class Without(TreeStepper):
            def step(self, exact_leaf, noise):
                return super().step(exact_leaf, noise if self._t else -AWAY)

        return Without(absorbed, encoder_state, decoder_state)


class StepperOfOtherStates(Independent):
    def stepper(self, leaves, absorbed, encoder_state, decoder_state):
        class Other(IndependentStepper):
            def states(self):
                return (), (np.array([self._prefix + 1]),)

        return Other(decoder_state)


class SameNoiseForSiblings(Independent):
    """Noise keyed by half the index: two nodes share a draw."""

    def noise_process(self, leaves):
        class Siblings(NoiseProcess):
            def draw(self, state, levels, first, count):
                draws = [levels(0).draw(index // 2, 1) for index in range(first, first + count)]
                return state, np.concatenate([np.empty(0, np.int64), *draws])

        return Siblings()


class OneDrawForAll(Independent):
    """Draws once and reuses it for every node: differences come out bare."""

    def noise_process(self, leaves):
        class Once(NoiseProcess):
            def start(self):
                return (np.zeros(2, np.int64),)

            def draw(self, state, levels, first, count):
                drawn, value = state[0]
                if count and not drawn:
                    value = levels(0).draw(0, 1)[0]
                    drawn = 1
                return (np.array([drawn, value]),), np.full(count, value)

        return Once()

    def weights(self, leaves, t):
        return t.astype(np.float64) ** 2


class BarePrefixSums(Strategy):
    """Independent noise on exact prefix sums, sold at the price of one leaf."""

    law = "laplace"
    name: ClassVar[str] = "bare"

    def sensitivity(self, leaves, steps):
        return Fraction(steps)

    def weights(self, leaves, t):
        return np.ones(len(t))

    def encoder(self, leaves):
        class Sums(Encoder):
            def start(self):
                return (np.zeros(1, np.int64),)

            def encode(self, state, first, exact_leaves):
                sums = np.cumsum(exact_leaves) + state[0]
                return (sums[-1:].copy() if len(sums) else state[0],), sums

        return Sums()

    def decoder(self, leaves):
        class Same(Decoder):
            def start(self):
                return ()

            def decode(self, state, first, noisy):
                return (), noisy

        return Same()


class ApartOrNot(BinaryTree):
    def several(self, leaves, steps, count, apart):  # as if leaves never met in a node
        return count * self.sensitivity(leaves, steps)


class RootOfGroup(HonakerTree):
    def several(self, leaves, steps, count, apart):  # the same, with a noise process
        return count * self.sensitivity(leaves, steps)


class AnotherForOne(Independent):
    def repeated(self, leaves, steps, most, apart):
        return super().repeated(leaves, steps, most, apart) + 1


class ForgetsWithoutSaying(DecayedIndependent):
    def discount(self, leaves):
        return 1.0


class ForgetsOtherwise(DecayedIndependent):
    def discount(self, leaves):
        return super().discount(leaves) * (1 - 2**-20)


class Changeable(Independent):
    __setattr__ = object.__setattr__


@pytest.mark.parametrize(
    ("strategy", "promise"),
    [
        (OneLevelShort(), "sensitivity"),
        (OneLevelShort("gaussian"), "sensitivity"),
        (NotSquared("gaussian"), "sensitivity"),
        (BarePrefixSums(), "sensitivity"),
        (OneDrawForAll(), "sensitivity"),
        (FloatSensitivity(), "sensitivity"),
        (Doubled(), "a tight sensitivity"),
        (DeviationForVariance(), "its noise variance"),
        (WrongCovariance(), "its noise covariance"),
        (CeilsLeaves(), "a tight sensitivity"),
        (FloatNodes(), "exact integers"),
        (TwoNodesALeaf(), "one node a leaf"),
        (ForgetsBetweenBlocks(), "block invariance"),
        (ChangesItsState(), "states never changed in place"),
        (ChangesItsInput(), "inputs never changed in place"),
        (SharesState(), "streams apart"),
        (OffByOne(), "exact decoding"),
        (SlowStepper(), "stepper equals blocks"),
        (StepperOfOtherStates(), "stepper equals blocks"),
        (SameNoiseForSiblings(), "each draw made once"),
        (ApartOrNot("gaussian"), "repeated"),
        (RootOfGroup("gaussian"), "repeated"),
        (AnotherForOne(), "repeated"),
        (ForgetsWithoutSaying(half_life=3.0), "exact decoding"),
        (ForgetsOtherwise(half_life=3.0), "exact decoding"),
        (Changeable(), "a frozen description"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Strategy) else "",
)
def test_a_broken_strategy_is_named(strategy, promise):
    options = {"tight": not isinstance(strategy, HonakerTree)}
    forgets = isinstance(strategy, DecayedIndependent)
    options["tolerance"] = 2.0**-8 if forgets else 0.0
    options["variance_tolerance"] = 1e-12 if forgets else 0.0  # powers, rounded by the processor
    assert broken_promise(check_strategy, strategy, max_leaves=5, **options) == promise


def test_looking_ahead_is_found_even_when_the_sensitivity_is_enough():
    assert broken_promise(check_strategy, LooksAhead(), tight=False) in {
        "causality",
        "block invariance",
    }


def test_rounding_leaves_is_found_unless_declared():
    assert broken_promise(check_strategy, CeilsLeaves(), tight=False) == "linearity"


def test_a_sensitivity_that_is_only_enough_passes_when_it_says_so():
    check_strategy(Doubled(), max_leaves=4, tight=False)


def test_a_rounding_decoder_passes_within_its_tolerance():
    class Halves(Independent):
        def decoder(self, leaves):
            class Near(IndependentDecoder):
                def decode(self, state, first, noisy):
                    following, prefix = super().decode(state, first, noisy)
                    return following, prefix + 0.25

            return Near()

        def stepper(self, *_):
            return None

    assert broken_promise(check_strategy, Halves(), max_leaves=4) == "exact decoding"
    check_strategy(Halves(), max_leaves=4, tolerance=0.25, variance_tolerance=0.0)


def test_a_variance_may_be_a_little_off_when_it_says_so():
    class Near(Independent):
        def weights(self, leaves, t):
            return super().weights(leaves, t) * (1 + 1e-6)

    assert broken_promise(check_strategy, Near(), max_leaves=4) == "its noise variance"
    check_strategy(Near(), max_leaves=4, variance_tolerance=2e-6)


# --- Thresholds ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Halfway(Threshold):
    """A threshold that keeps the form of the contract (its privacy is not the matter here)."""

    fault: str = ""
    name: ClassVar[str] = "halfway"

    def cost(self, budget, delta):
        return Cost.pure(budget * (2 if self.fault == "overspends" else 1))

    def measure(self, raw_values, bounds, budget, delta, secret, setting):
        return Look(len(raw_values), point=self._point(raw_values, bounds, secret))

    def judge(self, bounds, looks, ranges, outlook):
        if self.fault == "no number":
            return Finding(None)
        return super().judge(bounds, looks, ranges, outlook)

    def _point(self, raw_values, bounds, secret):
        raw = clip_to_bounds(raw_values, bounds)
        if self.fault == "raises at NaN" and np.isnan(raw_values).any():
            raise ParameterError("values", "numbers", "NaN")
        if self.fault == "raises on data" and len(raw) and raw.max() == raw.min():
            raise ValueError("all equal")
        if self.fault == "quotes data" and len(raw) < 3:
            raise ParameterError("lag", "at least 3", raw.sum())
        if self.fault == "warns" and not np.isfinite(raw_values).all():
            warnings.warn("not finite", RuntimeWarning, stacklevel=1)
        if self.fault == "changes input":
            raw_values.sort()
        if self.fault == "outside":
            return bounds.upper * 2
        if self.fault == "empty range" and len(raw) and raw.max() == bounds.lower:
            return bounds.lower
        noise = continuous_draw(LAPLACE, secret, ("halfway",))
        if self.fault == "not keyed":
            noise = 0.3
        if self.fault == "unrepeatable":
            noise += np.random.default_rng().random()
        distance = (0.5 + 0.01 * noise) * bounds.width
        if self.fault == "porous":
            return bounds.lower + float(distance) * 0.99999
        return bounds.lower + land_on_grid(distance, bounds.width)


def test_right_thresholds_pass():
    check_threshold(Halfway())
    check_threshold(FixedThreshold())


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("overspends", "its cost"),
        ("raises at NaN", "total"),
        ("raises on data", "total"),
        ("quotes data", "total"),
        ("warns", "total"),
        ("changes input", "inputs never changed in place"),
        ("no number", "a range"),
        ("outside", "a range inside its bounds"),
        ("empty range", "a range inside its bounds"),
        ("not keyed", "keyed noise"),
        ("unrepeatable", "repeatable"),
        ("porous", "a public grid"),
    ],
)
def test_a_broken_threshold_is_named(fault, promise):
    assert broken_promise(check_threshold, Halfway(fault)) == promise


def test_a_refusal_for_public_reasons_is_allowed():
    class NeedsThree(Halfway):
        def measure(self, raw_values, bounds, budget, delta, secret, setting):
            if len(raw_values) < 3:
                raise ParameterError("lag", "at least 3", len(raw_values))
            return super().measure(raw_values, bounds, budget, delta, secret, setting)

    check_threshold(NeedsThree())


def test_a_declared_threshold_that_costs_or_draws_is_named():
    class Costs(Halfway):
        learns = False

    assert broken_promise(check_threshold, Costs()) == "its cost"

    class Draws(Costs):
        def cost(self, budget, delta):
            return Cost()

    assert broken_promise(check_threshold, Draws()) == "keyed noise"


@dataclass(frozen=True)
class Twice(TailHistogram):
    """A threshold that looks again, with a fault in its counts."""

    fault: str = ""

    def count(self, raw_values, bounds, centre):
        counts = super().count(raw_values, bounds, centre)
        if self.fault == "not additive":
            return np.minimum(counts, 1000)
        if self.fault == "size follows the data":
            return np.trim_zeros(counts)
        return counts * 2 if self.fault == "heavy" else counts


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("not additive", "additive counts"),
        ("size follows the data", "additive counts"),
        ("heavy", "its count sensitivity"),
    ],
)
def test_broken_counts_of_later_looks_are_named(fault, promise):
    assert broken_promise(check_threshold, Twice(fault=fault)) == promise


def test_violations_survive_the_way_home_from_a_worker():
    import pickle

    violation = ContractViolation("causality", BinaryTree(), "why")
    copy = pickle.loads(pickle.dumps(violation))
    assert str(copy) == str(violation)
    assert replace(copy.subject, law="gaussian") == BinaryTree("gaussian")
