"""Toeplitz strategies, best for Gaussian noise: the square root, and its buffered form (BLT)."""

from rillet.strategy.toeplitz.buffered import BufferedToeplitz
from rillet.strategy.toeplitz.square_root import SquareRootToeplitz

__all__ = ["BufferedToeplitz", "SquareRootToeplitz"]
