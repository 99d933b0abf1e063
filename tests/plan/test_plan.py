"""Plans: every bad number is refused by name before anything is drawn; plans survive JSON."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import secrets
from typing import Any

import hypothesis.strategies as some
import numpy as np
import pytest
from hypothesis import given, settings

import rillet.noise
from helpers.streams import SECRET, baseline, looks_back, made, paper
from rillet import (
    BinaryTree,
    FixedThreshold,
    HonakerTree,
    Independent,
    Mean,
    ParameterError,
    Plan,
    RilletError,
    SmoothQuantile,
    Sum,
    TailHistogram,
)
from rillet.options import options_of
from rillet.strategy import STRATEGIES

NAN, INF = float("nan"), float("inf")
PAPER: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 2**-20,
    "upper": 3000.0,
    "length": 150_000,
    "lag": 50_000,
}
BASELINE: dict[str, Any] = {"epsilon": 1.0, "upper": 3000.0, "length": 150_000}


@pytest.fixture
def nothing_drawn(monkeypatch):
    """Any use of randomness fails the test."""

    def refuse(*_, **__):
        raise AssertionError("something was drawn")

    monkeypatch.setattr(secrets, "token_bytes", refuse)
    monkeypatch.setattr(rillet.noise.Keystream, "words", refuse)
    monkeypatch.setattr(rillet.noise.Secret, "keystream", refuse)


# --- Bad numbers -------------------------------------------------------------------------------


class _Thing:
    """No number; its name is the same in every process, as test names must be."""

    def __repr__(self) -> str:
        return "_Thing()"


NOT_NUMBERS: list[object] = ["1", None, True, [1.0], 1j, NAN, _Thing()]
BAD: dict[str, list[object]] = {
    "epsilon": [*NOT_NUMBERS, 0, 0.0, -1.0, INF, -INF, 1e-300],
    "delta": [*NOT_NUMBERS, -1e-9, 1, 1.0, 2.0, INF],
    "lower": [*NOT_NUMBERS, INF, -INF],
    "upper": [*NOT_NUMBERS, INF, -INF, 0.0, -5.0, 1e-320],
    "length": ["1", True, [1.0], 1j, NAN, _Thing(), 0, -1, 1.5, INF, 2**40 + 1, 10**30],
    "every": [*NOT_NUMBERS, 0, -1, 1.5, INF, 150_001],
    "statistic": ["mean", 1, Mean, None],
    "threshold_share": [*NOT_NUMBERS, 0, 1, -0.1, 1.5, INF],
    "backfill": [1, 0, "yes", None],
}
BAD_PAPER: dict[str, list[object]] = {
    "lag": [*NOT_NUMBERS, 0, -1, 1.5, INF, 150_001, "many"],
    "delta": [0, 0.0],
    "quantile": [*NOT_NUMBERS, 0, -0.1, 0.51, 1, INF],
    "rank_factor": [*NOT_NUMBERS, 0, -0.1, 1.01, INF],
    "multiplier": [*NOT_NUMBERS, 0, 0.99, -1, INF],
    "beta_lt": [*NOT_NUMBERS, 0, -0.1, 0.5, 0.6, 1, INF],
    "calibration": ["best", None, 1, ""],
    "law": ["cauchy", None, 1, ""],
}
CASES = [
    *((BASELINE, name, value) for name, values in BAD.items() for value in values),
    *((PAPER, name, value) for name, values in (BAD | BAD_PAPER).items() for value in values),
    *((PAPER, name, value) for name in ("lower",) for value in (3000.0, 4000.0)),
]


def make(base: dict[str, Any], name: str, value: object) -> Plan:
    fields = {**base, name: value}
    if base is PAPER:
        return Plan.paper(**fields)
    if name in ("threshold_share", "backfill"):
        return Plan(lag=0, **fields)
    return Plan.baseline(**fields)


@pytest.mark.usefixtures("nothing_drawn")
@pytest.mark.parametrize(("base", "name", "value"), CASES, ids=lambda v: repr(v)[:24])
def test_bad_numbers_are_refused_by_name(base, name, value):
    if base is BASELINE and name == "threshold_share":
        base = PAPER  # without learning there is no share
    with pytest.raises(ParameterError) as error:
        make(base, name, value)
    named = error.value.parameter
    # lower and upper are judged together; epsilon decides whether the noise fits the lattice.
    assert named == name or {named, name} == {"lower", "upper"}, str(error.value)
    assert str(error.value).startswith(f"{named}: expected ")
    assert "found" in str(error.value)


@pytest.mark.usefixtures("nothing_drawn")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("threshold", {"threshold": "smooth"}),
        ("threshold", {"threshold": SmoothQuantile}),
        ("strategy", {"strategy": "tree"}),
        ("strategy", {"strategy": BinaryTree}),
        ("lag", {"threshold": FixedThreshold(), "lag": 10}),
        ("threshold", {"threshold": FixedThreshold(upper=4000.0), "lag": 0}),
        ("upper", {"threshold": FixedThreshold(upper=-1.0), "lag": 0}),
        ("delta", {"strategy": BinaryTree("gaussian"), "delta": 0.0, "lag": 0}),
        ("threshold", {"threshold": SmoothQuantile(), "missing": "skip"}),
        ("calibration", {"threshold": SmoothQuantile(calibration="paper", law="gaussian")}),
        ("calibration", {"threshold": SmoothQuantile(calibration="paper-mixed")}),
        ("beta_lt", {"threshold": SmoothQuantile(calibration="textbook", beta_lt=1e-8)}),
    ],
    ids=str,
)
def test_parts_that_do_not_fit_are_refused_by_name(name, more):
    fields = {"epsilon": 1.0, "delta": 2**-20, "upper": 3000.0, "length": 1000, "lag": 500}
    with pytest.raises(ParameterError) as error:
        Plan(**{**fields, "missing": "none", **more})
    assert error.value.parameter == name


@pytest.mark.usefixtures("nothing_drawn")
def test_unknown_names_are_refused():
    for call in (Plan, Plan.paper, Plan.baseline, lambda **table: Plan.from_table(table)):
        with pytest.raises(ParameterError, match=r"^uper: .*did you mean upper\?$"):
            call(epsilon=1.0, length=10, uper=1.0)
    with pytest.raises(ParameterError, match=r"^quantil: .*did you mean quantile\?$"):
        Plan.paper(**PAPER, quantil=0.01)
    # What another mechanism has and this one has not.
    for call, name in ((Plan.paper, "strategy"), (Plan.baseline, "threshold"), (Plan, "quantile")):
        with pytest.raises(ParameterError, match=f"^{name}: expected one of the options epsilon, "):
            call(**BASELINE, **{name: 1})


def test_missing_options_are_named_with_what_to_give():
    with pytest.raises(ParameterError, match=r"^upper: expected a public bound .*, found nothing"):
        Plan(epsilon=1.0, length=10)
    with pytest.raises(ParameterError, match=r"^epsilon: expected the promise .*, found nothing"):
        Plan(upper=1.0, length=10)
    with pytest.raises(ParameterError, match=r"^length: expected the number of observations"):
        Plan(epsilon=1.0, upper=1.0)


def test_values_without_names_are_refused_with_what_to_type():
    with pytest.raises(ParameterError, match=r"^epsilon: expected its value by name, as in Plan\("):
        Plan(1.0, 2**-20)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("statistic", "share", r"^statistic: .*; type Share\(above=…\)$"),
        ("statistic", "mean", r"; type Mean\(\)$"),
        ("unit", "person", r"^unit: .*; type Person\(most=…\)$"),
        ("statistic", [], r"^statistic: expected a statistic, or several .*, found \[\]$"),
        (
            "statistic",
            [Mean(share=0.7), rillet.Sum(share=0.7)],
            r"^statistic: expected shares that add up to 1, found 1\.4$",
        ),
        ("refresh", 0.5, r"^refresh: expected a number >= 1\.5 or auto, found 0\.5$"),
    ],
)
def test_a_complaint_says_what_to_type(name, value, message):
    with pytest.raises(ParameterError, match=message):
        Plan(**{**BASELINE, "delta": 1e-6, name: value})


@pytest.mark.parametrize("statistic", [rillet.Count(), rillet.Histogram(bins=[0, 10, 20])])
def test_by_the_clock_a_count_needs_no_rate(statistic):
    plan = Plan(
        epsilon=1.0,
        upper=30.0,
        length="60d",
        every="1h",
        start="2026-01-01T00:00Z",
        statistic=statistic,
    )
    assert plan.expected_error(700) == plan.expected_error(700, rate="400/h") > 0
    assert plan.expected_error(700) == plan.expected_error(700, rate="1/h")


def test_the_signature_and_the_help_show_every_option():
    names = [name for name, each in inspect.signature(Plan).parameters.items() if each.kind]
    assert names == list(options_of(Plan))
    assert inspect.signature(Plan).parameters["every"].default == 1
    for name, each in options_of(Plan).items():
        assert each.about
        assert f"\n    {name}\n        {each.about[:40]}" in (Plan.__doc__ or "")


def test_numbers_of_any_kind_become_plain_ones():
    plan = Plan(
        epsilon=np.float32(1),
        delta=np.float64(1e-6),
        upper=np.int64(30),
        length=np.float64(1e4),
        every=np.int8(2),
        lag=500.0,
        threshold_share=np.float64(0.5),
    )
    values = (plan.epsilon, plan.upper, plan.length, plan.every, plan.lag, plan.threshold_share)
    assert values == (1.0, 30.0, 10_000, 2, 500, 0.5)
    assert [type(value) for value in values] == [float, float, int, int, int, float]
    assert Plan.from_json(plan.to_json()) == plan


# --- Tables ------------------------------------------------------------------------------------


def test_a_table_takes_what_toml_and_the_command_line_have():
    table = {
        "epsilon": "1",
        "delta": "2^-20",
        "upper": 3000,
        "length": "150_000",
        "lag": "5e3",
        "refresh": "none",
        "strategy": "honaker-tree:law=gaussian",
        "threshold": {"kind": "tail-histogram", "growth": "none", "share": "2^-5"},
        "statistic": "sum",
        "keys": ["north", ["south", 7]],
    }
    assert Plan.from_table(table) == Plan(
        epsilon=1.0,
        delta=2**-20,
        upper=3000.0,
        length=150_000,
        lag=5000,
        strategy=HonakerTree("gaussian"),
        threshold=TailHistogram(growth=None, share=2**-5),
        statistic=Sum(),
        keys=("north", ("south", 7)),
    )


def test_a_table_may_name_a_mechanism():
    common = {"epsilon": 1.0, "upper": 100.0}
    found = Plan.from_table({**common, "mechanism": "baseline", "length": "none"})
    assert found == Plan.baseline(**common, length=None)
    more = {"delta": 2**-20, "lag": 500, "quantile": 0.01, "rank_factor": "auto"}
    found = Plan.from_table({**common, **more, "mechanism": "paper", "length": 1000})
    assert found == Plan.paper(**common, **more, length=1000)
    with pytest.raises(ParameterError, match=r"^mechanism: expected one of auto, paper, baseline"):
        Plan.from_table({**common, "mechanism": "best"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", "much"),
        ("every", "1.5"),
        ("strategy.kind", "bush"),
        ("strategy.kind", {}),
        ("strategy.low", "binary-tree:low=gaussian"),
        ("threshold.quantile", "smooth-quantile:quantile=7"),
        ("statistic", 3),
        ("backfill", "maybe"),
    ],
)
def test_bad_tables_are_refused_by_name(name, value):
    table = {"epsilon": 1.0, "delta": 1e-6, "upper": 10.0, "length": 100}
    with pytest.raises(ParameterError) as error:
        Plan.from_table({**table, name.partition(".")[0]: value})
    assert error.value.parameter == name


# --- Keys --------------------------------------------------------------------------------------


def test_keys_are_tuples_whatever_they_are_given_as():
    for keys in (["a", ("b", 1)], ("a", ["b", 1]), np.array(["a", "b"]), range(2)):
        assert all(type(key) is tuple for key in baseline(10, keys=keys).keys)
    plan = baseline(10, keys=["a", ["b", np.int64(1)]])
    assert plan.keys == (("a",), ("b", 1))
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.open(key="a").key == ("a",)


@pytest.mark.parametrize(
    "keys", [[1, "1"], ["a", "a"], ["a", ("a",)], "ab", {"a"}, {"a": 1}, 7, [1.5], [True], [()]]
)
def test_bad_keys_are_refused(keys):
    with pytest.raises(ParameterError, match=r"^keys: "):
        baseline(10, keys=keys)


def test_laws_are_checked_where_they_are_named():
    for kind in (BinaryTree, Independent):
        with pytest.raises(ParameterError, match="law"):
            kind("cauchy")


ANYTHING = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(-(10**40), 10**40),
    some.floats(),
    some.text(max_size=5),
    some.just([]),
)


@settings(max_examples=400)
@given(
    epsilon=some.one_of(some.floats(0.01, 10), ANYTHING),
    delta=some.one_of(some.just(2**-20), ANYTHING),
    lower=some.one_of(some.just(0.0), ANYTHING),
    upper=some.one_of(some.floats(1, 1e6), ANYTHING),
    length=some.one_of(some.integers(1, 10**7), ANYTHING),
    lag=some.one_of(some.integers(1, 10**6), ANYTHING),
    every=some.one_of(some.integers(1, 100), ANYTHING),
)
def test_any_numbers_give_a_plan_or_a_named_refusal(**fields):
    """Nothing but a ParameterError that names an argument, or a plan that keeps its promise."""
    try:
        plan = Plan.paper(**fields)
    except ParameterError as error:
        if error.parameter not in {*fields, "beta_lt"}:
            raise
        return
    worst = plan.layout.worst_cost()
    assert worst.within(plan.guarantee)
    assert math.isfinite(plan.expected_error(plan.layout.length))
    stream = plan.open(secret=SECRET)
    stream.update_many(np.ones(min(3, plan.layout.length)))


# --- What a plan promises ----------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("share", [0.1, 0.37, 0.8, 0.82, 0.9])
def test_both_parts_pay_exactly_the_promise(epsilon, share):
    """ε₁ + ε₂ = ε to the last digit for the first, ε for the others; δ once."""
    plan = paper(1000, 500, epsilon=epsilon, threshold_share=share)
    opening, main = plan.layout.charges().totals()
    assert (opening.first, opening.last, main.first, main.last) == (1, 500, 501, 1000)
    assert opening.cost.epsilon == main.cost.epsilon
    assert float(opening.cost.epsilon) == epsilon
    assert float(opening.cost.delta) == 2**-20
    assert main.cost.delta == 0


def test_the_charges_follow_the_stream():
    plan = paper(1000, 500)
    stream = plan.open(secret=SECRET)
    assert not stream.charges.events
    stream.update_many(np.ones(499))
    assert not stream.charges.events
    stream.update(1.0)
    assert [event.first for event in stream.charges.events] == [1, 1]
    stream.update(1.0)
    assert [event.first for event in stream.charges.events] == [1, 1, 501]
    assert stream.charges.worst().cost.within(plan.guarantee)


def test_a_plan_that_would_overspend_is_refused():
    """The layout's charges are refused as a whole, whatever the parts claim."""
    layout = paper(1000, 500).layout
    dear = dataclasses.replace(
        layout.warm_up, cost=dataclasses.replace(layout.warm_up.cost, epsilon=1)
    )
    with pytest.raises(RilletError, match="as promised, found"):
        dataclasses.replace(layout, warm_up=dear).charges()


