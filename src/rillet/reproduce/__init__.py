"""Reproduce what the paper reports, on public data: each figure is one function."""

from rillet.reproduce.simulate import Simulated, improvement, simulate

__all__ = ["Simulated", "improvement", "simulate"]
