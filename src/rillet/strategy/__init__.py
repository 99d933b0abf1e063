"""Strategies: how running sums of integers are released.

``tree``: the binary tree of the paper; ``independent``: the straw man; ``honaker``: the same tree,
better decoded; ``signed_digit``: best for pure ε; ``toeplitz``: BLT and the square root, best for
Gaussian noise.  Each keeps its encoder (touches raw data) and its decoder (post-processing) apart.
"""

from rillet.strategy.base import Decoder, Encoder, Mechanism, Stepper, Strategy
from rillet.strategy.honaker import HonakerTree
from rillet.strategy.independent import Independent
from rillet.strategy.signed_digit import SignedDigitTree
from rillet.strategy.toeplitz import BufferedToeplitz, SquareRootToeplitz
from rillet.strategy.tree import BinaryTree

STRATEGIES: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in (
        BinaryTree,
        BufferedToeplitz,
        HonakerTree,
        Independent,
        SignedDigitTree,
        SquareRootToeplitz,
    )
}

__all__ = [
    "STRATEGIES",
    "BinaryTree",
    "BufferedToeplitz",
    "Decoder",
    "Encoder",
    "HonakerTree",
    "Independent",
    "Mechanism",
    "SignedDigitTree",
    "SquareRootToeplitz",
    "Stepper",
    "Strategy",
]