def test_fallback_without_gain_is_the_plain_tree():
    """Too short for the lag that the paper's criteria ask for: no lag is spent on learning."""
    plan = Plan.paper(epsilon=1.0, delta=2**-20, upper=3000.0, length=1000)
    assert (plan.lag, plan.threshold.learns) == (0, False)
    assert plan.open(secret=SECRET).update(1.0) == pytest.approx(plan.open(secret=SECRET).update(1))
    assert "no gain" in plan.describe()


def test_expected_error_needs_a_release_time():
    plan = paper(1000, 500, every=7, statistic=Sum())
    for t in (0, -1, 499, 1001):
        with pytest.raises(ParameterError, match=r"^t: "):
            plan.expected_error(t)
    assert plan.expected_error(500) < plan.expected_error(1000)
    # Between two releases the last one stands.
    assert plan.expected_error(508) == plan.expected_error(507)
    with pytest.raises(ParameterError, match="upper"):
        plan.expected_error(1000, clip_upper=-1.0)


def test_the_noise_at_many_times_is_that_at_each():
    for plan in (paper(1000, 500, every=7), baseline(1000, every=30, statistic=Sum())):
        first = plan.layout.first_release
        times = np.arange(first, 1001).reshape(-1, 1)
        one_by_one = [[plan.unit_noise_std(int(t))] for t in times[:, 0]]
        assert np.array_equal(plan.unit_noise_std(times), one_by_one)
        assert plan.expected_error(times) == pytest.approx(np.array(one_by_one) * 100.0)
        for wrong in ([first - 1, 1000], [1001], [500.5]):
            with pytest.raises(ParameterError, match=r"^t: "):
                plan.unit_noise_std(np.array(wrong))


