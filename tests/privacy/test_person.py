"""A person as the unit: options, words, and what belongs to the mechanism."""

import json

import pytest

import rillet
from rillet.errors import ParameterError
from rillet.gather.gate import GateRule
from rillet.plan import Plan

BY_CLOCK = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "upper": 150.0,
    "every": "1h",
    "start": "2026-01-01T00:00Z",
    "length": "365d",
}


def plan(unit=None, **options):
    return Plan(**{**BY_CLOCK, "unit": unit, **options})


@pytest.mark.parametrize(
    ("unit", "rule"),
    [
        (rillet.Person(most=50, apart="7d"), GateRule(50, 168)),
        (rillet.Person(most=50, apart="168h"), GateRule(50, 168)),
        (rillet.Person(3), GateRule(3, 1)),
        (rillet.Person(most=3, within="30d"), GateRule(3, 1, 720)),
        ({"kind": "person", "most": 9, "apart": "1d", "within": "1w"}, GateRule(9, 24, 168)),
    ],
)
def test_a_person_becomes_a_rule_in_ticks(unit, rule):
    assert plan(unit).layout.gate == rule


def test_a_single_observation_is_the_default():
    assert plan().unit is None
    assert plan().layout.gate is None
    assert "unit" not in json.loads(plan().to_json())
    assert "gate" not in plan().layout.mechanism


def test_the_text_of_the_command_line_and_of_toml():
    table = {**BY_CLOCK, "unit": "person:most=50,apart=7d"}
    assert Plan.from_table(table).unit == rillet.Person(most=50, apart="7d")
    assert Plan.from_table({**BY_CLOCK, "unit": "none"}).unit is None


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("most", {"most": 0}),
        ("most", {"most": 2**31}),
        ("most", {"most": "many"}),
        ("apart", {"most": 5, "apart": "soon"}),
        ("apart", {"most": 5, "apart": 7}),
        ("within", {"most": 5, "within": "1 month"}),
        ("within", {"most": 5, "apart": "7d", "within": "6d"}),
    ],
)
def test_what_is_no_person_is_refused_by_name(name, given):
    with pytest.raises(ParameterError, match=rf"^{name}:"):
        rillet.Person(**given)
    with pytest.raises(ParameterError, match=rf"^unit\.{name}:"):
        plan({"kind": "person", **given})


@pytest.mark.parametrize(
    ("name", "unit", "options"),
    [
        (r"unit\.apart", rillet.Person(5, apart="90m"), {}),
        (r"unit\.within", rillet.Person(5, within="90m"), {}),
        (r"unit\.within", rillet.Person(5, within="1h"), {"every": "2h"}),
        (r"unit\.kind", {"kind": "household", "most": 3}, {}),
        (r"unit\.most", {"kind": "person"}, {}),
        (r"unit\.least", {"kind": "person", "most": 3, "least": 1}, {}),
        ("unit", "person", {}),
        ("unit", 50, {}),
    ],
)
def test_what_does_not_fit_the_plan_is_refused(name, unit, options):
    with pytest.raises(ParameterError, match=rf"^{name}:"):
        plan(unit, **options)


def test_by_count_nobody_is_protected_whole():
    by_count = {"epsilon": 1.0, "delta": 1e-6, "upper": 150.0, "length": 1000}
    with pytest.raises(ParameterError, match=r"unit: expected none in a run by count.*clock"):
        Plan(**by_count, unit=rillet.Person(5))
    with pytest.raises(ParameterError, match="unit"):
        Plan.paper(**by_count, unit=rillet.Person(5))


def test_plans_with_a_person_survive_json():
    written = plan(rillet.Person(50, within="30d"))
    assert json.loads(written.to_json())["unit"] == {
        "kind": "person",
        "most": 50,
        "apart": "1h",
        "within": "30d",
    }
    assert Plan.from_json(written.to_json()) == written


def test_the_person_is_part_of_the_mechanism_and_of_the_digest():
    plans = [
        plan(),
        *(
            plan(unit)
            for unit in (
                rillet.Person(50),
                rillet.Person(51),
                rillet.Person(50, apart="2h"),
                rillet.Person(50, within="30d"),
            )
        ),
    ]
    assert len({one.digest for one in plans}) == len(plans)
    assert len({one.layout.digest for one in plans}) == len(plans)


def test_the_promise_says_whom_it_protects():
    assert plan(rillet.Person(50, apart="7d")).guarantee.protects == (
        "all of one person's observations that are used: at most 50, at least 7 days apart, added "
        "or removed"
    )
    assert plan(rillet.Person(50, apart="7d", within="30d")).guarantee.protects == (
        "all of one person's observations that are used in any one block of 30 days: at most 50, "
        "at least 7 days apart, added or removed"
    )


def test_it_is_described_with_what_it_does_to_the_numbers():
    text = plan(rillet.Person(50, apart="7d")).describe()
    for part in (
        "Protected: one person, in all keys",
        "the first observations that come, at most 50, at least 7 days apart",
        "early is over-represented",
        "what has no person id, are left out",
        "is never published",
    ):
        assert part in text
    assert "one observation, its value" not in text
    assert "block" not in text
    assert "block of 30 days" in plan(rillet.Person(50, within="30d")).describe()


def test_a_block_may_be_as_long_as_contributions_are_apart():
    assert rillet.Person(most=2, apart="1d", within="1d").within == "1d"
    with pytest.raises(ParameterError, match="within"):
        rillet.Person(most=2, apart="1d", within="23h")
