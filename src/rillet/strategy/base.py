"""What every strategy for running sums must offer.

A strategy releases prefix sums of integer *leaves* (observations, or groups of ``every``
observations, in lattice units): a causal **encoder** maps leaves to nodes, integer noise is added
to each node, and a **decoder**, which sees only noisy nodes, turns them into prefix sums.

**Privacy.** A strategy answers for its own sensitivity: how far its nodes can move when one leaf
moves by at most ``steps``.  Everything after the noise is post-processing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rillet.errors import ParameterError
from rillet.gather.grid import FEWEST_STEPS, USUAL_STEPS, choose_steps, noise_too_large
from rillet.noise import (
    LARGEST_SCALE,
    LAWS,
    FloatArray,
    IntArray,
    KeyPart,
    LatticeNoise,
    Law,
    LawName,
    NoiseSource,
    ReadAhead,
    Secret,
    draw_each,
)
from rillet.options import settle
from rillet.privacy import (
    Cost,
    Guarantee,
    gaussian_mu,
    gaussian_std,
    laplace_scale,
    root_down,
    root_up,
    round_up,
)

#: State of an encoder or decoder: a few small arrays, never changed in place.
State: TypeAlias = tuple[NDArray[Any], ...]
#: Some rows of a state that has one for each key: a part of them, or their numbers, each once.
RowsOf: TypeAlias = slice | NDArray[np.int64]
#: Where each of several rounds is in arrays of leaves; no key is in a round twice.
Rounds: TypeAlias = Sequence[slice]


def _numbered(rows: RowsOf, state: State) -> NDArray[np.int64]:
    return np.arange(len(state[0]))[rows] if isinstance(rows, slice) else rows


class Encoder(ABC):
    """The causal map from leaves to nodes.  Touches raw data."""

    @abstractmethod
    def start(self) -> State:
        """State before the first leaf."""

    @abstractmethod
    def encode(self, state: State, first: int, exact_leaves: IntArray) -> tuple[State, IntArray]:
        """Nodes for leaves ``first``, ``first + 1``, … (leaves are numbered from 1)."""

    def encode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, exact_leaves: IntArray
    ) -> IntArray:
        """One node for each of some keys: what :meth:`encode` gives for their next leaf.

        ``state`` has a row for each key and is changed in place; ``leaf`` is the number of the
        leaf, of all of them or of each.  **Privacy.** As :meth:`encode`.
        """
        nodes = np.empty(len(exact_leaves), np.int64)
        numbers = np.broadcast_to(leaf, nodes.shape).tolist()
        for place, row in enumerate(_numbered(rows, state)) if state else ():
            own = tuple(part[row] for part in state)
            own, nodes[place : place + 1] = self.encode(
                own, numbers[place], exact_leaves[place : place + 1]
            )
            for part, new in zip(state, own, strict=True):
                part[row] = new
        return nodes

    def encode_rounds(
        self,
        state: State,
        rounds: Rounds,
        rows: IntArray,
        leaf: IntArray,
        exact_leaves: IntArray,
    ) -> IntArray:
        """Many leaves of some keys: as :meth:`encode_each`, round after round.

        A round has the next leaf of each of its keys.  **Privacy.** As :meth:`encode`.
        """
        parts = (self.encode_each(state, rows[r], leaf[r], exact_leaves[r]) for r in rounds)
        return np.concatenate([np.empty(0, np.int64), *parts])


class Decoder(ABC):
    """The map from noisy nodes to prefix sums: post-processing."""

    @abstractmethod
    def start(self) -> State:
        """State before the first leaf."""

    @abstractmethod
    def decode(self, state: State, first: int, noisy: IntArray) -> tuple[State, NDArray[Any]]:
        """Prefix sums at leaves ``first``, ``first + 1``, …, in lattice units."""

    def decode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, noisy: IntArray
    ) -> NDArray[Any]:
        """One prefix sum for each of some keys, as :meth:`Encoder.encode_each` gives one node."""
        numbers, sums = np.broadcast_to(leaf, noisy.shape).tolist(), []
        for place, row in enumerate(_numbered(rows, state)):
            own = tuple(part[row] for part in state)
            own, prefix = self.decode(own, numbers[place], noisy[place : place + 1])
            for part, new in zip(state, own, strict=True):
                part[row] = new
            sums.append(prefix)
        return np.concatenate([np.empty(0), *sums])

    def decode_rounds(
        self, state: State, rounds: Rounds, rows: IntArray, leaf: IntArray, noisy: IntArray
    ) -> NDArray[Any]:
        """Many prefix sums of some keys, as :meth:`Encoder.encode_rounds` gives nodes."""
        parts = (self.decode_each(state, rows[r], leaf[r], noisy[r]) for r in rounds)
        return np.concatenate([np.empty(0), *parts])


#: Draws of a level under the key in force: different levels are independent.
Levels: TypeAlias = Callable[[int], NoiseSource]
#: For a lattice of a number of steps, how far one unit can move a leaf: magnitudes by column.  No
#: movement may be more, its columns in some order, than a point of their convex hull: what it costs
#: is convex, and the same in any order.
Moves: TypeAlias = Callable[[int], tuple[tuple[int, ...], ...]]


def one_column(steps: int) -> tuple[tuple[int, ...], ...]:
    """Movements of a leaf of one column that a unit moves by at most ``steps``."""
    return ((steps,),)


class NoiseProcess:
    """The integer noise of the nodes, made from independent draws; here simply one draw each.

    A strategy whose noise is correlated (the signed-digit tree) draws each ingredient once, at the
    leaf that first needs it, with the key in force at that leaf, and keeps it in its state as long
    as later leaves need it: keys may ratchet between any two leaves, and nothing is drawn again.

    A state may have a row for each of many keys, which are all at the same leaf; then ``levels``
    give a row of draws for each of them.

    **Privacy.** Touches no data.  The state is noise: whoever reads it together with the releases
    learns exact sums, so it is kept as safe as the exact state of the encoder.
    """

    def start(self) -> State:
        """State before the first leaf."""
        return ()

    def draw(self, state: State, levels: Levels, first: int, count: int) -> tuple[State, IntArray]:
        """Noise of the nodes of leaves ``first``, ``first + 1``, …; all of them under one key."""
        return state, levels(0).draw(first, count)


#: How far leaves are kept from 0 where they come one at a time: further than any of them, and in
#: the middle of what Python's digits of 30 bits can hold, so that few leaves change more than one.
AWAY: Final = 7 * 2**59 + 2**29


class Stepper(ABC):
    """Encoder and decoder for one leaf at a time, without arrays; equal to them bit for bit.

    A leaf comes with :data:`AWAY` more, and noise with as much less.  Python takes less time for
    small integers, and least for 0, which would tell what a leaf is.
    """

    @abstractmethod
    def step(self, exact_leaf: int, noise: int) -> float:
        """Absorb one leaf and the noise of its node; return the noisy prefix sum."""

    @abstractmethod
    def states(self) -> tuple[State, State]:
        """The states that encoder and decoder would have now."""


class Strategy(ABC):
    """A public, frozen description; the subclasses are frozen dataclasses.

    ``law`` names the noise: ``"laplace"`` (pure ε) or ``"gaussian"``.
    """

    #: Tag in JSON and TOML.
    name: ClassVar[str]
    #: Raise it when anything about the noise or the encoding changes, so that no noise is shared
    #: between versions.
    version: ClassVar[int] = 1
    law: LawName

    def __post_init__(self) -> None:
        settle(self)

    def constants(self, leaves: int) -> tuple[float, ...]:
        """Numbers beside the options that encoder and decoder are made of; they key the noise."""
        return ()

    @abstractmethod
    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """How far the nodes can move when one leaf moves by at most ``steps``.

        For Laplace noise the L1 norm, for Gaussian noise the *square* of the L2 norm, over all
        nodes of a stream of ``leaves`` leaves.  Convex in ``steps`` from 0 on, where it is what
        rounding alone can move.
        """

    def repeated(self, leaves: int, steps: int, most: int, apart: int) -> Fraction:
        """How far the nodes can move when one unit moves several leaves by at most ``steps`` each.

        At most ``most`` of them, at least ``apart`` leaves from one another; in the norm of
        :meth:`sensitivity`, which it is for a single leaf.
        """
        count = min(most, (leaves - 1) // apart + 1)  # more do not fit
        if count == 1:
            return self.sensitivity(leaves, steps)
        return self.several(leaves, steps, count, apart)

    def several(self, leaves: int, steps: int, count: int, apart: int) -> Fraction:
        """:meth:`repeated` for ``count ≥ 2`` leaves that fit: by default group privacy.

        Norms add up, whatever the leaves; a strategy may know better.
        """
        return self.sensitivity(leaves, steps) * count ** (1 if self.law == "laplace" else 2)

    def spread(self, leaves: int, steps: int, most: int, apart: int) -> Fraction:
        """As :meth:`repeated`, for a unit that may have some of its contributions elsewhere.

        However few of ``most`` fit, all of them count, and their columns go on past the end of the
        stream: with sizes ``x_i`` in place of ``steps`` the movement is then bounded by a sum over
        pairs ``x_i·x_j·R(|i − j|·apart)``, as docs/proofs/people.md needs it.
        """
        if most == 1:
            return self.sensitivity(leaves, steps)
        return self.several(leaves, steps, most, apart)

    def discount(self, leaves: int) -> float:
        """``θ``, when decoded sums are ``Σ_j θ^(t−j)·x_j``; by default 1, nothing is forgotten."""
        return 1.0

    @abstractmethod
    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """Variance of the decoded prefix sum at leaf ``t``, in units of one node's variance."""

    @abstractmethod
    def encoder(self, leaves: int) -> Encoder:
        """The encoder for a stream of at most ``leaves`` leaves."""

    @abstractmethod
    def decoder(self, leaves: int) -> Decoder:
        """The decoder for a stream of at most ``leaves`` leaves."""

    def noise_process(self, leaves: int) -> NoiseProcess:
        """How the noise of the nodes is made: by default one independent draw for each."""
        return NoiseProcess()

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """Covariance of the decoded noise at two leaves, in units of one node's variance.

        ``earlier`` and ``later`` broadcast against each other, with ``earlier ≤ later``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no covariance")

    def for_many_keys(self) -> Strategy:
        """The same strategy with a state as small as can be, where that makes a difference."""
        return self

    def refined(self, leaves: int, steps: int, most: float) -> Strategy:
        """The same strategy with finer nodes, up to ``most`` times, where rounding them costs.

        ``steps`` is by how much a leaf moves.  By default nodes are as fine as leaves.
        """
        return self

    def stepper(
        self, leaves: int, absorbed: int, encoder_state: State, decoder_state: State
    ) -> Stepper | None:
        """Continue one leaf at a time after ``absorbed`` leaves, where there is such a form."""
        return None


@dataclass(frozen=True)
class Contributions:
    """What one unit may add: to at most ``most`` leaves, at least ``apart`` from one another.

    They may be spread over ``streams`` streams, each with a mechanism of its own.
    """

    most: int = 1
    apart: int = 1
    streams: int = 1


#: For another promise a lattice is made at most so much finer: on a fine one a leaf saturates soon.
_FINER = 64
#: For the size of a column's movement, how far its nodes can move.
_OfColumn: TypeAlias = Callable[[int], Fraction]


def _of_column(
    strategy: Strategy, leaves: int, contributions: Contributions, largest: int
) -> _OfColumn:
    """How far the nodes of a column can move when each contribution moves it by at most a size.

    For Gaussian noise, where a unit has several contributions, each may come on another lattice and
    in another stream, beside looks.  With S(K) = (K·√B + r)² the square of the movement when all
    are of size K, r that of rounding alone, this is ``(1 + η)·B·K² + (1 + 1/η)·streams·r²``, which
    is at least S(K), and of which every mixture of sizes costs no more than the worst of them
    (docs/proofs/people.md).  ``largest`` is the size for which η is best.
    """
    most, apart = contributions.most, contributions.apart
    if most == 1 or strategy.law == "laplace":
        return lambda size: strategy.spread(leaves, size, most, apart)
    whole, rounding = (strategy.spread(leaves, size, most, apart) for size in (largest, 0))
    moved = Fraction(root_up(whole)) - Fraction(root_down(rounding))
    blurred = Fraction(root_up(contributions.streams * rounding))
    ratio = blurred / moved
    of_square = (1 + ratio) * (moved / largest) ** 2
    of_rounding = blurred * (blurred + moved)
    return lambda size: of_square * size**2 + of_rounding


def _sensitivity(of_column: _OfColumn, moves: tuple[tuple[int, ...], ...]) -> Fraction:
    """Columns add up, since each has its own nodes.

    Each is charged its rounding in all movements, also where it does not move: with that the charge
    is convex and the same in any order of columns, so that all that ``moves`` stands for is covered
    (docs/proofs/counts.md).
    """
    sizes = [Counter(move) for move in moves]
    charge = {size: of_column(size) for size in set().union(*sizes)}
    return max(
        sum((charge[size] * columns for size, columns in move.items()), Fraction(0))
        for move in sizes
    )


@dataclass(frozen=True)
class _Rows:
    """The draws of many secrets, a row for each."""

    law: Law
    scale: float
    secrets: Sequence[Secret] = field(repr=False)
    purpose: tuple[KeyPart, ...]

    def draw(self, start: int, count: int) -> IntArray:
        return draw_each(self.law, self.scale, self.secrets, self.purpose, start, count)


@dataclass(frozen=True)
class Mechanism:
    """A strategy calibrated to a budget: lattice, noise scale, cost.

    A leaf may have several columns; each is encoded by itself, with nodes and noise of its own.

    **Privacy.** Releasing all ``leaves`` prefix sums of each column through :meth:`noise` costs a
    unit ``cost``, when it moves one leaf by at most one of ``moves(steps)``, or as many leaves as
    its ``contributions`` say.
    """

    strategy: Strategy
    leaves: int
    steps: int
    scale: float
    cost: Cost
    width: int = 1
    moves: Moves = field(default=one_column, repr=False, compare=False)
    contributions: Contributions = Contributions()

    @classmethod
    def calibrate(
        cls,
        strategy: Strategy,
        leaves: int,
        guarantee: Guarantee,
        *,
        already: Cost = Cost(),  # noqa: B008 - frozen
        observations: int | None = None,
        moves: Moves = one_column,
        contributions: Contributions = Contributions(),  # noqa: B008 - frozen
    ) -> Mechanism:
        """Spend all that ``already`` leaves of the promise on the prefix sums.

        ``observations`` is how many observations the leaves sum up (for the overflow check);
        ``moves`` says how far one unit can move a leaf, ``contributions`` how many of them.
        """
        if leaves < 1:
            raise ParameterError("length", "at least one observation after the lag", leaves)

        def sensitivity(steps: int) -> Fraction:
            sizes = moves(steps)
            largest = max(map(max, sizes))
            return _sensitivity(_of_column(strategy, leaves, contributions, largest), sizes)

        if strategy.law == "laplace":
            epsilon = Fraction(guarantee.epsilon) - already.epsilon
            if epsilon <= 0:
                raise ParameterError(
                    "epsilon", "a budget larger than what is spent already", guarantee.epsilon
                )
            steps = choose_steps(observations or leaves, round_up(sensitivity(1) / epsilon))
            scale = laplace_scale(sensitivity(steps), epsilon)
            cost = Cost.pure(epsilon)
        else:
            mu = gaussian_mu(guarantee, already)
            # At the usual lattice, since some strategies charge rounding, which is not linear.
            per_step = float(sensitivity(USUAL_STEPS)) ** 0.5 / mu / USUAL_STEPS
            steps = choose_steps(observations or leaves, per_step)
            scale = gaussian_std(sensitivity(steps), mu)
            while scale > LARGEST_SCALE and steps > FEWEST_STEPS:
                # On a coarser lattice than the usual one the charge for rounding weighs more.
                steps //= 2
                scale = gaussian_std(sensitivity(steps), mu)
            if scale > LARGEST_SCALE:
                raise noise_too_large(scale / steps)
            strategy = strategy.refined(leaves, steps, LARGEST_SCALE / scale)
            scale = gaussian_std(sensitivity(steps), mu)
            cost = Cost.gaussian(sensitivity(steps) / Fraction(scale) ** 2)
        width = len(moves(steps)[0])
        return cls(strategy, leaves, steps, scale, cost, width, moves, contributions)

    def sensitivity(self, steps: int) -> Fraction:
        """How far the nodes of all columns can move when one unit does its most on ``steps``.

        The L1 norm for Laplace noise, the square of the L2 norm for Gaussian noise.
        """
        return _sensitivity(self._of_column, self.moves(steps))

    @property
    def rounding(self) -> Cost:
        """The part of a Gaussian cost that rounding alone may cost a unit, whatever it adds."""
        return Cost(mu_squared=self.width * self._of_column(0) / Fraction(self.scale) ** 2)

    @cached_property
    def _of_column(self) -> _OfColumn:
        largest = max(map(max, self.moves(self.steps)))
        return _of_column(self.strategy, self.leaves, self.contributions, largest)

    def with_less(self, share: Fraction) -> tuple[int, Cost]:
        """Steps that leave ``share`` of the cost (ε, or μ²) unspent, and the cost of the rest.

        The noise stays as it is; an observation on fewer steps moves the nodes less.
        """

        def cost_of(steps: int) -> Cost:
            if self.strategy.law == "laplace":
                return Cost.pure(self.sensitivity(steps) / Fraction(self.scale))
            return Cost.gaussian(self.sensitivity(steps) / Fraction(self.scale) ** 2)

        def fits(steps: int) -> bool:
            cost, left = cost_of(steps), 1 - share
            return (
                cost.epsilon <= self.cost.epsilon * left
                and cost.mu_squared <= self.cost.mu_squared * left
            )

        low, high = 0, self.steps  # `low` fits (0 steps cost nothing), `high` does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        if low < 1:
            raise ParameterError("share", "a share that leaves room for the sum", float(share))
        return low, cost_of(low)

    def for_promise(self, guarantee: Guarantee) -> Mechanism:
        """The same noise for another promise: on more steps, or on fewer.

        The search takes a cost that grows with the steps for granted, and checks what it found.
        """
        gaussian = self.strategy.law == "gaussian"
        most = Fraction(gaussian_mu(guarantee)) ** 2 if gaussian else Fraction(guarantee.epsilon)

        def on(steps: int) -> Mechanism:
            other = replace(self, steps=steps)
            moved = other.sensitivity(steps)
            scale = Fraction(self.scale)
            cost = Cost.gaussian(moved / scale**2) if gaussian else Cost.pure(moved / scale)
            return replace(other, cost=cost)

        def fits(steps: int) -> bool:
            cost = on(steps).cost
            return (cost.mu_squared if gaussian else cost.epsilon) <= most

        low, high = 0, _FINER * self.steps + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        if low < FEWEST_STEPS:
            raise ParameterError(
                "epsilon",
                "one for which the noise of this state is not too much",
                guarantee.epsilon,
            )
        return on(low)

    def split(self, steps: int, share: Fraction) -> tuple[int, int]:
        """Two columns instead of those that ``steps`` pays for: how far each may move.

        The second gets ``share`` of the cost, the first the rest; where rounding alone costs more
        than a part, they stay as they are.
        """
        whole = self.sensitivity(steps)

        def largest(part: Fraction) -> int:
            low, high = 0, 2 * steps  # all that is tried and fits becomes `low`
            while high - low > 1:
                middle = (low + high) // 2
                fits = self._of_column(middle) <= whole * part
                low, high = (middle, high) if fits else (low, middle)
            return low

        first, second = largest(1 - share), largest(share)
        if not first or not second:
            ((first, second),) = self.moves(steps)
        return first, second

    @property
    def law(self) -> Law:
        """The noise law."""
        return LAWS[self.strategy.law]

    @cached_property
    def node_variance(self) -> float:
        """Variance of the noise on one node, in lattice units squared."""
        return self.law.variance(self.scale)

    def noise(self, secret: Secret, *purpose: KeyPart, column: int = 0) -> LatticeNoise:
        """The noise of a column's nodes: the draw at index ``t`` is for the node of leaf ``t``."""
        return LatticeNoise(self.law, self.scale, secret, self._purpose(purpose, column))

    def _purpose(self, purpose: tuple[KeyPart, ...], column: int) -> tuple[KeyPart, ...]:
        if not 0 <= column < self.width:
            raise ParameterError("column", f"0 to {self.width - 1}", column)
        suffix: tuple[KeyPart, ...] = ("column", column) if column else ()
        return ("strategy", *purpose, *suffix)

    def levels(self, secret: Secret, *purpose: KeyPart, column: int = 0, last: int = 0) -> Levels:
        """Independent draws for each level of a :class:`NoiseProcess`; level 0 is :meth:`noise`.

        Where a leaf has one draw, some are made ahead up to the leaf ``last``, if that is given:
        for short blocks that follow each other.
        """
        simple = type(self.strategy.noise_process(self.leaves)) is NoiseProcess
        # Not functools.cache: making one costs more than a short block's noise.
        opened: dict[int, NoiseSource] = {}

        def level(number: int) -> NoiseSource:
            if number not in opened:
                suffix: tuple[KeyPart, ...] = ("level", number) if number else ()
                noise = self.noise(secret, *purpose, *suffix, column=column)
                opened[number] = ReadAhead(noise, last) if last and simple else noise
            return opened[number]

        return level

    def levels_each(self, secrets: Sequence[Secret], *purpose: KeyPart, column: int = 0) -> Levels:
        """The same for many secrets at once, a row of draws for each."""
        return lambda number: _Rows(
            self.law,
            self.scale,
            secrets,
            self._purpose((*purpose, *(("level", number) if number else ())), column),
        )

    @cached_property
    def typical_unit_variance(self) -> float:
        """Mean of :meth:`unit_variance` over the second half of the stream.

        At a golden-ratio sequence of leaves: evenly spaced ones would be round numbers, which
        trees release with untypically few nodes.
        """
        spread = np.arange(1, 258) * 0.6180339887498949 % 1.0
        leaves = np.ceil(self.leaves * (1 + spread) / 2).astype(np.int64)
        return float(np.mean(self.unit_variance(np.minimum(leaves, self.leaves))))

    def unit_variance(self, t: IntArray | int) -> FloatArray:
        """Noise variance of the prefix sum at leaf ``t``, per unit of clipping range squared."""
        leaf = np.atleast_1d(np.asarray(t, np.int64))
        per_node = self.node_variance / float(self.steps) ** 2
        return self.strategy.weights(self.leaves, leaf) * per_node
