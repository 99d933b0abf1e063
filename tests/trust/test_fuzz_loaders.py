"""Whatever a file that rillet reads holds, it is read or refused in rillet's own words.

Plans, charges, configurations and secrets: valid ones with parts replaced, left out or added, and
bytes of any kind.  (Sources, snapshots and the service have searches of their own, beside their
tests.)
"""

import copy
import json

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from rillet import Charges, Person, Plan, Quantile, Secret, SmoothQuantile
from rillet.engine.config import load_config
from rillet.errors import RilletError

PLANS = [
    Plan(epsilon=1.0, delta=1e-6, upper=100.0, length=1000, lag=100),
    Plan.paper(epsilon=1.0, delta=1e-6, upper=100.0, length=1000, lag=100),
    Plan.baseline(epsilon=1.0, upper=100.0, length=1000, keys=["a", "b"], statistic=Quantile(0.5)),
    Plan(
        epsilon=1.0,
        delta=1e-6,
        upper=100.0,
        every="1h",
        start="2026-01-01T00:00Z",
        length="10d",
        unit=Person(most=3, apart="1d"),
    ),
]
TOML = """
[plan]
epsilon = 1.0
delta = 1e-6
upper = 100.0
length = 1000

[source]
kind = "csv"
path = "readings.csv"
column = "kwh"

[[sink]]
kind = "sqlite"
path = "releases.db"
"""
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "auto", "1h", "-1d", "laplace", "tree", "mean", "2026-01-01", "💧"])
    | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
QUICK = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def places(table, path=()):
    """Every place in nested tables and lists."""
    inner = table.items() if isinstance(table, dict) else enumerate(table)
    for name, value in inner:
        yield (*path, name)
        if isinstance(value, dict | list):
            yield from places(value, (*path, name))


def changed(data, table):
    """A copy with something else at one place, nothing there, or one name more."""
    made = copy.deepcopy(table)
    *path, last = data.draw(st.sampled_from(list(places(made))))
    home = made
    for name in path:
        home = home[name]
    what = data.draw(st.sampled_from(["other", "gone", "more"]))
    if what == "other":
        home[last] = data.draw(VALUES)
    elif what == "gone":
        del home[last]
    elif isinstance(home, dict):
        home[data.draw(st.text(max_size=6))] = data.draw(VALUES)
    return made


@QUICK
@given(data=st.data())
def test_a_changed_plan_is_read_or_refused(data):
    plan = data.draw(st.sampled_from(PLANS))
    text = json.dumps(changed(data, json.loads(plan.to_json())))
    try:
        read = Plan.from_json(text)
    except RilletError:
        return
    assert Plan.from_json(read.to_json()) == read


@QUICK
@given(data=st.data())
def test_changed_charges_are_read_or_refused(data):
    charges = PLANS[0].layout.charges()
    text = json.dumps(changed(data, json.loads(charges.to_json())))
    try:
        read = Charges.from_json(text)
    except RilletError:
        return
    assert read.guarantee.epsilon > 0


@QUICK
@given(text=st.text() | st.binary().map(lambda raw: raw.decode("latin-1")) | VALUES.map(json.dumps))
def test_text_of_any_kind_is_no_plan_and_no_charges(text):
    for read in (Plan.from_json, Charges.from_json):
        with pytest.raises(RilletError):
            read(text)


@QUICK
@given(data=st.data())
def test_a_changed_configuration_is_read_or_refused(data, tmp_path):
    lines = TOML.splitlines()
    place = data.draw(st.integers(1, len(lines) - 1))
    lines[place] = data.draw(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
        | SCALARS.map(lambda value: f"{lines[place].split(' = ')[0]} = {json.dumps(value)}")
    )
    file = tmp_path / "job.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    try:
        load_config(file)
    except RilletError:
        return


@QUICK
@given(content=st.binary(max_size=200))
def test_bytes_of_any_kind_are_no_secret(content, tmp_path):
    file = tmp_path / "any.secret"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(RilletError):
        Secret.load(file)


def test_the_threshold_of_the_paper_is_among_the_plans():
    assert any(isinstance(plan.threshold, SmoothQuantile) for plan in PLANS)
