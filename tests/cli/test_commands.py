"""What holds for every command: help with an example, a page that explains it, errors in a line."""

import argparse
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import rillet as package
from rillet import errors
from rillet.cli import COMMANDS, build_parser, common, main

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def parsers():
    (action,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return action.choices


def section(name):
    """The part of the page under the heading of a command."""
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = [part for part in parts if part.startswith(f"`rillet {name}`")]
    assert len(found) == 1, f"docs/command-line.md needs one heading: ## `rillet {name}`"
    return found[0]


def test_every_module_is_a_command():
    assert set(parsers()) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name):
    text = parsers()[name].format_help()
    _, _, shown = text.partition("examples:")
    assert f"  rillet {name}" in shown or "| rillet run" in shown
    # An option without a word of explanation is as good as none.
    assert all(action.help for action in parsers()[name]._actions)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_option_is_documented(name):
    text = section(name)
    assert "```console" in text
    for action in parsers()[name]._actions:
        for option in action.option_strings:
            if option.startswith("--") and option != "--help":
                assert f"`{option}" in text, f"{name} {option}"


def test_examples_of_the_help_are_accepted():
    for name, parser in parsers().items():
        for line in parser.epilog.replace("\\\n", " ").splitlines():
            command = line.strip().partition("| ")[2] or line.strip()
            if command.startswith(f"rillet {name} "):
                build_parser().parse_args(command.split()[1:])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_well(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: rillet {name}")


def test_help_through_the_real_program(rillet):
    done = rillet("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(re.search(rf"^    {name}\b", done.stdout, re.MULTILINE) for name in COMMANDS)


def test_version_and_no_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"rillet {package.__version__}\n"
    assert main([]) == 2
    with pytest.raises(SystemExit) as stop:
        main(["no-such-command"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("rillet: ")


def test_the_installed_program_is_this_one():
    (script,) = entry_points(group="console_scripts", name="rillet")
    assert script.load() is main


def failing_with(monkeypatch, error):
    from rillet.cli import ledger

    def run(_):
        raise error

    monkeypatch.setattr(ledger, "run", run)
    return main(["ledger", "file"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ParameterError("epsilon", "more", 1), 2),
        (errors.BudgetExceeded("too much"), 3),
        (errors.StreamEnded("length: over"), 3),
        (errors.StateError("damaged"), 4),
        (errors.InputError("file: gone"), 5),
        (errors.OutputError("file: full"), 5),
        (errors.MissingExtra("pyarrow"), 5),
        (errors.NotReady("not yet"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(monkeypatch, capsys, error, code):
    assert failing_with(monkeypatch, error) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rillet: ")


def test_a_bug_is_named_without_its_message(monkeypatch, capsys):
    error = ValueError("could not convert 123.456789")
    assert failing_with(monkeypatch, error) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError at test_commands.py:" in line
    assert "123.45" not in line
    monkeypatch.setenv("RILLET_TRACEBACK", "1")
    with pytest.raises(ValueError, match=r"123\.456789"):
        failing_with(monkeypatch, error)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("2^-20", 2**-20), ("2**-20", 2**-20), ("-3.5", -3.5), ("150_000", 150_000)],
)
def test_numbers_as_people_type_them(text, value):
    assert common.number(text) == value


@pytest.mark.parametrize("text", ["", "x", "2^", "^2", "0^-1", "(-1)^0.5", "-1^0.5"])
def test_what_is_no_number(text):
    with pytest.raises(argparse.ArgumentTypeError):
        common.number(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("150_000", 150_000), ("1e6", 10**6), ("2^17", 2**17), ("9" * 20, 10**20 - 1)],
)
def test_whole_numbers(text, value):
    assert common.whole(text) == value


@pytest.mark.parametrize("text", ["2.5", "inf", "nan", "x", "1e400"])
def test_what_is_no_whole_number(text):
    with pytest.raises(argparse.ArgumentTypeError):
        common.whole(text)