def test_expected_error_is_mean_or_sum():
    mean, total = paper(1000, 500), paper(1000, 500, statistic=Sum())
    assert mean.expected_error(700) * 700 == pytest.approx(total.expected_error(700))


def test_describe_names_what_matters():
    text = paper(1000, 500).describe()
    for part in ("(1, 9.54e-07)", "500", "smooth-quantile", "binary-tree", "1,000"):
        assert part in text
    text = baseline(1000, every=10).describe()
    for part in ("100", "declared", "every 10"):
        assert part in text


def test_whole_numbers_may_be_written_as_floats():
    assert Plan.baseline(epsilon=1, upper=10, length=1e6).length == 1_000_000
    assert paper(1000, 5e2).lag == 500
    assert Plan.baseline(epsilon=1.0, upper=10.0, length=np.int64(7)).length == 7


# --- JSON --------------------------------------------------------------------------------------

TESTED = (BinaryTree, Independent)
ROUND = [
    baseline(1000),
    baseline(1000, every=3, lower=-1.5, statistic=Sum()),
    baseline(1000, strategy=Independent()),
    *(
        baseline(
            1000, strategy=made(name), statistic=Sum(**looks_back(made(name), int)), delta=2**-20
        )
        for name, kind in STRATEGIES.own.items()
        if kind not in TESTED
    ),
    baseline(1000, strategy=BinaryTree("gaussian"), delta=2**-20),
    Plan.baseline(epsilon=1.0, upper=10.0, length=None),
    Plan(
        epsilon=0.7,
        delta=1e-6,
        upper=50.0,
        length=200,
        lag=0,
        threshold=FixedThreshold(12.5),
    ),
    paper(1000, 500),
    paper(1000, 500, calibration="textbook", quantile=0.01, backfill=True, every=7),
    paper(1000, 500, law="gaussian", multiplier=np.float64(1.2), quantile=np.float64(0.01)),
    Plan.paper(epsilon=1.0, delta=2**-20, upper=3000.0, length=1000),
]


