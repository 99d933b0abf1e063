"""What may change in a running state: keys that come, go or get another name, and another ε.

A plan is fixed when its state begins.  What changes later is written down beside it, one amendment
after the other, each with the tick from which it holds: nothing of what was released or charged
before changes.

**Privacy.** Public declarations.  A key that is added begins where it is added, with the charges of
every other key; the noise of the others does not depend on it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rillet.errors import ParameterError
from rillet.levels import Added, Roster, declared_keys
from rillet.release import Key


@dataclass(frozen=True)
class Amendment:
    """One change of a running state.

    Parameters
    ----------
    after
        Ticks that were closed then; by count 0, since each key has a count of its own.
    add, retire
        Keys that come, and keys that go.
    rename
        Pairs of a key and its name from now on.
    epsilon
        The promise ε for observations of ticks from ``after + 2`` on: the next tick was open.
    """

    after: int = 0
    add: tuple[Key, ...] = ()
    retire: tuple[Key, ...] = ()
    rename: tuple[tuple[Key, Key], ...] = ()
    epsilon: float | None = None

    def __post_init__(self) -> None:
        if type(self.after) is not int or self.after < 0:
            raise ParameterError("amendments.after", "a number of ticks", self.after)
        for name in ("add", "retire"):
            object.__setattr__(self, name, declared_keys(getattr(self, name)))
        pairs = self.rename.items() if isinstance(self.rename, Mapping) else self.rename
        object.__setattr__(self, "rename", tuple(_pair(each) for each in pairs))
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", float(self.epsilon))
        if not (self.add or self.retire or self.rename or self.epsilon is not None):
            raise ParameterError(
                "amendments", "keys to add, to retire or to rename, or another epsilon", "nothing"
            )

    def table(self) -> dict[str, Any]:
        """For JSON: what there is."""
        return {name: value for name, value in vars(self).items() if value not in ((), None)}

    def digest(self, before: str) -> str:
        """Of this one and all ``before`` it."""
        text = json.dumps([before, self.table()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __str__(self) -> str:
        def shown(keys: Iterable[Key]) -> str:
            names = [" ".join(map(str, key)) for key in keys]
            return ", ".join(names[:5]) + f" and {len(names) - 5:,} more" * (len(names) > 5)

        parts = [f"added {shown(self.add)}"] if self.add else []
        parts += [f"retired {shown(self.retire)}"] if self.retire else []
        renamed = [(*old, "→", *new) for old, new in self.rename]
        parts += [f"renamed {shown(renamed)}"] if renamed else []
        parts += [] if self.epsilon is None else [f"ε = {self.epsilon:g}"]
        return "; ".join(parts)


def _pair(given: Any) -> tuple[Key, Key]:
    try:
        old, new = declared_keys(given)
    except (ParameterError, TypeError, ValueError):
        raise ParameterError(
            "amendments.rename", "a key and its new name, which differ", given
        ) from None
    return old, new


def declared_amendments(given: Any) -> tuple[Amendment, ...]:
    """Amendments in their order, from tables or as they are."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ParameterError("amendments", "a list", given)
    try:
        return tuple(
            each if isinstance(each, Amendment) else Amendment(**dict(each)) for each in given
        )
    except (TypeError, ValueError):
        raise ParameterError(
            "amendments", "tables of after, add, retire, rename and epsilon", given
        ) from None


def chained(amendments: Sequence[Amendment]) -> str:
    """The name of all amendments so far: each is bound to those before it."""
    name = ""
    for each in amendments:
        name = each.digest(name)
    return name


def roster_of(keys: tuple[Key, ...], amendments: Sequence[Amendment]) -> Roster:
    """The keys after all amendments; refuses names that are not there, and those that are."""
    if not amendments:
        return Roster(keys)
    names, added, name = _Names(keys), [], ""
    for each in amendments:
        name = each.digest(name)
        for old, new in each.rename:
            names.rename(old, new)
        names.retired |= {names.number(key) for key in each.retire}
        if each.add:
            added.append(Added(len(names.keys), len(each.add), each.after, name))
        for key in each.add:
            names.add(key)
    if len(names.retired) == len(names.keys):
        raise ParameterError("amendments", "at least one key that is left", "all retired")
    return Roster(tuple(names.keys), tuple(added), frozenset(names.retired), keys)


class _Names:
    """The names of keys, by their numbers; a name is used once.

    Releases of two keys under one name could not be told apart.
    """

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self.keys, self.retired = list(keys), set[int]()
        self._number_of = {_text(key): number for number, key in enumerate(keys)}
        self._used = set(self._number_of)

    def number(self, key: Key) -> int:
        found = self._number_of.get(_text(key), -1)
        if found < 0 or found in self.retired:
            what = "one that was retired" if found in self.retired else "another one"
            raise ParameterError("amendments", f"declared keys, not {what}", key)
        return found

    def rename(self, old: Key, new: Key) -> None:
        number = self.number(old)
        del self._number_of[_text(old)]
        self._name(new, number)
        self.keys[number] = new

    def add(self, key: Key) -> None:
        self._name(key, len(self.keys))
        self.keys.append(key)

    def _name(self, key: Key, number: int) -> None:
        parts = len(self.keys[0])
        if len(key) != parts:
            raise ParameterError("amendments", f"keys of {parts} parts, as the others", key)
        if _text(key) in self._used:
            raise ParameterError("amendments", "names that were not used before", key)
        self._used.add(_text(key))
        self._number_of[_text(key)] = number


def _text(key: Key) -> tuple[str, ...]:
    return tuple(map(str, key))
