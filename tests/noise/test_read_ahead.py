"""Draws that are made ahead are those that are asked for, in whatever order."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rillet.noise import CHUNK, LAPLACE, IntArray, LatticeNoise, ReadAhead, Secret

NOISE = LatticeNoise(LAPLACE, 1000.0, Secret.for_tests(3), ("read ahead",))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.one_of(st.integers(0, 300), st.just(CHUNK))),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_was_asked_before_the_draws_are_the_same(asked: list[tuple[int, int]]) -> None:
    ahead = ReadAhead(NOISE, last=5000)
    for start, count in asked:
        np.testing.assert_array_equal(ahead.draw(start, count), NOISE.draw(start, count))


def test_what_is_given_away_can_be_changed() -> None:
    ahead = ReadAhead(NOISE, last=100)
    ahead.draw(0, 10)[:] = 0
    np.testing.assert_array_equal(ahead.draw(0, 10), NOISE.draw(0, 10))


class _Recorded:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def draw(self, start: int, count: int) -> IntArray:
        self.calls.append((start, count))
        return NOISE.draw(start, count)


def test_short_blocks_that_follow_each_other_seldom_draw() -> None:
    source = _Recorded()
    ahead = ReadAhead(source, last=10_000)
    for start in range(0, 16 * 64, 16):
        ahead.draw(start, 16)
    assert len(source.calls) == 4


def test_in_order_each_is_drawn_once_and_none_after_the_last() -> None:
    source = _Recorded()
    ahead, start = ReadAhead(source, last=1000), 1
    for count in [7, 1, 50, 3, 200, 11, 400, 328]:
        ahead.draw(start, count)
        start += count
    drawn = [index for begin, count in source.calls for index in range(begin, begin + count)]
    assert drawn == list(range(1, 1001))
