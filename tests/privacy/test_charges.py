"""Charges: what each observation pays, checked against the promise when they are made."""

import dataclasses
import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rillet.errors import BudgetExceeded, ParameterError
from rillet.privacy import Charges, Cost, Event, Guarantee, delta_at, gaussian_mu

COSTS = st.one_of(
    st.builds(Cost.pure, st.floats(1e-3, 5)),
    st.builds(Cost.gaussian, st.floats(1e-4, 5)),
    st.builds(Cost.approximate, st.floats(1e-3, 5), st.floats(1e-12, 0.3)),
)
FIRST = Event("first", Cost.pure(0.6), 1, 10)


def test_more_than_the_promise_is_refused():
    others = (Event("good", Cost.pure(0.1), 20, 30), Event("second", Cost.pure(0.6), 10, 12))
    with pytest.raises(BudgetExceeded, match=r"10 … 10 \(first, second\); nothing was drawn") as no:
        Charges(Guarantee(1.0), (FIRST, *others))
    assert "ε = 1," in str(no.value)
    assert "ε = 1.2" in str(no.value)


def test_charges_are_a_value():
    charges = Charges(Guarantee(1.0), [FIRST])
    assert charges == Charges(Guarantee(1.0), (FIRST,))
    assert isinstance(charges.events, tuple)
    with pytest.raises(dataclasses.FrozenInstanceError):
        charges.events = ()


def test_disjoint_observations_pay_the_worst_not_the_sum():
    events = (
        Event("threshold", Cost.pure(0.6), 1, 100),
        Event("warm-up", Cost.pure(0.4), 1, 100),
        Event("sums", Cost.pure(1), 101, None),
    )
    charges = Charges(Guarantee(1.0), events)
    assert [(c.first, c.last, c.cost.epsilon) for c in charges.totals()] == [
        (1, 100, Fraction(0.6) + Fraction(0.4)),
        (101, None, 1),
    ]
    with pytest.raises(BudgetExceeded):
        Charges(Guarantee(1.0), (*events, Event("one too many", Cost.pure(2.0**-60), 100, 101)))


@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.integers(0, 6), st.booleans(), st.integers(1, 9)),
        max_size=6,
    )
)
def test_totals_are_what_each_observation_pays(spans):
    """Against the obvious: add up, for each observation, the events that touch it."""
    events = [
        Event("e", Cost.pure(Fraction(cost, 7)), first, None if endless else first + extra)
        for first, extra, endless, cost in spans
    ]
    found = Charges(Guarantee(10.0), events).totals()

    def over(parts, observation):
        return [
            p.cost
            for p in parts
            if p.first <= observation and (p.last is None or observation <= p.last)
        ]

    for observation in range(1, 30):
        mine = over(found, observation)
        assert len(mine) <= 1
        assert sum(mine, Cost()) == sum(over(events, observation), Cost())


def test_after_so_many_observations_only_what_is_due_is_charged():
    learned = Event("threshold", Cost.pure(1), 1, 5, due=5)
    sums = Event("sums", Cost.pure(1), 6, None)
    charges = Charges(Guarantee(1.0), (learned, sums))
    assert sums.due == 6
    assert [charges.after(t).events for t in (0, 4, 5, 6, 99)] == [
        (),
        (),
        (learned,),
        (learned, Event("sums", Cost.pure(1), 6, 6)),
        (learned, Event("sums", Cost.pure(1), 6, 99)),
    ]
    assert charges.after(4).worst() is None


def test_observations_to_come_have_paid_nothing():
    early = Event("early", Cost.pure(1), 1, 100)
    charges = Charges(Guarantee(1.0), (early,))
    assert charges.after(7).events == (Event("early", Cost.pure(1), 1, 7),)
    assert charges.after(100) == charges.after(200) == charges


