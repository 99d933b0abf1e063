"""Plans: what is promised, how it is kept, and what it will cost in accuracy."""

from rillet.plan.alone import LearnedRange, learn_range
from rillet.plan.plan import MECHANISMS, Plan, options_for

__all__ = ["MECHANISMS", "LearnedRange", "Plan", "learn_range", "options_for"]