@pytest.mark.parametrize("plan", ROUND, ids=lambda plan: plan.digest.hex()[:6])
def test_plans_survive_json(plan):
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.digest == plan.digest
    assert again.to_json() == plan.to_json()
    assert again.layout.main.scale == plan.layout.main.scale
    values = np.linspace(0.0, 60.0, min(plan.layout.length, 600))
    # Whatever is learned, a plan made from JSON releases the same.
    assert list(again.open(secret=SECRET).update_many(values)) == list(
        plan.open(secret=SECRET).update_many(values)
    )


def test_digest_is_a_function_of_every_field():
    digests = [plan.digest for plan in ROUND]
    assert len(set(digests)) == len(ROUND)
    for name, value in (
        ("epsilon", 1.5),
        ("delta", 1e-7),
        ("lower", 1.0),
        ("upper", 101.0),
        ("length", 1001),
        ("every", 2),
        ("lag", 499),
        ("statistic", Sum()),
        ("backfill", True),
        ("threshold_share", 0.5),
        ("quantile", 0.004),
        ("rank_factor", 0.9),
        ("multiplier", 1.25),
        ("beta_lt", 0.01),
        ("calibration", "textbook"),
        ("law", "gaussian"),
    ):
        fields = {"length": 1000, "lag": 500, name: value}
        assert paper(**fields).digest != paper(1000, 500).digest, name


