"""The exception tree: names, exit codes, messages, and that errors survive a worker process."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from rillet import errors


def test_exit_codes_are_those_of_the_command_line():
    found = {name: getattr(errors, name).exit_code for name in errors.__all__}
    assert found == {
        "BudgetExceeded": 3,
        "InputError": 5,
        "MissingExtra": 5,
        "NotReady": 1,
        "OutputError": 5,
        "ParameterError": 2,
        "RilletError": 1,
        "StateError": 4,
        "StreamEnded": 3,
    }


@pytest.mark.parametrize("name", errors.__all__)
def test_all_are_rillet_errors_and_the_docstring_draws_them(name):
    kind = getattr(errors, name)
    assert issubclass(kind, errors.RilletError)
    assert errors.__doc__ is not None
    line = next(line for line in errors.__doc__.splitlines() if f" {name} " in line)
    assert f" {kind.exit_code} " in line


def test_builtin_parents():
    assert issubclass(errors.ParameterError, ValueError)
    assert issubclass(errors.MissingExtra, ImportError)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (-1, "found -1"),
        (np.float64(-1.5), "found -1.5"),
        (np.array(3), "found 3"),
        ("one", "found 'one'"),
        (None, "found nothing"),
    ],
)
def test_parameter_error_says_parameter_expected_found(found, text):
    error = errors.ParameterError("epsilon", "a positive finite number", found)
    assert str(error) == f"epsilon: expected a positive finite number, {text}"


def test_parameter_error_hint_and_long_values():
    error = errors.ParameterError("upper", "a number", list(range(1000)), "give one bound")
    assert str(error).endswith("…; give one bound")
    assert len(str(error)) < 200


@pytest.mark.parametrize(
    "error",
    [
        errors.ParameterError("lag", "an integer", 1.5, "use 2"),
        errors.MissingExtra("pyarrow", "parquet", "to read Parquet"),
        errors.InputError("no such file"),
    ],
)
def test_pickle_keeps_message_and_fields(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
