"""Noise: secrets, keystreams, laws, exact rounding.  The only package that draws randomness."""

from rillet.noise.laws import GAUSSIAN, LAPLACE, LAWS, FloatArray, Law, LawName
from rillet.noise.sampling import (
    CHUNK,
    LARGEST_SCALE,
    IntArray,
    LatticeNoise,
    NoiseSource,
    ReadAhead,
    continuous_draw,
    decide,
    draw_each,
    uniform_below,
)
from rillet.noise.secret import KeyPart, Keystream, Secret, random_name

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
    "LawName",
    "NoiseSource",
    "ReadAhead",
    "Secret",
    "continuous_draw",
    "decide",
    "draw_each",
    "random_name",
    "uniform_below",
]
