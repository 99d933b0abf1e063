"""Whatever an observation is, it is one, and nobody can tell from outside what it was.

Neighbours differ in one element. Every public function that takes observations, under every kind
of plan, must count the same number for both, raise and warn the same, and move a sum by no more
than one observation can.
"""

from __future__ import annotations

import collections
import decimal
import fractions
import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from rillet import Plan, Secret, Sum
from trust import faults

UPPER, LAG = 1000.0, 4
SECRET = Secret.for_tests(12)
DECLARED = {"epsilon": 1.0, "upper": UPPER, "length": 500}
LEARNED = {**DECLARED, "delta": 2.0**-20, "lag": LAG}
KEYS = ["a", "b"]
PLANS = {
    "declared": Plan.baseline(**DECLARED),
    "declared, every second": Plan.baseline(**DECLARED, every=2, statistic=Sum()),
    "learned": Plan(**LEARNED),
    "learned, backfilled": Plan(**LEARNED, backfill=True),
    "paper": Plan.paper(**LEARNED),
    "keyed": Plan.baseline(**DECLARED, keys=KEYS),
    "keyed, learned": Plan(**LEARNED, keys=KEYS),
    "keyed, shared": Plan(**LEARNED, keys=KEYS, shared_threshold=True),
}


class Unwilling:
    """Its conversion fails in a way that is all its own."""

    def __float__(self) -> float:
        raise ZeroDivisionError("a private value")

    def __array__(self, *_: object, **__: object) -> Any:
        raise KeyError("a private value")

    def __len__(self) -> int:
        raise OSError("a private value")


class Pretender:
    """Says that it is an array of three, and has as many dimensions as it likes."""

    @property
    def ndim(self) -> int:
        raise ArithmeticError("a private value")

    def __array__(self, *_: object, **__: object) -> Any:
        return np.array([1.0, 2.0, 3.0])


def payload(bits: int, kind: str) -> Any:
    """A NaN with a payload of its own."""
    wide = {"f8": np.uint64, "f4": np.uint32, "f2": np.uint16}[kind]
    return np.array([bits], wide).view(kind)[0]


