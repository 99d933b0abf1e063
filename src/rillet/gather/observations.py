"""From what a program passes to observations: one outermost element is one observation, always.

**Privacy.** Touches raw data.  Each element is converted alone, so that no observation can change
what another becomes; nothing raises or warns because of a value.  What kind of container a program
passes, its shape and its length are public.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from rillet.errors import ParameterError
from rillet.noise import FloatArray

#: What float() would take with a warning, or read as text.
_NO_NUMBERS: Final = (complex, np.complexfloating, np.ma.MaskedArray, bytearray, memoryview)


def as_float(raw_value: object) -> float:
    """One observation as a float; what is not a real number becomes NaN."""
    if type(raw_value) is float:
        return raw_value
    try:
        if getattr(raw_value, "ndim", 0):
            return float("nan")  # an array is no number, not even one with a single element
        if isinstance(raw_value, np.ndarray):
            raw_value = raw_value[()]
        if isinstance(raw_value, _NO_NUMBERS):
            return float("nan")
        with np.errstate(all="ignore"):
            return float(raw_value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - an object's own conversion; whether it fails is private
        return float("nan")


def as_observations(values: ArrayLike | Iterable[object]) -> FloatArray:
    """A flat float array with one entry for each outermost element.

    Sets and mappings are refused, since they have no order, and so is text; arrays and data frames
    with more than one dimension are refused, since it is not clear what one observation is.
    """
    if isinstance(values, (Set, Mapping, str, bytes, bytearray)):
        kind = type(values).__name__
        raise ParameterError("values", "a sequence, an array or an iterator", f"a {kind}")
    shape = getattr(values, "shape", None)
    if isinstance(shape, tuple) and len(shape) != 1:
        raise ParameterError(
            "values",
            "one dimension, one entry for each observation",
            f"{len(shape)} dimensions",
            hint="pass one column",
        )
    if isinstance(values, np.ma.MaskedArray):
        return _one_by_one(np.ma.filled(values.astype(object), np.nan).tolist())
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        # A wider float may become infinite, and a narrow signalling NaN would warn.
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(np.asarray(values), np.float64)
    if isinstance(values, list) and set(map(type, values)) <= {float}:
        return np.array(values, np.float64)
    elements: Any = list(values) if isinstance(values, Iterable) else None
    if elements is None:
        raise ParameterError("values", "a sequence, an array or an iterator", type(values).__name__)
    return _one_by_one(elements)


def _one_by_one(raw_elements: list[object] | Iterator[object]) -> FloatArray:
    return np.array([as_float(raw_value) for raw_value in raw_elements], np.float64)