GOLDEN = {"baseline": "a582d5cc199e770f", "paper": "de36231891101c28"}


def test_golden_digests():
    """The plan's form is keyed into all noise: changing it makes old snapshots and secrets useless.

    When this fails, either the form has changed by accident, or FORMAT must be raised with it.
    """
    fields: dict[str, Any] = {"epsilon": 1.0, "upper": 3000.0, "length": 150_000}
    assert Plan.baseline(**fields).digest.hex()[:16] == GOLDEN["baseline"]
    plan = Plan.paper(
        **fields,
        delta=2**-20,
        lag=50_000,
        quantile=0.005,
        rank_factor=0.81,
        multiplier=1.0,
        beta_lt=0.0038,
        threshold_share=0.82,
        calibration="textbook",
    )
    assert plan.digest.hex()[:16] == GOLDEN["paper"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("plan", lambda _: "no json"),
        ("plan", lambda _: "[]"),
        ("plan", lambda _: "7"),
        ("plan", lambda fields: {**fields, "format": "rillet-plan-99"}),
        ("plan", lambda fields: {k: v for k, v in fields.items() if k != "format"}),
        ("epsilon", lambda fields: {k: v for k, v in fields.items() if k != "epsilon"}),
        ("epsilom", lambda fields: {**fields, "epsilom": 1.0}),
        ("epsilon", lambda fields: {**fields, "epsilon": -1.0}),
        ("epsilon", lambda fields: {**fields, "epsilon": "1"}),
        ("threshold.kind", lambda fields: {**fields, "threshold": {"kind": "guess"}}),
        ("threshold", lambda fields: {**fields, "threshold": "smooth"}),
        ("threshold.x", lambda fields: {**fields, "threshold": {**fields["threshold"], "x": 1}}),
        (
            "threshold.quantile",
            lambda fields: {**fields, "threshold": {**fields["threshold"], "quantile": 7}},
        ),
        ("strategy.kind", lambda fields: {**fields, "strategy": {"kind": "bush"}}),
        ("strategy", lambda fields: {**fields, "strategy": 5}),
        (
            "strategy.law",
            lambda fields: {**fields, "strategy": {"kind": "binary-tree", "law": "cauchy"}},
        ),
        ("statistic.kind", lambda fields: {**fields, "statistic": {"kind": "mode"}}),
    ],
)
def test_bad_json_is_refused_by_name(name, change):
    fields = change(json.loads(paper(1000, 500).to_json()))
    text = fields if isinstance(fields, str) else json.dumps(fields)
    with pytest.raises(ParameterError) as error:
        Plan.from_json(text)
    assert error.value.parameter == name


