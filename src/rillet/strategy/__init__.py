"""Strategies: how running sums of integers are released.

``tree``: the binary tree of the paper; ``independent``: the straw man.  Each keeps its encoder
(touches raw data) and its decoder (post-processing) apart.
"""

from rillet.strategy.base import Decoder, Encoder, Mechanism, Stepper, Strategy
from rillet.strategy.independent import Independent
from rillet.strategy.tree import BinaryTree

STRATEGIES: dict[str, type[Strategy]] = {kind.name: kind for kind in (BinaryTree, Independent)}

__all__ = [
    "STRATEGIES",
    "BinaryTree",
    "Decoder",
    "Encoder",
    "Independent",
    "Mechanism",
    "Stepper",
    "Strategy",
]
