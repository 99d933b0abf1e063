"""Noise: secrets, keystreams, laws, exact rounding.  The only package that draws randomness."""

from rillet.noise.keyed import (
    CHUNK,
    LARGEST_SCALE,
    FloatArray,
    IntArray,
    KeyPart,
    Keystream,
    LatticeNoise,
    Secret,
    continuous_draw,
    decide,
    random_name,
    uniform_below,
)
from rillet.noise.laws import GAUSSIAN, LAPLACE, LAWS, Law

__all__ = [
    "CHUNK",
    "GAUSSIAN",
    "LAPLACE",
    "LARGEST_SCALE",
    "LAWS",
    "FloatArray",
    "IntArray",
    "KeyPart",
    "Keystream",
    "LatticeNoise",
    "Law",
    "Secret",
    "continuous_draw",
    "decide",
    "random_name",
    "uniform_below",
]
