"""Plans: what is promised, how it is kept, and what it will cost in accuracy."""

from rillet.plan.plan import Plan

__all__ = ["Plan"]
