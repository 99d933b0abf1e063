"""Kinds of things by their names: rillet's own, and those of other packages.

A package adds a kind through an entry point; for a source::

    [project.entry-points."rillet.sources"]
    kafka = "my_package.kafka:KafkaSource"

Nothing is imported before it is asked for by its name.

**Privacy.** Touches no data. A kind of another package runs with rillet's rights and sees what
rillet sees; it cannot take the name of one of rillet's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rillet.errors import ParameterError

__all__ = ["Registry"]


class Registry:
    """The kinds of one sort of thing, by name.

    Parameters
    ----------
    what : str
        What a kind is, with its article, as "a source".
    group : str
        The group of entry points, as ``"rillet.sources"``.
    builtin : mapping
        From the name of a kind to ``"module:attribute"``, or to the kind itself.

    Examples
    --------
    >>> registry = Registry("a number", "rillet.numbers", {"pi": "math:pi"})
    >>> registry.get("pi", "number.kind")
    3.141592653589793
    >>> registry.get("tau", "number.kind")
    Traceback (most recent call last):
    rillet.errors.ParameterError: number.kind: expected a number, one of pi, found 'tau'; \
another package can add kinds through the entry point group rillet.numbers
    """

    def __init__(self, what: str, group: str, builtin: Mapping[str, Any]) -> None:
        self.what, self._group = what, group
        #: Rillet's own kinds by name, or where they are.
        self.own = dict(builtin)
        self._registered: dict[str, Any] = {}

    def names(self) -> tuple[str, ...]:
        """Return the names of all kinds, rillet's own first; imports none of them."""
        others = sorted({*self._registered, *(entry.name for entry in self._entries())})
        return (*self.own, *(name for name in others if name not in self.own))

    def get(self, name: object, parameter: str) -> Any:
        """Return the kind with this name; errors speak of ``parameter``.

        Raises
        ------
        ParameterError
            If there is none, or more than one, or it cannot be imported.
        """
        if isinstance(name, str):
            if name in self.own:
                return _load(self.own[name])
            if name in self._registered:
                return self._registered[name]
            entries = {entry.value for entry in self._entries() if entry.name == name}
            if len(entries) == 1:
                return self._loaded(entries.pop(), parameter)
            if entries:
                raise ParameterError(
                    parameter,
                    f"{self.what} that one package provides",
                    name,
                    f"uninstall all but one of {', '.join(sorted(entries))}",
                )
        raise ParameterError(
            parameter,
            f"{self.what}, one of {', '.join(self.names())}",
            name,
            f"another package can add kinds through the entry point group {self._group}",
        )

    def name_of(self, thing: Any, parameter: str = "") -> str:
        """Return the name of an object's kind.

        If no kind has the object's ``name`` and class, ``module:class`` where no ``parameter`` is
        given, else an error that says how to register it.
        """
        kind, name = type(thing), thing.name
        if (name in self.own or name in self.names()) and self.get(name, parameter) is kind:
            return str(name)
        path = f"{kind.__module__}:{kind.__qualname__}"
        if not parameter:
            return path
        raise ParameterError(
            parameter,
            f"{self.what} that can be found by its name",
            path,
            f'add {name} = "{path}" to the entry points {self._group} of your package',
        )

    @contextmanager
    def registered(self, name: str, kind: Any) -> Iterator[None]:
        """Add a kind for a while, without a package: for tests."""
        if name in self.names():
            raise ParameterError("name", f"a name that is not yet {self.what}", name)
        self._registered[name] = kind
        try:
            yield
        finally:
            del self._registered[name]

    def _entries(self) -> Any:
        # Read anew each time: rare, and packages may come while a process runs.
        from importlib.metadata import entry_points

        return entry_points(group=self._group)

    def _loaded(self, value: str, parameter: str) -> Any:
        try:
            return _load(value)
        except (ImportError, AttributeError, ValueError) as error:
            raise ParameterError(
                parameter, f"{self.what} that can be imported", value, f"{error}"
            ) from error


def _load(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    module, _, attributes = value.partition(":")
    found: Any = importlib.import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    return found
