"""Tables of options against a schema: one conversion, one wording of what is wrong.

A schema is a `msgspec.Struct` (or a union of tagged ones). A table comes from TOML, from JSON, from
the command line or from keyword arguments in Python; all pass here.

**Privacy.** Touches no data. An option may be a password at the wrong place: text is never quoted,
unless the schema lists the texts that are allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import inspect

from rillet.errors import ParameterError

__all__ = ["convert", "unknown_name"]

_ERROR = re.compile(r"(.*?)(?: - at (?:`key` in )?`\$(.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_EXPECTED = re.compile(r"Expected `(.*?)`(?:, got `(.*)`| (.*))?")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")

_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "null": "none",
    "object": "a table of options",
    "str": "text",
}


class _Words(str):
    """A description in place of a value: shown without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def convert(table: object, schema: Any, name: str = "") -> Any:
    """Return the object of type ``schema`` that a table describes.

    Parameters
    ----------
    table : object
        A mapping, or whatever else the schema takes. NumPy scalars and paths count as the plain
        numbers and texts that they stand for.
    schema : type
        A `msgspec.Struct`, or any other type that msgspec converts to.
    name : str
        What the user calls the table, such as ``"source"``: errors speak of ``source.column``.

    Raises
    ------
    ParameterError
        If an option is unknown, missing or wrong.

    Examples
    --------
    >>> class Options(msgspec.Struct, forbid_unknown_fields=True):
    ...     column: str
    ...     block_rows: int = 1000
    >>> convert({"column": "minutes"}, Options, "source")
    Options(column='minutes', block_rows=1000)
    >>> convert({"column": "minutes", "block_row": 5}, Options, "source")
    Traceback (most recent call last):
    rillet.errors.ParameterError: source.block_row: expected one of the options column, \
block_rows, found another name; did you mean block_rows?
    """
    try:
        return msgspec.convert(_plain(table), schema)
    except msgspec.ValidationError as error:
        raise _translated(error, table, schema, name) from None


def unknown_name(name: str, what: str, found: str, known: Sequence[str]) -> ParameterError:
    """Return the error for a name that is none of the known ones, with the nearest of them."""
    near = get_close_matches(found, known, 1)
    return ParameterError(
        name, what, _Words("another name"), f"did you mean {near[0]}?" if near else None
    )


def _plain(value: object) -> object:
    """Return mappings and lists with plain numbers and texts in them; other objects as they are."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "ndim", None) == 0 else value


def _translated(
    error: msgspec.ValidationError, table: object, schema: Any, name: str
) -> ParameterError:
    match = _ERROR.fullmatch(str(error))
    assert match is not None  # it matches everything
    text, path = match[1], match[2] or ""
    full = (name + path).removeprefix(".") or "options"
    cause = error.__cause__
    if isinstance(cause, ParameterError):  # from the schema's own __post_init__
        inner = f"{full}.{cause.parameter}" if name or path else cause.parameter
        return ParameterError(inner, cause.expected, cause.found, cause.hint)
    prefix = f"{full}." if name or path else ""
    if missing := _MISSING.fullmatch(text):
        return ParameterError(prefix + missing[1], "an option that has no default", _Words("none"))
    if unknown := _UNKNOWN.fullmatch(text):
        known = _fields(schema, table, path)
        what = f"one of the options {', '.join(known)}" if known else "no options"
        return unknown_name(prefix + unknown[1], what, unknown[1], known)
    found = _found(table, path)
    if choices := _choices(schema, table, path, text):
        return ParameterError(full, f"one of {', '.join(map(str, choices))}", found)
    if expected := _EXPECTED.fullmatch(text):
        kind = " or ".join(_WORDS.get(part, part) for part in expected[1].split(" | "))
        limit = f" {expected[3]}" if expected[3] else ""
        if type(found) is str:
            found = _Words("text" if not limit else "another text")
        elif isinstance(found, Mapping | list | tuple):
            found = _Words(_WORDS["object" if isinstance(found, Mapping) else "array"])
        return ParameterError(full, kind + limit, found)
    return ParameterError(full, "a valid option", _Words(text))


def _steps(path: str) -> Iterator[str]:
    for field, index in _STEP.findall(path):
        yield field or index


def _found(table: object, path: str) -> object:
    """Return what is at this path of the table."""
    found: Any = table
    for step in _steps(path):
        try:
            found = found[int(step)] if step.isdigit() else found[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return _Words("something else")
    return found


def _types(schema: Any, table: object, path: str) -> list[inspect.Type]:
    """Return the types that the schema allows at this path of the table."""
    types = _alternatives(inspect.type_info(schema), table)
    found: Any = table
    for step in _steps(path):
        found = _found(found, f"[{step}]" if step.isdigit() else f".{step}")
        inner: list[inspect.Type] = []
        for one in types:
            if isinstance(one, inspect.StructType):
                inner += [field.type for field in one.fields if field.encode_name == step]
            elif isinstance(one, inspect.DictType):
                inner.append(one.value_type)
            elif hasattr(one, "item_type"):
                inner.append(one.item_type)
        types = [each for one in inner for each in _alternatives(one, found)]
    return types


def _alternatives(kind: inspect.Type, table: object) -> list[inspect.Type]:
    """Return the parts of a union; of tagged structs the one that the table names, if it does."""
    parts = list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]
    named: list[inspect.Type] = [
        part
        for part in parts
        if isinstance(part, inspect.StructType)
        and part.tag_field is not None
        and isinstance(table, Mapping)
        and table.get(part.tag_field) == part.tag
    ]
    return named or parts


def _fields(schema: Any, table: object, path: str) -> list[str]:
    structs = [kind for kind in _types(schema, table, path) if isinstance(kind, inspect.StructType)]
    return [field.encode_name for struct in structs for field in struct.fields]


def _choices(schema: Any, table: object, path: str, text: str) -> list[object]:
    """Return what may stand at this path, if the schema lists it: literal texts or tags."""
    if not text.startswith("Invalid "):
        return []
    outer, _, last = path.rpartition(".")
    tags: list[object] = [
        kind.tag
        for kind in _types(schema, {}, outer)
        if isinstance(kind, inspect.StructType) and kind.tag_field == last
    ]
    literals: list[object] = [
        value
        for kind in _types(schema, table, path)
        if isinstance(kind, inspect.LiteralType)
        for value in kind.values
    ]
    return tags or literals
