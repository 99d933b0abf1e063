"""The gate: at most so many observations of a person enter, far enough apart, over all keys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GateRule:
    """Which observations of a person enter, in ticks: public.

    At most ``most`` in a block, at least ``apart`` ticks from one another.  Blocks have ``within``
    ticks and are counted from tick 1; None: one block for ever.
    """

    most: int
    apart: int = 1
    within: int | None = None
