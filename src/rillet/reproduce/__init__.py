"""Reproduce what the paper reports, on public data: each table and figure is one function.

``simulate`` and ``pipeline`` run mechanisms many times at one step, ``paths`` at all steps; the
other modules are the experiments, ``report`` puts them side by side with the paper.
"""

from rillet.reproduce.simulate import Simulated, improvement, simulate

__all__ = ["Simulated", "improvement", "simulate"]
