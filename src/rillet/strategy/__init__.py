"""Strategies: how running sums of integers are released.

``tree``: the binary tree of the paper; ``independent``: the straw man; ``honaker``: the same tree,
better decoded; ``signed_digit``: best for pure ε; ``toeplitz``: BLT and the square root, best for
Gaussian noise.  ``restarted`` and ``toeplitz.window`` are for windows, and strategies named
"decayed" release sums that forget.  Each keeps its encoder (touches raw data) and its decoder
(post-processing) apart.
"""

from rillet.registry import Registry
from rillet.strategy.base import Contributions, Decoder, Encoder, Mechanism, Stepper, Strategy
from rillet.strategy.honaker import HonakerTree
from rillet.strategy.independent import DecayedIndependent, Independent
from rillet.strategy.restarted import RestartedTree
from rillet.strategy.signed_digit import SignedDigitTree
from rillet.strategy.toeplitz import (
    BufferedToeplitz,
    DecayedToeplitz,
    SquareRootToeplitz,
    WindowToeplitz,
)
from rillet.strategy.tree import BinaryTree

_OWN = (
    *(BinaryTree, BufferedToeplitz, DecayedIndependent, DecayedToeplitz),
    *(HonakerTree, Independent, RestartedTree, SignedDigitTree),
    *(SquareRootToeplitz, WindowToeplitz),
)
STRATEGIES = Registry("a strategy", "rillet.strategies", {kind.name: kind for kind in _OWN})

__all__ = [
    "STRATEGIES",
    "BinaryTree",
    "BufferedToeplitz",
    "Contributions",
    "DecayedIndependent",
    "DecayedToeplitz",
    "Decoder",
    "Encoder",
    "HonakerTree",
    "Independent",
    "Mechanism",
    "RestartedTree",
    "SignedDigitTree",
    "SquareRootToeplitz",
    "Stepper",
    "Strategy",
    "WindowToeplitz",
]
