"""BLT for a half-life: sums in which a leaf counts half after each so many leaves.

The matrix of these sums has the generating function ``1/(1 − θz)``, ``θ = 2^(−1/half_life)``; its
square root is that of prefix sums at ``θz``, and so is its fit: every rate becomes
``1 − θ(1 − rate)``.  What is forgotten need not be protected any longer: the error stays bounded,
``(2/π)·K(θ²)`` for the square root, ``K`` the complete elliptic integral.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from rillet.noise import LawName
from rillet.options import option
from rillet.strategy.recurrence import LONGEST_HALF_LIFE, discount_of, forgetting_rate
from rillet.strategy.toeplitz.blt import FEWEST_BUFFERS, MOST_BUFFERS, Blt, blt_for
from rillet.strategy.toeplitz.buffered import BltStrategy


@dataclass(frozen=True)
class DecayedToeplitz(BltStrategy):
    """A BLT strategy for sums in which a leaf counts half after each ``half_life`` leaves.

    **Privacy.** As :class:`BltStrategy`, with coefficients that fall faster.

    Parameters
    ----------
    half_life
        Leaves after which a leaf counts half, 1 to 2^30.
    law
        ``"gaussian"``.
    buffers
        Number of buffers, 2 to 8; ``None`` takes as few as come within 0.6 % of the square root up
        to a half-life of 2^20 leaves, and 6 above.

    Examples
    --------
    >>> strategy = DecayedToeplitz(half_life=168)
    >>> round(float(strategy.sensitivity(leaves=2**20, steps=2**20)) ** 0.5 / 2**20, 3)
    1.554
    """

    half_life: float = option(ge=1.0, le=LONGEST_HALF_LIFE)
    law: LawName = "gaussian"
    buffers: int | None = option(default=None, ge=FEWEST_BUFFERS, le=MOST_BUFFERS)
    name: ClassVar[str] = "decayed-toeplitz"

    def blt(self, leaves: int) -> Blt:
        """The rates fitted to twice the half-life, or to all leaves, which then decay."""
        length = min(leaves, 2 * math.ceil(self.half_life))
        few = 3 + sum(length > 2**log_length for log_length in (9, 14, 19))
        return _decaying(blt_for(length, self.buffers or few), forgetting_rate(self.half_life))

    def constants(self, leaves: int) -> tuple[float, ...]:
        """The rates, and ``1 − θ`` in the same unit."""
        blt = self.blt(leaves)
        return (*blt.rates, blt.forgetting)

    def discount(self, leaves: int) -> float:
        """``θ``, to 53 bits."""
        return discount_of(self.half_life)

    def variant(self, bits: int, *, small: bool) -> FineDecayedToeplitz:
        """The same rates."""
        return FineDecayedToeplitz(self.half_life, self.law, self.buffers, bits, small)


@dataclass(frozen=True)
class FineDecayedToeplitz(DecayedToeplitz):
    """The same with finer nodes or a small state; a plan takes it by itself."""

    bits: int = 0
    small: bool = False


@lru_cache(maxsize=64)
def _decaying(blt: Blt, forgetting: int) -> Blt:
    """``c(θz)``: rates ``1 − θ(1 − rate)``, on their lattice again."""
    kept = (1 << 53) - forgetting
    return Blt(tuple(forgetting + (kept * rate >> 53) for rate in blt.rates), forgetting)
