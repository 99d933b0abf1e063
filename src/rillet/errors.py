"""The exceptions that rillet raises on purpose, in one tree.

::

    RilletError                      1   anything below
    ├── ParameterError               2   a wrong parameter; also a ValueError
    ├── BudgetExceeded               3   a spend beyond the promise, refused
    ├── StreamEnded                  3   an observation beyond the declared length, refused
    ├── NotReady                     1   no release exists yet
    ├── StateError                   4   damaged or mismatched state
    ├── InputError                   5   a source cannot be read
    ├── OutputError                  5   a sink cannot be written
    └── MissingExtra                 5   an optional package is absent; also an ImportError

The number is ``exit_code``, with which the command line ends.

**Privacy.** A message says what was expected, what was found and what to do, from public facts
only: parameters, file names, column names, public counts. No class here is ever raised because of
the value of an observation.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BudgetExceeded",
    "InputError",
    "MissingExtra",
    "NotReady",
    "OutputError",
    "ParameterError",
    "RilletError",
    "StateError",
    "StreamEnded",
]

# Long enough for any number or name, short enough that a pasted array does not fill the screen.
_LONGEST_FOUND = 120


class RilletError(Exception):
    """Any error that rillet raises on purpose."""

    exit_code: ClassVar[int] = 1


class ParameterError(RilletError, ValueError):
    """A parameter has a value that it cannot have.

    Parameters
    ----------
    parameter : str
        The name as the caller typed it.
    expected : str
        What would have been right, as the object of "expected".
    found : object
        What was given. Public by definition: parameters are never private.
    hint : str, optional
        What to do about it, as a sentence without the final full stop.

    Examples
    --------
    >>> print(ParameterError("epsilon", "a positive finite number", -1))
    epsilon: expected a positive finite number, found -1
    """

    exit_code: ClassVar[int] = 2

    def __init__(
        self, parameter: str, expected: str, found: object, hint: str | None = None
    ) -> None:
        self.parameter = parameter
        self.expected = expected
        self.found = found
        self.hint = hint
        text = f"{parameter}: expected {expected}, found {_show(found)}"
        super().__init__(text if hint is None else f"{text}; {hint}")

    def __reduce__(self) -> tuple[type[ParameterError], tuple[str, str, object, str | None]]:
        # Exceptions pickle by their message alone, which this constructor would not accept back;
        # worker processes need the error to survive the way home.
        return type(self), (self.parameter, self.expected, self.found, self.hint)


class BudgetExceeded(RilletError):
    """Some observation would be charged more than was promised; nothing was drawn."""

    exit_code: ClassVar[int] = 3


class StreamEnded(RilletError):
    """An observation beyond the declared length; the stream refuses it and stays as it was."""

    exit_code: ClassVar[int] = 3


class NotReady(RilletError):
    """There is no release yet: the stream is still learning, or between two releases."""


class StateError(RilletError):
    """Stored state is damaged, of an unknown version, or belongs to something else."""

    exit_code: ClassVar[int] = 4


class InputError(RilletError):
    """A source cannot be read: missing file, missing column, unknown format."""

    exit_code: ClassVar[int] = 5


class OutputError(RilletError):
    """A sink cannot be written."""

    exit_code: ClassVar[int] = 5


class MissingExtra(RilletError, ImportError):
    """A package is needed that comes with an optional extra of rillet.

    Parameters
    ----------
    package : str
        The distribution that is missing.
    extra : str, optional
        The extra of rillet that brings it.
    purpose : str, optional
        What it is needed for, as the object of "needed".

    Examples
    --------
    >>> print(MissingExtra("pyarrow", purpose="to read Parquet"))
    pyarrow is needed to read Parquet and is not installed; type: pip install "rillet[data]"
    """

    exit_code: ClassVar[int] = 5

    def __init__(self, package: str, extra: str = "data", purpose: str = "here") -> None:
        self.package = package
        self.extra = extra
        self.purpose = purpose
        super().__init__(
            f"{package} is needed {purpose} and is not installed; "
            f'type: pip install "rillet[{extra}]"'
        )

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str, str]]:
        return type(self), (self.package, self.extra, self.purpose)


def _show(found: object) -> str:
    """Spell a public value: plain numbers without their NumPy wrapping, long things cut."""
    item = getattr(found, "item", None)
    if callable(item) and getattr(found, "size", None) == 1:
        found = item()
    text = "nothing" if found is None else repr(found)
    return text if len(text) <= _LONGEST_FOUND else text[: _LONGEST_FOUND - 1] + "…"
