"""Numbers as text, whole arrays at once: what ``repr`` writes, many times as fast.

A text is a row of bytes with NUL wherever there is nothing, so that columns can be laid beside each
other and the gaps be dropped at the end.

The digits of a double are the shortest decimal that reads back as the same double, and of those the
closest to it. That decimal is found as by Giulietti ("The Schubfach way to render doubles", 2021,
section 9): scale by a power of ten so that neighbours are between 1 and 10 apart, and ask which
multiples of ten and of one lie in the interval of numbers that round to it. For the ordinary
numbers here, 1e-4 to 1e16, the scaled number fits 128 bits exactly; ``repr`` spells the others.

**Privacy.** Post-processing: spells public numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["FLOAT_WIDTH", "INTEGER_WIDTH", "Bytes", "float_texts", "integer_texts", "text_rows"]

Bytes = NDArray[np.uint8]
_Words = NDArray[np.uint64]

#: As long as any ``repr`` of a double, "-2.2250738585072014e-308".
FLOAT_WIDTH: Final = 24
#: As long as any 64-bit number.
INTEGER_WIDTH: Final = 20

#: A double has at most so many significant digits.
_DIGITS = 17
_U = np.uint64
_LOW_32 = _U(2**32 - 1)
_FRACTION = _U(2**52 - 1)
_HIDDEN = _U(2**52)

# 10^j as a word with its top bit set: 5^j fits 64 bits up to j = 27, and 20 are needed.
_POWERS: _Words = np.array([(10**j << 128) >> (64 + (10**j).bit_length()) for j in range(21)], _U)
_LOG2 = np.array([(10**j).bit_length() - 1 for j in range(21)])

_FOUR = np.array([list(b"%04d" % n) for n in range(10_000)], np.uint8).view(np.uint32)[:, 0]
_ONE = np.array([[0, 0, 0, 48 + n] for n in range(10)], np.uint8).view(np.uint32)[:, 0]
#: Row n keeps the first n of 17 digits, which stand behind three empty bytes.
_FIRST = np.array([[0] * 3 + [255] * n + [0] * (_DIGITS - n) for n in range(18)], np.uint8)
#: Row n keeps the last n of 16 digits.
_LAST = np.array([[0] * (16 - n) + [255] * n for n in range(17)], np.uint8)
#: The smallest ordinary number has three zeros behind the point.
_FEWEST = 3
_TENS = np.array([10**n for n in range(1, 16)])


def float_texts(values: NDArray[np.float64]) -> Bytes:
    """Spell each number as ``repr`` does, what is not finite as ``null``: JSON has no such number.

    **Privacy.** Post-processing.

    Returns
    -------
    array of bytes
        One row of :data:`FLOAT_WIDTH` a number; bytes that are NUL are to be dropped.
    """
    values = np.ascontiguousarray(values, np.float64)
    size = np.abs(values)
    bits = values.view(_U)
    # The interval around a power of two has other bounds: leave those to `repr` too.
    ordinary = (size >= 1e-4) & (size < 1e16) & (bits & _FRACTION != 0)
    if ordinary.all():
        return _ordinary_texts(bits)
    texts = np.zeros((len(values), FLOAT_WIDTH), np.uint8)
    texts[ordinary] = _ordinary_texts(bits[ordinary])
    others = np.flatnonzero(~ordinary)
    finite = np.isfinite(values[others]).tolist()
    words = [
        float.__repr__(value) if known else "null"
        for value, known in zip(values[others].tolist(), finite, strict=True)
    ]
    texts[others] = text_rows(words, FLOAT_WIDTH)
    return texts


def integer_texts(values: NDArray[np.int64]) -> Bytes:
    """Spell each whole number, as :func:`float_texts` does."""
    texts = np.zeros((len(values), INTEGER_WIDTH), np.uint8)
    if len(values) and (values.min() < 0 or values.max() >= 10**16):
        texts[:] = text_rows(list(map(str, values.tolist())), INTEGER_WIDTH)
        return texts
    _spell_16(values.astype(_U), texts[:, :16].view(np.uint32))
    length = np.searchsorted(_TENS, values, side="right") + 1
    texts[:, :16] &= _LAST.take(length, axis=0)
    return texts


def text_rows(words: list[str], width: int | None = None) -> Bytes:
    """Rows of bytes, as wide as the longest word or as told."""
    joined = np.array([word.encode("ascii") for word in words], f"S{width}" if width else None)
    return joined.view(np.uint8).reshape(len(words), joined.dtype.itemsize)


def _ordinary_texts(bits: _Words) -> Bytes:
    number, point = _shortest(bits)
    significant = np.full(len(number), _DIGITS)
    # A tenth has one zero at the end, a hundredth two: less to do each time.
    places = np.flatnonzero(number % _U(10) == 0)
    shorter = number[places] // _U(10)
    while len(places):
        significant[places] -= 1
        again = shorter % _U(10) == 0
        places, shorter = places[again], shorter[again] // _U(10)
    digits = np.empty((len(number), 20), np.uint8)
    words = digits.view(np.uint32)
    first = number // _U(10**16)
    words[:, 0] = _ONE[first]
    _spell_16(number - first * _U(10**16), words[:, 1:])
    # "100.0": up to one behind the point.
    digits &= _FIRST.take(np.maximum(significant, point + 1), axis=0)
    # Numbers with the point at the same place lie together while it is set.
    counts = np.bincount(point + _FEWEST, minlength=1)
    groups = np.flatnonzero(counts).tolist()
    home: NDArray[np.int64] | None = None
    if len(groups) > 1:
        order = np.argsort(point.astype(np.int8), kind="stable")
        digits = digits.take(order, axis=0)
        home = np.empty_like(order)
        home[order] = np.arange(len(order))
    texts = np.zeros((len(number), FLOAT_WIDTH), np.uint8)
    first_row = 0
    for group in groups:
        rows = slice(first_row, first_row + int(counts[group]))
        _set_point(texts[rows], digits[rows], group - _FEWEST)
        first_row = rows.stop
    if home is not None:
        texts = texts.take(home, axis=0)
    texts[:, 0] = np.where(bits >> _U(63) != 0, np.uint8(ord("-")), np.uint8(0))
    return texts


def _set_point(texts: Bytes, digits: Bytes, point: int) -> None:
    """Lay out the digits with the point behind so many of them."""
    if point > 0:
        texts[:, 1 : 1 + point] = digits[:, 3 : 3 + point]
        texts[:, 1 + point] = ord(".")
        texts[:, 2 + point : 2 + _DIGITS] = digits[:, 3 + point :]
    else:
        before = 3 - point
        texts[:, 1:before] = ord("0")
        texts[:, 2] = ord(".")
        texts[:, before : before + _DIGITS] = digits[:, 3:]


def _spell_16(numbers: _Words, words: NDArray[np.uint32]) -> None:
    """Sixteen digits of each number, four to a word."""
    upper = (numbers // _U(10**8)).astype(np.uint32)
    lower = (numbers % _U(10**8)).astype(np.uint32)
    for place, half in ((0, upper), (2, lower)):
        four = half // np.uint32(10_000)
        words[:, place] = _FOUR[four]
        words[:, place + 1] = _FOUR[half - four * np.uint32(10_000)]


def _shortest(bits: _Words) -> tuple[_Words, NDArray[np.int64]]:
    """Seventeen digits of each double as a whole number, and how many stand before the point."""
    c = (bits & _FRACTION) | _HIDDEN
    q = (bits >> _U(52) & _U(0x7FF)).astype(np.int64) - 1075  # the double is c·2^q
    j = -((q * 1262611) >> 22)  # -floor(log10(2^q)): 10^j·2^q is in [1, 10)
    power = _POWERS[j]
    h = (q + _LOG2[j] + 1).astype(_U)
    scaled = c << (h + _U(2))
    # upper.lower is four times the double times 10^j, exactly, with 64 bits behind the point;
    # half a distance to the next double is twice 10^j·2^q.
    upper, lower = _high(power, scaled), power * scaled
    half_upper, half_lower = power >> (_U(63) - h), power << (h + _U(1))
    low_upper = upper - half_upper - (lower < half_lower)
    low_lower = lower - half_lower
    high_lower = lower + half_lower
    high_upper = upper + half_upper + (high_lower < lower)
    # Halves round to even: the ends of the interval belong to it if c is even. Ends and number
    # are compared with whole numbers only, so a last bit says whether anything follows.
    odd = c & _U(1)
    bottom = (low_upper | (low_lower != 0)) + odd
    top = (high_upper | (high_lower != 0)) - odd
    number = upper | (lower != 0)

    s = upper >> _U(2)
    tens = s // _U(10)
    forty = tens * _U(40)
    below, above = bottom <= forty, forty + _U(40) <= top
    four = s << _U(2)
    next_inside = four + _U(4) <= top
    middle = four + _U(2)
    nearer = (number > middle) | ((number == middle) & (s & _U(1) != 0))
    up = np.where((bottom <= four) != next_inside, next_inside, nearer)
    found = np.where(below != above, (tens + above) * _U(10), s + up)
    short = found < _U(10**16)
    return np.where(short, found * _U(10), found), _DIGITS - j - short


def _high(a: _Words, b: _Words) -> _Words:
    """The upper 64 bits of a product."""
    a0, a1, b0, b1 = a & _LOW_32, a >> _U(32), b & _LOW_32, b >> _U(32)
    cross, other = a0 * b1, a1 * b0
    middle = (a0 * b0 >> _U(32)) + (cross & _LOW_32) + (other & _LOW_32)
    result: _Words = a1 * b1 + (cross >> _U(32)) + (other >> _U(32)) + (middle >> _U(32))
    return result
