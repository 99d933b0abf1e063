"""How far each key is before its first release, where observations are counted.

**Privacy.** Public numbers: how many observations a declared key has is public in a run by count.
By the clock it is private, and nothing here counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rillet.noise import IntArray
from rillet.plan import Plan
from rillet.release import key_shown
from rillet.streams import Streams

#: In place of a count: the key has come to its first release; it is not known yet.
_RELEASES, _UNKNOWN = -1, -2
#: Of so many keys at most, the furthest ones, counts are told.
_MOST: Final = 10_000


class Learning:
    """The observations of each key that has released nothing yet.

    Parameters
    ----------
    plan
        By count, with keys.
    before
        Counts by shown key, as the last process told them; None: nothing was absorbed before.
    """

    def __init__(self, plan: Plan, before: Mapping[str, int] | None) -> None:
        self.needed = plan.layout.first_release
        self._keys = plan.tree.keys  # those that were retired too
        self._live = [each for each in plan.tree.indices.values() if each < len(self._keys)]
        self._counts = np.full(len(self._keys), _RELEASES, np.int64)
        self._counts[self._live] = 0
        if before is not None:
            shown = (str(key_shown(self._keys[index])) for index in self._live)
            self._counts[self._live] = [before.get(key, _UNKNOWN) for key in shown]

    def note(self, streams: Streams, key_of: IntArray) -> None:
        """After a block with observations of these keys, by their indices, -1 for none.

        **Privacy.** Looks at which keys occur, not at values.
        """
        occurs = np.zeros(len(self._counts), bool)
        occurs[key_of[key_of >= 0]] = True
        (indices,) = np.nonzero(occurs & (self._counts != _RELEASES))
        if len(indices):
            t = streams.times(indices)
            self._counts[indices] = np.where(t < self.needed, t, _RELEASES)

    @property
    def left(self) -> int:
        """How many keys have released nothing, as far as is known."""
        return int(np.count_nonzero(self._counts >= 0))

    @property
    def furthest(self) -> int:
        """The most observations that one of them has."""
        return int(self._counts.max(initial=0))

    @property
    def share(self) -> float:
        """How much of what all keys need before their first releases has come."""
        some = self._counts[self._counts >= 0]
        return 1.0 - float((1 - some / self.needed).sum()) / len(self._live)

    def counts(self) -> dict[str, int]:
        """Counts by shown key, the furthest keys first."""
        (some,) = np.nonzero(self._counts >= 0)
        order = some[np.argsort(-self._counts[some], kind="stable")][:_MOST]
        return {str(key_shown(self._keys[index])): int(self._counts[index]) for index in order}

    def __str__(self) -> str:
        """As "38 of 40 keys; the furthest has 3,412 of 10,000 observations"."""
        furthest = f"the furthest has {self.furthest:,} of {self.needed:,} observations"
        return f"{self.left:,} of {len(self._live):,} keys; {furthest}"
