"""Toeplitz strategies, best for Gaussian noise: the square root, and buffered forms of it (BLT)."""

from rillet.strategy.toeplitz.buffered import BufferedToeplitz
from rillet.strategy.toeplitz.decayed import DecayedToeplitz
from rillet.strategy.toeplitz.square_root import SquareRootToeplitz
from rillet.strategy.toeplitz.window import WindowToeplitz

__all__ = ["BufferedToeplitz", "DecayedToeplitz", "SquareRootToeplitz", "WindowToeplitz"]
