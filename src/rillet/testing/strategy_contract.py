"""The contract of a strategy: sensitivity, causality, exactness, blocks, variance, noise.

A strategy is seen as what it does to small streams.  ``C`` below is the matrix of the encoder
(leaves to nodes), ``N`` that of the noise process (independent draws to the noise of nodes; the
identity for most), ``D`` that of the decoder (noisy nodes to prefix sums).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rillet.noise import IntArray
from rillet.strategy.base import AWAY, State, Strategy
from rillet.testing.neighbours import largest_distances
from rillet.testing.shifts import LARGE_IMPULSE, ChosenDraws, least_shift, noise_matrix, norm_of
from rillet.testing.violation import ContractViolation

__all__ = ["check_strategy"]

#: Streams of these lengths are checked besides all the short ones.
LONGER = (16, 33, 64, 100)
#: Leaves as large as this must still be summed exactly.
LARGE_LEAF = 2**40
#: Longer streams have too many ways to move several leaves.
LONGEST_REPEATED = 5


def check_strategy(
    strategy: Strategy,
    *,
    max_leaves: int = 9,
    steps: int = 3,
    linear: bool = True,
    tight: bool = True,
    tolerance: float = 0.0,
    variance_tolerance: float = 0.0,
    largest_leaf: int = LARGE_LEAF,
) -> None:
    """Check every promise of a strategy on all streams of up to ``max_leaves`` leaves.

    Parameters
    ----------
    strategy
        What to check.
    max_leaves
        Streams up to this length are enumerated; a few longer ones are sampled.
    steps
        By how much one leaf can move in the enumeration.
    linear
        Whether the encoder is linear, exactly.  One that rounds is not; more of its streams are
        then enumerated over all leaves from 0 to ``steps``, not only the two extremes.
    tight
        Whether the sensitivity claimed must be attained, and not only be enough.
    tolerance
        By how much decoded noise-free prefix sums may miss the exact ones, in lattice units.
    variance_tolerance
        Relative error of the variances that ``weights`` and ``covariance`` state.
    largest_leaf
        Leaves up to this size are summed and compared.

    Raises
    ------
    ContractViolation
        Naming the broken promise.
    """
    for leaves in range(1, max_leaves + 1):
        probe = _Probe(strategy, leaves, largest_leaf)
        _check_sensitivity(probe, steps, linear=linear, tight=tight)
        _check_repeated(probe, steps, linear=linear)
        _check_blocks(probe, _all_splits(leaves))
        _check_maps(probe, linear=linear, tolerance=tolerance)
        _check_variance(probe, variance_tolerance)
    for leaves in (n for n in LONGER if n > max_leaves):
        probe = _Probe(strategy, leaves, largest_leaf)
        _check_blocks(probe, _some_splits(leaves))
        _check_maps(probe, linear=linear, tolerance=tolerance)
        _check_variance(probe, variance_tolerance)
    _check_stated_numbers(strategy, max_leaves)


# --- Running a strategy --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """What came out of one run, and the states of encoder, noise and decoder after each block."""

    nodes: IntArray
    noise: IntArray
    prefix: NDArray[Any]
    states: dict[int, tuple[State, State, State]]
    addresses: list[tuple[int, int]]


@dataclass(frozen=True)
class _Probe:
    """A strategy at a fixed length, with ways to run it."""

    strategy: Strategy
    leaves: int
    largest_leaf: int

    def fail(self, promise: str, detail: str) -> ContractViolation:
        return ContractViolation(promise, self.strategy, f"at {self.leaves} leaves, {detail}")

    def run(
        self,
        exact_leaves: IntArray,
        sizes: list[int] | None = None,
        chosen: Callable[[int, int], int] = lambda _level, _index: 0,
    ) -> _Run:
        """Feed the leaves in blocks of the given sizes, with fresh objects."""
        strategy, leaves = self.strategy, self.leaves
        encoder, decoder = strategy.encoder(leaves), strategy.decoder(leaves)
        process = strategy.noise_process(leaves)
        encoded, made, decoded = encoder.start(), process.start(), decoder.start()
        draws = ChosenDraws(chosen)
        nodes, noises, prefixes = [], [], []
        states = {}
        first = 1
        for size in [len(exact_leaves)] if sizes is None else sizes:
            block = exact_leaves[first - 1 : first - 1 + size]
            encoded, exact_nodes = self.untouched("encoder", encoder.encode, encoded, first, block)
            self._check_nodes(exact_nodes, size)
            made, noise = process.draw(made, draws.level, first, size)
            noisy = exact_nodes + noise
            decoded, prefix = self.untouched("decoder", decoder.decode, decoded, first, noisy)
            if len(prefix) != size:
                raise self.fail("one prefix sum a leaf", f"found {len(prefix)} for {size} leaves")
            nodes.append(np.array(exact_nodes))
            noises.append(np.array(noise))
            prefixes.append(np.array(prefix))
            first += size
            states[first - 1] = (_copied(encoded), _copied(made), _copied(decoded))
        return _Run(
            np.concatenate(nodes),
            np.concatenate(noises),
            np.concatenate(prefixes),
            states,
            draws.addresses,
        )

    def untouched(
        self, who: str, step: Callable[..., Any], state: State, first: int, block: IntArray
    ) -> Any:
        """Call a step and see that it leaves its state and its input as they were."""
        state_before, block_before = _copied(state), block.copy()
        result = step(state, first, block)
        if not _same(state, state_before):
            raise self.fail("states never changed in place", f"the {who} changed its state")
        if not np.array_equal(block, block_before):
            raise self.fail("inputs never changed in place", f"the {who} changed its input")
        return result

    def _check_nodes(self, exact_nodes: IntArray, size: int) -> None:
        if exact_nodes.dtype != np.int64:
            raise self.fail("exact integers", f"nodes are {exact_nodes.dtype}, not int64")
        if len(exact_nodes) != size:
            raise self.fail("one node a leaf", f"found {len(exact_nodes)} for {size} leaves")

    def matrix_of_encoder(self) -> IntArray:
        """``C``: column ``i`` holds the nodes when only leaf ``i`` is 1."""
        unit = np.eye(self.leaves, dtype=np.int64)
        return np.column_stack([self.run(unit[i]).nodes for i in range(self.leaves)])

    def matrix_of_noise(self) -> tuple[NDArray[np.float64], list[tuple[int, int]]]:
        """``N``: column ``i`` holds the noise of the nodes when only draw ``i`` is 1."""
        return noise_matrix(self.strategy, self.leaves)

    def matrix_of_decoder(self) -> NDArray[np.float64]:
        """``D``: column ``i`` holds the prefix sums when only node ``i`` is 1."""
        # Large impulses, so that a decoder may round its sums.
        impulses = np.zeros((self.leaves + 1, self.leaves), np.int64)
        np.fill_diagonal(impulses, LARGE_IMPULSE)
        decoder = self.strategy.decoder(self.leaves)
        found = [decoder.decode(decoder.start(), 1, nodes)[1] for nodes in impulses]
        moved = np.column_stack(found[:-1]) - np.asarray(found[-1])[:, None]
        return np.asarray(moved / float(LARGE_IMPULSE), np.float64)


def _copied(state: State) -> State:
    return tuple(np.array(part) for part in state)


def _same(a: State, b: State) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True)
    )


def _all_splits(leaves: int) -> Iterator[list[int]]:
    """Every way to cut a stream into blocks, and one with empty blocks in between."""
    for cuts in range(1 << (leaves - 1)):
        ends = [i + 1 for i in range(leaves - 1) if cuts >> i & 1]
        yield np.diff([0, *ends, leaves]).tolist()
    yield [0, 1, 0, leaves - 1, 0]


def _some_splits(leaves: int) -> Iterator[list[int]]:
    yield [1] * leaves
    yield [leaves]
    generator = np.random.default_rng(leaves)
    for _ in range(8):
        chosen = generator.choice(leaves - 1, size=int(generator.integers(1, 9)), replace=False)
        yield np.diff([0, *np.sort(chosen + 1), leaves]).tolist()


# --- Promises ------------------------------------------------------------------------------------


def _check_sensitivity(probe: _Probe, steps: int, *, linear: bool, tight: bool) -> None:
    """Enumerate neighbours; what is claimed must cover what is found."""
    strategy, leaves = probe.strategy, probe.leaves
    claimed = strategy.sensitivity(leaves, steps)
    noise, addresses = probe.matrix_of_noise()
    if len(set(addresses)) != len(addresses):
        raise probe.fail("each draw made once", f"addresses {addresses}")
    if np.array_equal(noise, np.eye(leaves)):
        # For a linear encoder the extremes suffice: distances are convex in the leaves.
        domain = range(steps + 1) if leaves <= (4 if linear else 6) else [0, steps]
        found = largest_distances(
            lambda leaves_: probe.run(np.array(leaves_, np.int64)).nodes, domain, leaves
        )
        largest = found.l1 if strategy.law == "laplace" else found.squared_l2
        where = found.l1_witness if strategy.law == "laplace" else found.squared_l2_witness
    else:
        moves = np.eye(leaves, dtype=np.int64) * steps
        largest, worst = _least_shift(probe, noise, moves)
        where = f"moves of {worst}"  # type: ignore[assignment]
    if largest > claimed:
        raise probe.fail(
            "sensitivity", f"claims {claimed} for steps={steps}, but {where} move by {largest}"
        )
    if tight and largest != claimed:
        raise probe.fail(
            "a tight sensitivity", f"claims {claimed} for steps={steps}, but {largest} is enough"
        )


def _least_shift(
    probe: _Probe, noise: NDArray[np.float64], moves: NDArray[np.int64]
) -> tuple[Fraction, list[int]]:
    """Least norm of a shift of the draws that looks like moved leaves; the largest of all moves."""
    encoder, law = probe.matrix_of_encoder(), probe.strategy.law
    largest, worst = Fraction(0), [0]
    for move in moves:
        shift = least_shift(law, noise, encoder @ move)
        if shift is None:
            raise probe.fail("sensitivity", f"no noise hides leaves that move by {move.tolist()}")
        norm = norm_of(law, shift)
        if norm > largest:
            largest, worst = norm, move.tolist()
    return largest, worst


def _check_repeated(probe: _Probe, steps: int, *, linear: bool) -> None:
    """Units that move several leaves, up or down: what is claimed must cover what is found."""
    strategy, leaves = probe.strategy, probe.leaves
    if leaves > LONGEST_REPEATED:
        return
    single = strategy.sensitivity(leaves, steps)
    noise, _ = probe.matrix_of_noise()
    independent = np.array_equal(noise, np.eye(leaves))
    generator = np.random.default_rng(leaves)
    streams = np.zeros((1 if linear else 4, leaves), np.int64)
    streams[1:] = generator.integers(0, probe.largest_leaf, streams[1:].shape)
    for most, apart in ((1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (leaves + 1, 1)):
        claimed = strategy.repeated(leaves, steps, most, apart)
        if most == 1 and claimed != single:
            raise probe.fail("repeated", f"claims {claimed!r} for one leaf, not {single!r}")
        moves = np.array(list(_moves(leaves, most, apart)), np.int64) * steps
        if not independent:
            largest, worst = _least_shift(probe, noise, moves)
        else:
            largest, worst = Fraction(0), [0]
            for stream in streams:
                before = probe.run(stream).nodes
                for move in moves:
                    moved = np.abs(probe.run(stream + move).nodes - before)
                    power = 1 if strategy.law == "laplace" else 2
                    found = Fraction(int(np.sum(moved**power)))
                    if found > largest:
                        largest, worst = found, move.tolist()
        if largest > claimed:
            raise probe.fail(
                "repeated",
                f"claims {claimed} for {most} leaves {apart} apart, but {worst} moves {largest}",
            )


def _moves(leaves: int, most: int, apart: int) -> Iterator[list[int]]:
    """Every way to move up to ``most`` leaves that are apart, the first of them upwards."""
    for move in product((0, 1, -1), repeat=leaves):
        where = np.flatnonzero(move)
        if 0 < len(where) <= most and move[where[0]] == 1 and np.all(np.diff(where) >= apart):
            yield list(move)


def _check_maps(probe: _Probe, *, linear: bool, tolerance: float) -> None:
    """Causality, linearity, exact decoding."""
    leaves = probe.leaves
    generator = np.random.default_rng(leaves)
    exact_leaves = generator.integers(0, probe.largest_leaf, leaves)
    whole = probe.run(exact_leaves)
    for kept in range(leaves):
        other = exact_leaves.copy()
        other[kept:] = generator.integers(0, probe.largest_leaf, leaves - kept)
        changed = probe.run(other)
        if not np.array_equal(changed.nodes[:kept], whole.nodes[:kept]):
            raise probe.fail("causality", f"leaves after {kept} change earlier nodes")
    if linear:
        again = probe.run(3 * exact_leaves + 1)
        ones = probe.run(np.ones(leaves, np.int64))
        if not np.array_equal(again.nodes, 3 * whole.nodes + ones.nodes):
            raise probe.fail(
                "linearity", "nodes of 3x + 1 are not 3 times those of x plus those of 1"
            )
    missed = np.max(np.abs(whole.prefix - _sums(probe, exact_leaves)))
    if missed > tolerance:
        raise probe.fail("exact decoding", f"noise-free prefix sums are wrong by {missed}")


def _sums(probe: _Probe, exact_leaves: IntArray) -> NDArray[Any]:
    """What decoded sums stand for: ``Σ_j θ^(t−j) x_j``; integers when nothing is forgotten."""
    discount = probe.strategy.discount(probe.leaves)
    if discount == 1:
        return np.cumsum(exact_leaves)
    sums, total = [], Fraction(0)
    for exact_leaf in exact_leaves.tolist():
        # Exactly, but for a rounding that no float shows: fractions would grow without end.
        total = Fraction(round((total * Fraction(discount) + exact_leaf) * 2**64), 2**64)
        sums.append(float(total))
    return np.array(sums)


def _check_variance(probe: _Probe, tolerance: float) -> None:
    """What the strategy states of its noise, against the response to every single draw."""
    strategy, leaves = probe.strategy, probe.leaves
    noise, _ = probe.matrix_of_noise()
    response = probe.matrix_of_decoder() @ noise
    covariance = response @ response.T
    t = np.arange(1, leaves + 1)
    stated, found = strategy.weights(leaves, t), np.diagonal(covariance)
    if np.shape(stated) != (leaves,) or not np.allclose(stated, found, rtol=tolerance, atol=0):
        worst = int(np.argmax(np.abs(stated - found)))
        raise probe.fail(
            "its noise variance",
            f"weights says {stated[worst]:g} at leaf {worst + 1}, impulses give {found[worst]:g}",
        )
    earlier, later = np.triu_indices(leaves)
    try:
        between = strategy.covariance(leaves, t[earlier], t[later])
    except NotImplementedError:
        return
    if not np.allclose(between, covariance[earlier, later], rtol=tolerance, atol=tolerance):
        raise probe.fail("its noise covariance", "covariance differs from what impulses give")


def _check_blocks(probe: _Probe, splits: Iterator[list[int]]) -> None:
    """Any split gives the same nodes, noise, outputs and states; so does the stepper."""
    leaves = probe.leaves
    generator = np.random.default_rng(leaves)
    exact_leaves = generator.integers(0, probe.largest_leaf, leaves)
    table = generator.integers(-(2**30), 2**30, (64, 2 * leaves + 64))

    def chosen(level: int, index: int) -> int:
        return int(table[level % 64, index % table.shape[1]])

    single = probe.run(exact_leaves, [1] * leaves, chosen)
    for sizes in splits:
        split = probe.run(exact_leaves, sizes, chosen)
        for part in ("nodes", "noise", "prefix"):
            a, b = getattr(split, part), getattr(single, part)
            if a.dtype != b.dtype or not np.array_equal(a, b):
                raise probe.fail("block invariance", f"blocks of {sizes} give other {part}")
        if sorted(split.addresses) != sorted(single.addresses):
            raise probe.fail("block invariance", f"blocks of {sizes} draw other noise")
        for t, states in split.states.items():
            if t and not all(_same(a, b) for a, b in zip(states, single.states[t], strict=True)):
                raise probe.fail("block invariance", f"blocks of {sizes} give another state at {t}")
    _check_independence(probe, exact_leaves, single)
    _check_stepper(probe, exact_leaves, single)


def _check_independence(probe: _Probe, exact_leaves: IntArray, single: _Run) -> None:
    """Two streams that take turns on the same objects must not touch each other."""
    strategy, leaves = probe.strategy, probe.leaves
    encoder, decoder = strategy.encoder(leaves), strategy.decoder(leaves)
    states = [(encoder.start(), decoder.start()) for _ in range(2)]
    for t, exact_leaf in enumerate(exact_leaves.tolist(), start=1):
        for who, leaf in enumerate((exact_leaf, 7 * t)):
            encoded, decoded = states[who]
            encoded, nodes = encoder.encode(encoded, t, np.array([leaf]))
            noisy = nodes + (single.noise[t - 1 : t] if who == 0 else 1)
            decoded, prefix = decoder.decode(decoded, t, noisy)
            states[who] = encoded, decoded
            if who == 0 and (nodes[0] != single.nodes[t - 1] or prefix[0] != single.prefix[t - 1]):
                raise probe.fail("streams apart", f"a second stream changes the first at leaf {t}")


def _check_stepper(probe: _Probe, exact_leaves: IntArray, single: _Run) -> None:
    strategy, leaves = probe.strategy, probe.leaves
    fresh = (strategy.encoder(leaves).start(), strategy.decoder(leaves).start())
    for absorbed in range(leaves):
        encoded, decoded = fresh
        if absorbed:
            encoded, _, decoded = single.states[absorbed]
        before = _copied(encoded), _copied(decoded)
        stepper = strategy.stepper(leaves, absorbed, encoded, decoded)
        if stepper is None:
            return
        for t in range(absorbed + 1, leaves + 1):
            prefix = stepper.step(int(exact_leaves[t - 1]) + AWAY, int(single.noise[t - 1]) - AWAY)
            if prefix != single.prefix[t - 1]:
                raise probe.fail("stepper equals blocks", f"another prefix sum at leaf {t}")
            end = single.states[t]
            if not all(
                _same(a, b) for a, b in zip(stepper.states(), (end[0], end[2]), strict=True)
            ):
                raise probe.fail("stepper equals blocks", f"other states after leaf {t}")
        if not (_same(encoded, before[0]) and _same(decoded, before[1])):
            raise probe.fail("states never changed in place", "the stepper changed its states")


def _check_stated_numbers(strategy: Strategy, leaves: int) -> None:
    """What is stated is exact, positive and scales as a norm does."""
    one, seven = strategy.sensitivity(leaves, 1), strategy.sensitivity(leaves, 7)
    several = strategy.repeated(leaves, 7, 2, 1)
    exact = all(type(stated) is Fraction for stated in (one, seven, several))
    if not exact or not 0 < one <= seven:
        raise ContractViolation(
            "sensitivity", strategy, f"expected growing Fractions, found {one!r} and {seven!r}"
        )
    try:
        hash(strategy)
        object.__getattribute__(strategy, "__dataclass_params__")
        setattr(strategy, "law", strategy.law)  # noqa: B010
    except (AttributeError, TypeError) as error:
        if isinstance(error, FrozenInstanceError):
            return
    raise ContractViolation("a frozen description", strategy, "expected a frozen dataclass")
