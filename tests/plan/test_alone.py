"""The threshold alone: a function and a command."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rillet
from rillet.cli import main

VALUES = np.random.default_rng(3).exponential(30.0, 20_000)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 2000.0),
        ({"threshold": rillet.ExponentialQuantile()}, 2000.0),
        ({"threshold": "smooth-quantile:quantile=0.05", "delta": 2.0**-20}, 2999.0),
    ],
)
def test_it_is_learned_within_the_bounds_and_pays_what_it_says(options, most):
    found = rillet.learn_range(VALUES, epsilon=1.0, upper=3000.0, **options)
    assert 0 <= found.clip_lower < 30 < found.clip_upper < most
    assert found.count == len(VALUES)
    assert float(found.cost.epsilon) <= 1
    assert found.guarantee == rillet.Guarantee(1.0, options.get("delta", 0.0))


def test_each_call_draws_afresh():
    found = {rillet.learn_range(VALUES, epsilon=0.05, upper=3000.0).clip_upper for _ in range(5)}
    assert len(found) > 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"upper": -1.0}, "upper"),
        ({"threshold": rillet.FixedThreshold()}, "threshold: expected one that learns"),
        ({"threshold": "smooth-quantile"}, "delta: expected a positive delta"),
    ],
)
def test_what_cannot_be(options, complaint):
    with pytest.raises(rillet.ParameterError, match=complaint):
        rillet.learn_range(VALUES, **{"epsilon": 1.0, "upper": 3000.0, **options})


def test_values_that_are_no_numbers_do_not_raise():
    found = rillet.learn_range([1.0, None, "x", float("nan")] * 500, epsilon=1.0, upper=10.0)
    assert found.count == 2000
    with pytest.raises(rillet.ParameterError, match="values: expected at least one"):
        rillet.learn_range([], epsilon=1.0, upper=10.0)


def test_the_command(tmp_path, capsys):
    file = tmp_path / "in.csv"
    file.write_text("k;x\n" + "".join(f"a;{value:.2f}\n" for value in VALUES).replace(".", ","))
    arguments = ["threshold", str(file), "--column", "x", "--epsilon", "1", "--upper", "3000"]
    arguments += ["--delimiter", ";", "--decimal", ","]
    assert main([*arguments, "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert 40 < fields["clip_upper"] < 2000
    assert fields["count"] == len(VALUES)
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("clip values to [")
    assert "charged: " in shown.err
    assert main([*arguments, "--threshold", "smooth-quantile"]) == 2
    assert "--delta: expected a positive delta" in capsys.readouterr().err
