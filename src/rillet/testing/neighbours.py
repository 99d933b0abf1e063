"""Brute force over neighbouring streams: the ground truth for every sensitivity.

Two streams are neighbours when they differ in the value of one observation (replace-one).  For a
function on streams over a small domain all streams and all neighbours are enumerated.

**Privacy.** For tests only: touches no private data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rillet.errors import ParameterError

__all__ = ["Distances", "largest_distances"]

#: More streams than this are refused: the search would take minutes.
MOST_STREAMS: Final = 300_000

Stream: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Distances:
    """Largest exact distances between images of neighbours, each with streams that attain it."""

    l1: Fraction
    squared_l2: Fraction
    l1_witness: tuple[Stream, Stream]
    squared_l2_witness: tuple[Stream, Stream]


def largest_distances(
    function: Callable[[Stream], ArrayLike], domain: Sequence[Any], length: int
) -> Distances:
    """Apply ``function`` to every stream of ``length`` values from ``domain``; compare neighbours.

    Parameters
    ----------
    function
        From a stream (a tuple) to a vector, of the same size for every stream.  Integer vectors
        are compared exactly; float vectors as the rationals that they are.
    domain
        The values that an observation can have, at least two.
    length
        Number of observations.

    Examples
    --------
    >>> largest_distances(lambda x: [sum(x), x[0]], [0, 3], 2).l1
    Fraction(6, 1)
    """
    if len(domain) < 2 or length < 1:
        raise ParameterError("domain", "at least two values, and a length of at least 1", domain)
    if len(domain) ** length > MOST_STREAMS:
        raise ParameterError("length", f"at most {MOST_STREAMS:,} streams", length)
    images = np.array(
        [_exact(function(tuple(domain[i] for i in path))) for path in _paths(domain, length)]
    )
    images = images.reshape((len(domain),) * length + (-1,))
    best: dict[str, tuple[Fraction, tuple[Stream, Stream]]] = {}
    for index in range(length):
        by_value = np.moveaxis(images, index, 0)
        for a, b in combinations(range(len(domain)), 2):
            moved = by_value[a] - by_value[b]
            for name, sizes in (("l1", np.abs(moved)), ("l2", moved * moved)):
                distance = np.asarray(sizes.sum(-1))
                where = np.unravel_index(int(np.argmax(distance)), distance.shape)
                found = distance[where]  # a NumPy integer, or a rational
                largest = Fraction(found.item() if isinstance(found, np.integer) else found)
                if name not in best or largest > best[name][0]:
                    around = [domain[int(i)] for i in where]
                    pair = tuple((*around[:index], domain[v], *around[index:]) for v in (a, b))
                    best[name] = largest, (pair[0], pair[1])
    return Distances(best["l1"][0], best["l2"][0], best["l1"][1], best["l2"][1])


def _paths(domain: Sequence[Any], length: int) -> product[tuple[int, ...]]:
    return product(range(len(domain)), repeat=length)


def _exact(vector: ArrayLike) -> NDArray[Any]:
    """Integers stay int64 when no square can overflow; everything else becomes rationals."""
    values = np.atleast_1d(np.asarray(vector))
    if values.dtype.kind in "iub" and (values.size == 0 or np.abs(values).max() < 2**24):
        return values.astype(np.int64)
    return np.array([Fraction(v) for v in values.tolist()], dtype=object)
