"""Calibrating a strategy to a budget: the noise fits the lattice, or the budget is refused."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from rillet.errors import ParameterError
from rillet.gather.grid import FEWEST_STEPS
from rillet.noise import LARGEST_SCALE, Secret
from rillet.privacy import Cost, Guarantee
from rillet.strategy import BinaryTree, BufferedToeplitz, Independent, SignedDigitTree
from rillet.strategy.base import Contributions, Mechanism
from rillet.testing import largest_distances


@pytest.mark.parametrize(
    ("strategy", "delta"),
    [
        (BufferedToeplitz(), 2.0**-20),
        (BufferedToeplitz(), 2.0**-60),
        (BinaryTree(law="gaussian"), 2.0**-60),
        (BinaryTree(), 0.0),
        (SignedDigitTree(), 0.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("length", [1000, 2**25])
def test_small_budgets_get_a_coarser_lattice_until_they_are_refused(strategy, delta, length):
    """A charge for rounding, which does not shrink with the lattice, must not break this off."""
    steps, refused = [], []
    for exponent in np.arange(0, 12, 0.3).tolist():
        try:
            mechanism = Mechanism.calibrate(strategy, length, Guarantee(10.0**-exponent, delta))
        except ParameterError as error:
            refused.append(error.parameter)
            continue
        assert not refused, "a smaller budget fits, a larger one did not"
        assert mechanism.scale <= LARGEST_SCALE
        mechanism.noise(Secret.for_tests(1)).draw(1, 2)
        steps.append(mechanism.steps)
    assert set(refused) <= {"epsilon"}
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1] >= FEWEST_STEPS


def test_the_charge_for_rounding_costs_a_step_and_not_the_plan():
    """Here the noise on the lattice chosen first is a little too large for it."""
    guarantee = Guarantee(5.01187233627294e-08, 2.0**-20)
    mechanism = Mechanism.calibrate(BufferedToeplitz(), 2**25, guarantee)
    assert mechanism.scale <= LARGEST_SCALE
    finer = BufferedToeplitz().sensitivity(2**25, 2 * mechanism.steps)
    used = BufferedToeplitz().sensitivity(2**25, mechanism.steps)
    assert mechanism.scale * float(finer / used) ** 0.5 > LARGEST_SCALE


# --- Leaves of several columns -------------------------------------------------------------------

#: What an observation can be on a lattice of so many steps, and how far one unit moves a leaf.
VECTORS = {
    "one column": (lambda k: [(0,), (k,)], lambda k: ((k,),)),
    "one of three bins": (
        lambda k: [(k, 0, 0), (0, k, 0), (0, 0, k)],
        lambda k: ((k, k, 0), (k, 0, k), (0, k, k)),
    ),
    "a value and whether there is one": (
        lambda k: [(0, 0), (0, 1), (k, 1)],
        lambda k: ((k, 1),),
    ),
}


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("kind", [BinaryTree, Independent])
def test_columns_move_as_far_as_is_charged(name, law, kind):
    """Every stream of vectors, every neighbour: the nodes of all columns, by brute force."""
    (domain, moves), length, steps = VECTORS[name], 4, 5
    strategy = kind(law)
    mechanism = Mechanism.calibrate(strategy, length, Guarantee(1.0, 2**-20), moves=moves)
    encoder = strategy.encoder(length)

    def nodes(stream):
        columns = np.array(stream, np.int64).T
        return np.concatenate([encoder.encode(encoder.start(), 1, c)[1] for c in columns])

    found = largest_distances(nodes, domain(steps), length)
    exact = found.l1 if law == "laplace" else found.squared_l2
    assert exact == mechanism.sensitivity(steps)
    assert mechanism.width == len(domain(1)[0])
    charged = mechanism.sensitivity(mechanism.steps)
    if law == "laplace":
        assert charged / Fraction(mechanism.scale) <= mechanism.cost.epsilon == 1
    else:
        assert charged / Fraction(mechanism.scale) ** 2 == mechanism.cost.mu_squared


def test_rounding_is_charged_for_every_column():
    one, bins = (VECTORS[name][1] for name in ("one column", "one of three bins"))
    guarantee = Guarantee(1.0, 2**-20)
    strategy = BufferedToeplitz()
    single = Mechanism.calibrate(strategy, 500, guarantee, moves=one)
    assert single == Mechanism.calibrate(strategy, 500, guarantee)
    still = Mechanism.calibrate(strategy, 500, guarantee, moves=lambda k: ((k, 0),))
    rounding = strategy.sensitivity(500, 0)
    assert still.sensitivity(1000) == single.sensitivity(1000) + rounding
    three = Mechanism.calibrate(strategy, 500, guarantee, moves=bins)
    assert three.sensitivity(1000) == 2 * single.sensitivity(1000) + rounding
    encoder = strategy.encoder(3)
    moved = [
        encoder.encode(encoder.start(), 1, np.array([a, 0, 0]))[1]
        - encoder.encode(encoder.start(), 1, np.array([b, 0, 0]))[1]
        for a, b in product((0, 7), repeat=2)
    ]
    assert not moved[0].any()
    assert max(int(m @ m) for m in moved) <= strategy.sensitivity(3, 7)


@pytest.mark.parametrize(
    "strategy", [BinaryTree(), SignedDigitTree(), BinaryTree("gaussian"), BufferedToeplitz()]
)
def test_mixtures_of_movements_are_covered(strategy):
    """A leaf may move by anything between two movements; with rounding, both columns then move."""
    leaves, steps = 500, 40
    mechanism = Mechanism.calibrate(
        strategy, leaves, Guarantee(1.0, 2**-20), moves=lambda k: ((k, 0), (0, k))
    )
    mixed = [
        sum(strategy.sensitivity(leaves, size) for size in (part, steps - part))
        for part in range(1, steps)
    ]
    assert max(mixed) <= mechanism.sensitivity(steps)
    if isinstance(strategy, BufferedToeplitz):  # charging the ends alone would not do
        assert max(mixed) > strategy.sensitivity(leaves, steps)


@pytest.mark.parametrize("share", [Fraction(1, 5), Fraction(1, 2), Fraction(9, 10)])
def test_every_split_costs_no_more_than_the_movements(share):
    strategy, leaves = BufferedToeplitz(), 2**16
    mechanism = Mechanism.calibrate(
        strategy, leaves, Guarantee(1.0, 2**-20), moves=lambda k: ((k // 2, k // 2),)
    )
    for steps in (2**20, 2**14, 999):
        parts = mechanism.split(steps, share)
        cost = [strategy.sensitivity(leaves, part) for part in parts]
        assert sum(cost) <= mechanism.sensitivity(steps)
        assert cost[1] <= share * mechanism.sensitivity(steps)
        assert float(cost[1] / mechanism.sensitivity(steps)) > 0.97 * float(share)
    # Where rounding alone costs more than a part, nothing is split.
    assert mechanism.split(10, Fraction(9, 10)) == (5, 5)


@pytest.mark.parametrize("strategy", [SignedDigitTree(), BufferedToeplitz()])
def test_a_smaller_part_is_charged_by_the_same_movements(strategy):
    moves = VECTORS["a value and whether there is one"][1]
    mechanism = Mechanism.calibrate(strategy, 100, Guarantee(1.0, 2**-20), moves=moves)
    steps, cost = mechanism.with_less(Fraction(1, 4))

    def cost_of(steps):
        moved = sum(strategy.sensitivity(100, size) for size in moves(steps)[0])
        if strategy.law == "laplace":
            return Cost.pure(moved / Fraction(mechanism.scale))
        return Cost.gaussian(moved / Fraction(mechanism.scale) ** 2)

    def paid(cost):
        return max(cost.epsilon, cost.mu_squared)

    assert cost == cost_of(steps)
    assert paid(cost) <= paid(mechanism.cost) * Fraction(3, 4) < paid(cost_of(steps + 1))


def test_columns_have_noise_of_their_own():
    moves = VECTORS["one of three bins"][1]
    wide = Mechanism.calibrate(SignedDigitTree(), 100, Guarantee(1.0), moves=moves)
    secret = Secret.for_tests(3)
    drawn = [wide.noise(secret, "main", column=c).draw(1, 50).tolist() for c in range(3)]
    drawn += [wide.levels(secret, "main", column=c)(1).draw(1, 50).tolist() for c in range(3)]
    assert len({tuple(draws) for draws in drawn}) == 6
    assert drawn[0] == wide.noise(secret, "main").draw(1, 50).tolist()
    assert drawn[4] == wide.levels(secret, "main", column=1)(1).draw(1, 50).tolist()
    with pytest.raises(ParameterError, match="column"):
        wide.noise(secret, "main", column=3)


@pytest.mark.parametrize("strategy", [Independent("gaussian"), BinaryTree("gaussian")], ids=str)
@pytest.mark.parametrize(("most", "apart", "streams"), [(2, 1, 1), (3, 2, 1), (3, 2, 3)])
def test_several_contributions_are_charged_what_they_move(strategy, most, apart, streams):
    """The charge is at least that of all on one lattice, close to it, and the square of a size."""
    mechanism = Mechanism.calibrate(
        strategy,
        12,
        Guarantee(1.0, 1e-6),
        contributions=Contributions(most=most, apart=apart, streams=streams),
    )
    for steps in (1, mechanism.steps // 3, mechanism.steps):
        charged, moved = mechanism.sensitivity(steps), strategy.spread(12, steps, most, apart)
        assert moved <= charged <= moved * Fraction(1001, 1000)
    spent = mechanism.sensitivity(mechanism.steps) / Fraction(mechanism.scale) ** 2
    assert mechanism.cost.mu_squared == spent


def test_rounding_costs_only_where_nodes_are_rounded():
    promise = Guarantee(1.0, 1e-6)
    plain = Mechanism.calibrate(BinaryTree("gaussian"), 12, promise)
    assert plain.rounding == Cost()
    rounded = Mechanism.calibrate(BufferedToeplitz(), 12, promise)
    assert 0 < rounded.rounding.mu_squared < Fraction(1, 1000) * rounded.cost.mu_squared
