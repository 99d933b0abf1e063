"""Sane output: numbers that no data could have are replaced by the nearest that some could.

Noise can put a mean outside of its clipping range or a count below 0, and make a sum of values that
are not negative fall; a reader takes that for a mistake.  A plan with ``sane=True`` mends it, and
says so in ``post_processing``.  What a mended number was is not in the record, so that its noise
interval is worked out before, for 95 %, in ``noise_lower`` and ``noise_upper``.

**Privacy.** Post-processing of released numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from rillet.layout import Layout
from rillet.noise import FloatArray
from rillet.release import FOR_NOISE_INTERVAL, INTERVAL_KEPT, noise_interval

__all__ = ["MENDED", "mend"]

#: The numbers that are mended, or follow from one that is.
MENDED: Final = ("value", "sum", "mean", "count", "noise_lower", "noise_upper")


def mend(layout: Layout, name: str, raw: Callable[[str], Any], floor: FloatArray | None) -> Any:
    """One of the :data:`MENDED` numbers of some rows.

    ``raw`` gives the numbers as they were decoded, NaN where there is none; ``floor``, where sums
    must not fall, is for each row the greatest sum so far, its own included.
    """

    def within(number: Any) -> Any:
        # An unknown end is no end, an unknown number stays unknown.
        inside = np.fmin(np.fmax(number, raw("clip_lower")), raw("clip_upper"))
        return np.where(np.isnan(number), number, inside)

    def total(number: Any) -> Any:
        return np.maximum(number, 0.0) if layout.bounds.lower >= 0 else number

    def count(number: Any) -> Any:
        return np.maximum(number, 0.0)

    mended: dict[str, Callable[[Any], Any]] = {"mean": within, "sum": total, "count": count}
    if name == "sum" and floor is not None:
        return floor
    if name in mended:
        return mended[name](raw(name))
    if name == "value":
        number = raw("value")
        mended["sum"] = lambda _: mend(layout, "sum", raw, floor)
    else:
        known = (raw(each) for each in FOR_NOISE_INTERVAL)
        ends = noise_interval(INTERVAL_KEPT, layout.noise_law, *known)
        number = ends[name == "noise_upper"]
    kinds = layout.statistic.kinds
    kind = np.tile(kinds, np.size(number) // len(kinds))
    for one in dict.fromkeys(kinds):
        if one in mended:
            number = np.where(kind == one, mended[one](number), number)
    return number if len(kinds) > 1 or np.ndim(raw("value")) else number[0]