def test_plans_cannot_be_changed():
    plan = baseline(10)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.epsilon = 2.0  # type: ignore[misc]


def test_plans_are_equal_by_what_they_say():
    assert baseline(10) == baseline(10)
    assert baseline(10) != baseline(11)
    assert hash(baseline(10)) == hash(baseline(10))


def test_the_papers_plan_falls_back_where_its_bound_predicts_no_gain():
    facts = {"epsilon": 1.0, "delta": 2.0**-20, "upper": 3000.0, "length": 150_000}
    plan = Plan.paper(**facts, lag=10_000, public_guess=28.0)
    assert plan == Plan.baseline(**facts)
    assert "predicts no gain over the plain binary tree" in plan.describe()
    assert Plan.from_json(plan.to_json()) == plan
    fitted = Plan.paper(**facts, lag=50_000, public_guess=28.0)
    assert fitted.threshold.name == "smooth-quantile"
    assert fitted.threshold_share > 0.9
    with pytest.raises(ParameterError, match="multiplier: expected none beside public_guess"):
        Plan.paper(**facts, lag=50_000, public_guess=28.0, multiplier=2.0)
    # Without a guess nothing can be predicted, but that the lag is short can be said.
    assert "ask for a lag of 37,178 observations. With 20,000" in (
        Plan.paper(**facts, lag=20_000).describe()
    )
    assert "Short:" not in Plan.paper(**facts, lag=50_000).describe()


def test_where_no_end_is_known_the_description_says_so():
    shown = Plan(epsilon=1.0, delta=1e-6, upper=50.0, length=None).describe()
    assert "without a known end" in shown
    assert "Noise of the mean after 1,000,000 observations: ± " in shown