@given(st.lists(st.tuples(COSTS, st.integers(1, 99), st.integers(0, 9)), max_size=4))
@settings(max_examples=30)
def test_json_keeps_charges_exactly(spans):
    events = [
        Event("part", cost, first, first + extra if extra else None, due=first + extra // 2)
        for cost, first, extra in spans
    ]
    charges = Charges(Guarantee(30.0, 0.9, protects="one trip"), events)
    again = Charges.from_json(charges.to_json())
    assert again == charges
    assert again.to_json() == charges.to_json()
    assert str(again) == str(charges)


def test_json_shows_what_is_charged_rounded_outward():
    promise = Guarantee(1.0, 2.0**-20)
    mu = gaussian_mu(promise, Cost.pure(Fraction(1, 3)))
    cost = Cost.pure(Fraction(1, 3)) + Cost.gaussian(Fraction(mu) ** 2)
    (charged,) = json.loads(Charges(promise, (Event("both", cost, 1, None),)).to_json())["charged"]
    assert Fraction(charged["epsilon"]) >= Fraction(1, 3)
    assert Fraction(charged["mu"]) >= Fraction(mu)
    assert delta_at(1.0, cost) <= charged["delta_at_promised_epsilon"] <= promise.delta


def test_text_tells_a_person_what_is_charged():
    promise = Guarantee(1.0, 2.0**-20)
    assert "nothing yet" in str(Charges(promise))
    threshold = Event("threshold", Cost.approximate(0.5, 2.0**-20), 1, 50_000)
    text = str(Charges(promise, (threshold, Event("sums", Cost.gaussian(0.05), 50_001, None))))
    for part in ("threshold", "1 … 50,000", "50,001 …", "ε = 0.5", "promised", "worst"):
        assert part in text


def spelled(**changed):
    return json.dumps(
        {
            "format": "rillet-charges-1",
            "promised": {"epsilon": 1},
            "unit": "observations",
            "events": [],
        }
        | changed
    )


GOOD = FIRST.to_dict()


def test_the_text_that_is_changed_below_is_read():
    assert Charges.from_json(spelled(events=[GOOD])) == Charges(Guarantee(1.0), (FIRST,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"format": "rillet-charges-1"}',
        spelled(format="rillet-charges-2"),
        spelled(promised={"epsilon": -1}),
        spelled(events=[GOOD | {"epsilon": "-5"}]),
        spelled(events=[GOOD | {"epsilon": "1/0"}]),
        spelled(events=[GOOD | {"first": 30}]),
        spelled(events=5),
    ],
)
def test_text_that_is_none_is_refused(text):
    with pytest.raises(ParameterError) as raised:
        Charges.from_json(text)
    assert raised.value.parameter == "charges"


def test_text_that_claims_more_than_its_promise_is_refused():
    with pytest.raises(BudgetExceeded):
        Charges.from_json(spelled(events=[GOOD, GOOD]))


@pytest.mark.parametrize(
    ("first", "last"), [(0, 5), (-1, None), (5, 4), (1.5, 3), (1, 2.5), (True, 3), ("1", 2)]
)
def test_observations_that_are_none_are_named(first, last):
    with pytest.raises(ParameterError, match="first, last"):
        Event("x", Cost.pure(1), first, last)


@pytest.mark.parametrize("due", [1, 9, 2.0])
def test_a_due_observation_outside_is_named(due):
    with pytest.raises(ParameterError, match="first, last"):
        Event("x", Cost.pure(1), 2, 8, due)


def test_spans_are_of_what_the_plan_counts():
    events = (Event("threshold", Cost.pure(0.6), 1, 48), Event("sums", Cost.pure(1), 49, None))
    charges = Charges(Guarantee(1.0), events, "ticks")
    assert "ticks 1 … 48" in str(charges)
    assert "observations" not in str(charges)
    assert charges.after(48).unit == "ticks"
    assert Charges.from_json(charges.to_json()) == charges
    with pytest.raises(BudgetExceeded, match="for ticks 48 … 48"):
        Charges(Guarantee(1.0), (*events, Event("again", Cost.pure(0.6), 48, 48)), "ticks")


def test_a_promise_counts_from_the_observation_that_it_is_for():
    later = ((5, Guarantee(0.5)), (9, Guarantee(0.25)))
    events = (Event("sum", Cost.pure(Fraction(1, 4)), 1, None, due=1),)
    charges = Charges(Guarantee(1.0), events, later=later)
    assert [charges.promised(t).epsilon for t in (4, 5, 8, 9)] == [1.0, 0.5, 0.5, 0.25]
    assert [charges.after(t).later for t in (4, 5, 8, 9)] == [(), later[:1], later[:1], later]
    assert [(one.first, one.last) for one in charges.totals()] == [(1, 4), (5, 8), (9, None)]


def test_a_delta_that_was_worked_out_is_not_worked_out_again():
    cost = Cost.gaussian(Fraction(1, 3))
    assert delta_at(1.0, cost) is delta_at(1.0, cost)
