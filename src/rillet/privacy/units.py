"""Whom a promise protects, beyond a single observation: persons, with a bound on what each adds.

**Privacy.** Public numbers only.  The bound is kept by :mod:`rillet.gather.gate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from rillet.errors import ParameterError
from rillet.options import option, settle
from rillet.registry import Registry
from rillet.times import duration, duration_words, show_duration

#: More of one person would not fit the gate's numbers.
_MOST: Final = 2**31 - 1


@dataclass(frozen=True)
class Person:
    """All that is used of one person is protected together, in all keys.

    **Privacy.** Neighbours differ in all observations of one person that are used, added or
    removed; with ``within``, in those of one block.  Which are used is a function of that person's
    own observations and of public numbers.

    Parameters
    ----------
    most
        At most so many observations of a person are used: the first that come.
    apart
        They are used at least this far apart, such as ``"7d"``; counted in ticks, one by default.
    within
        The length of public blocks of time, such as ``"30d"``: ``most`` and ``apart`` begin anew in
        each, and the promise is for a person in any one block.  None: one block for ever.

    Examples
    --------
    >>> Person(most=50, apart="168h")
    Person(most=50, apart='7d', within=None)
    """

    name: ClassVar[str] = "person"
    version: ClassVar[int] = 1

    most: int = option(
        "the largest number of observations of one person that are used",
        metavar="M",
        ge=1,
        le=_MOST,
    )
    apart: str | None = option(
        "the least time between those of one person, such as 7d (default: one tick)",
        default=None,
        metavar="TIME",
    )
    within: str | None = option(
        "the length of blocks of time, such as 30d, in which both begin anew: the promise is then "
        "for a person in any one block (default: for ever)",
        default=None,
        metavar="TIME",
    )

    def __post_init__(self) -> None:
        settle(self)
        for name in ("apart", "within"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, show_duration(duration(given, name)))
        if None not in (self.apart, self.within) and self.length("within") < self.length("apart"):
            raise ParameterError("within", f"at least apart ({self.apart})", self.within)

    def length(self, name: str) -> int:
        """Microseconds of ``apart`` or ``within``, which is given."""
        return duration(getattr(self, name), name)

    @property
    def bound(self) -> str:
        """What is used of a person, in words."""
        apart = (
            "" if self.apart is None else f", at least {duration_words(self.length('apart'))} apart"
        )
        return f"at most {self.most:,}{apart}"

    @property
    def protects(self) -> str:
        """What the promise is for, in words."""
        used = "all of one person's observations that are used"
        if self.within is not None:
            used += f" in any one block of {duration_words(self.length('within'))}"
        return f"{used}: {self.bound}, added or removed"


UNITS = Registry("a unit", "rillet.units", {Person.name: Person})