PLAIN = st.one_of(
    st.floats(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([-0.0, 5e-324, 1e308, 10**400, -(10**400), True, None, "", "12.5", b"3", "x"]),
    st.sampled_from([decimal.Decimal("sNaN"), decimal.Decimal("1e999999")]),
    st.sampled_from([fractions.Fraction(10**500, 3), 3 + 4j, object(), float, {}, {"a": 1}]),
    st.sampled_from(
        [np.complex64(1j), np.array(2j), np.str_("7"), np.void(b"7"), "1_000", "9" * 5000]
    ),
    st.sampled_from([np.float16(np.inf), np.longdouble("1e4000"), np.datetime64("NaT")]),
    st.sampled_from([payload(0xFFF8DEAD00000000, "f8"), payload(0x7FC12345, "f4"), Unwilling()]),
)
NESTED = st.one_of(
    st.lists(st.floats(0.0, UPPER), max_size=3),
    st.lists(st.lists(st.floats(0.0, UPPER), max_size=2), max_size=2),
    st.lists(st.floats(0.0, UPPER), max_size=3).map(tuple),
    st.lists(st.floats(0.0, UPPER), max_size=3).map(np.array),
    st.sampled_from([bytearray(b"12"), range(3), np.array(7.0), np.array([7.0]), Pretender()]),
    st.sampled_from(
        [np.ones((2, 2)), np.ma.ones(1), memoryview(b"12"), iter([1.0]), np.recarray(1, "f8")]
    ),
)
SILENT = st.sampled_from(
    [
        np.ma.masked,
        np.ma.array(1.0, mask=True),
        payload(0x7FF0000000000001, "f8"),  # warns beside a long double only
        payload(0x7F800001, "f4"),
        payload(0x7C01, "f2"),
    ]
)


ELEMENTS = {"plain": PLAIN, "nested": NESTED, "silent": SILENT}


def as_objects(values: list[Any]) -> Any:
    """An array of objects, however its elements look."""
    made = np.empty(len(values), object)
    for index, value in enumerate(values):
        made[index] = value
    return made


def as_series(values: list[Any]) -> Any:
    """A column of a data frame, of objects."""
    return pytest.importorskip("pandas").Series(as_objects(values))


class Lazy:
    """Gives its elements when they are asked for, and has no length."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __iter__(self) -> Any:
        yield from self._values


CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "generator": lambda values: (value for value in values),
    "chain": lambda values: itertools.chain(values[:1], values[1:]),
    "iterator": iter,
    "lazy": Lazy,
    "deque": collections.deque,
    "objects": as_objects,
    "series": as_series,
}


@dataclass(frozen=True)
class Outcome:
    """All that somebody sees from outside, but for the noisy numbers."""

    raised: str
    warned: tuple[str, ...]
    observations: int
    times: tuple[int | None, ...]


Fed = tuple[int, list[Any]]


def feed_one(plan: Plan, secret: Secret, values: list[Any], pack: Any) -> Fed:
    stream = plan.open(secret=secret)
    found = [stream.update(value) for value in values]
    return stream.t, found


def feed_many(plan: Plan, secret: Secret, values: list[Any], pack: Any) -> Fed:
    stream = plan.open(secret=secret)
    found = list(stream.update_many(pack(values)))
    return stream.t, found


def feed_one_of_many(plan: Plan, secret: Secret, values: list[Any], pack: Any) -> Fed:
    streams = plan.open_many(secret=secret)
    found = [streams.update(value, key="a") for value in values]
    return streams.observations, found


def feed_many_of_many(plan: Plan, secret: Secret, values: list[Any], pack: Any) -> Fed:
    streams = plan.open_many(secret=secret)
    found = list(streams.update_many(pack(values), key="a"))
    return streams.observations, found


FUNCTIONS = {
    "Stream.update": feed_one,
    "Stream.update_many": feed_many,
    "Streams.update": feed_one_of_many,
    "Streams.update_many": feed_many_of_many,
}
CASES = [
    (name, plan)
    for name in FUNCTIONS
    for plan in PLANS
    if bool(PLANS[plan].keys) == name.startswith("Streams")
]


def outcome(
    name: str, plan: str, values: list[Any], pack: Any, secret: Secret = SECRET
) -> tuple[Outcome, list[Any]]:
    """Feed values; warnings are recorded, since as errors they would be caught inside."""
    raised, observations, found = "", 0, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            observations, found = FUNCTIONS[name](PLANS[plan], secret, values, pack)
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            raised = f"{type(error).__name__}: {error}"
    warned = tuple(sorted({str(warning.message) for warning in caught}))
    times = tuple(None if release is None else release.t for release in found)
    return Outcome(raised, warned, observations, times), found


def check(name: str, plan: str, values: list[Any], strange: Any, index: int, pack: Any) -> None:
    neighbour = list(values)
    neighbour[index % len(values)] = strange
    ordinary, releases = outcome(name, plan, values, pack)
    other, others = outcome(name, plan, neighbour, pack)
    assert (ordinary.raised, ordinary.warned, ordinary.observations) == ("", (), len(values))
    assert other == ordinary
    # The noise is the same: what is left is what one observation did.
    if not PLANS[plan].lag:
        for mine, theirs in zip(releases, others, strict=True):
            assert mine is None or abs(mine.sum - theirs.sum) <= UPPER * (1 + 1e-9)
    # Under a secret that is given, what was absorbed is digested, too.
    assert outcome(name, plan, neighbour, pack, Secret.generate())[0] == ordinary


@pytest.mark.parametrize(("name", "plan"), CASES)
@pytest.mark.parametrize("kind", sorted(ELEMENTS))
def test_neighbours_look_alike_from_outside(name, plan, kind):
    @settings(max_examples=15, phases=[Phase.generate], report_multiple_bugs=False)
    @given(
        ordinary=st.lists(st.floats(0.0, UPPER), min_size=1, max_size=LAG + 3),
        strange=ELEMENTS[kind],
        index=st.integers(0, LAG + 2),
        pack=st.sampled_from(sorted(CONTAINERS)),
    )
    def neighbours(ordinary, strange, index, pack):
        check(name, plan, ordinary, strange, index, CONTAINERS[pack])

    neighbours()


@pytest.mark.parametrize(
    ("put_back", "name", "plan", "kind"),
    [
        (faults.PUT_BACK["flattened"], "Stream.update_many", "declared", "nested"),
        (faults.PUT_BACK["flattened"], "Streams.update_many", "keyed, shared", "nested"),
        (faults.convert_plainly, "Stream.update", "declared", "silent"),
        (faults.convert_plainly, "Stream.update_many", "learned", "silent"),
    ],
)
def test_old_faults_are_seen_when_they_are_put_back(put_back, name, plan, kind):
    with pytest.MonkeyPatch.context() as patch:
        put_back(patch)
        with pytest.raises(AssertionError):
            test_neighbours_look_alike_from_outside(name, plan, kind)


#: Arrays whose elements have a type: two neighbours of each.
ORDINARY = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
TYPED = {
    "float64": (np.float64, [np.nan, -0.0, 1e308, payload(0x7FF0000000000001, "f8")]),
    "float32": (np.float32, [np.inf, payload(0x7F800001, "f4"), payload(0xFFC12345, "f4")]),
    "float16": (np.float16, [np.nan, 65504.0, payload(0x7C01, "f2")]),
    "long double": (np.longdouble, [np.longdouble("1e4000"), np.longdouble("-1e-4000")]),
    "int64": (np.int64, [-(2**63), 2**63 - 1]),
    "uint64": (np.uint64, [2**64 - 1]),
    "bool": (np.bool_, [False]),
    "text": ("U9", ["x", "", "nan", "1e999"]),
    "bytes": ("S9", [b"x", b"", b"\xff"]),
    "complex": (np.complex128, [1j, complex("nan")]),
    "times": ("M8[s]", [np.datetime64("NaT")]),
}


@pytest.mark.parametrize("name", ["Stream.update_many", "Streams.update_many"])
@pytest.mark.parametrize("kind", sorted(TYPED))
def test_neighbours_in_an_array_look_alike_from_outside(name, kind):
    dtype, strange = TYPED[kind]
    plan = "keyed" if name.startswith("Streams") else "declared"
    plain = ORDINARY.astype("i8").astype(dtype) if kind == "times" else ORDINARY.astype(dtype)
    for value in strange:
        for masked in (False, True):
            neighbour = plain.copy()
            with np.errstate(all="ignore"):
                neighbour[2] = value
            seen = set()
            for raw_values in (plain, neighbour):
                given = np.ma.array(raw_values, mask=False) if masked else raw_values
                if masked and raw_values is neighbour:
                    given[2] = np.ma.masked
                seen.add(outcome(name, plan, given, lambda values: values)[0])
            assert seen == {Outcome("", (), 6, (1, 2, 3, 4, 5, 6))}


@pytest.mark.parametrize(
    ("name", "plan"), [("Stream.update_many", "declared"), ("Streams.update_many", "keyed")]
)
@pytest.mark.parametrize("pack", sorted(CONTAINERS))
def test_a_block_of_nothing_but_nested_elements_is_as_long_as_it_is(name, plan, pack):
    """Neighbours one by one: from all ordinary to all nested, no step may show."""
    values: list[Any] = [500.0] * 4
    seen = []
    for index in range(len(values) + 1):
        seen.append(outcome(name, plan, values, CONTAINERS[pack])[0])
        if index < len(values):
            values[index] = [1.0, 2.0]
    assert set(seen) == {Outcome("", (), 4, (1, 2, 3, 4))}


@pytest.mark.long
@pytest.mark.parametrize(("name", "plan"), CASES)
def test_neighbours_look_alike_in_a_long_search(name, plan):
    """The same for many more elements, all of them strange."""
    anything = st.one_of(*ELEMENTS.values())

    @settings(max_examples=1_000, phases=[Phase.generate], report_multiple_bugs=False)
    @given(
        values=st.lists(anything, min_size=1, max_size=LAG + 3),
        strange=anything,
        index=st.integers(0, LAG + 2),
        pack=st.sampled_from(sorted(CONTAINERS)),
    )
    def neighbours(values, strange, index, pack):
        check(name, plan, values, strange, index, CONTAINERS[pack])

    neighbours()
