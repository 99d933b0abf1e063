"""Tables of options against a schema: one conversion, one wording of what is wrong.

A schema is a `msgspec.Struct` (or a union of tagged ones), or a frozen dataclass whose fields say
in their metadata what they are for (`option`). A table comes from TOML, from JSON, from the command
line or from keyword arguments in Python; all pass here.

**Privacy.** Touches no data. An option may be a password that was misplaced: text is never quoted,
unless the schema lists the texts that are allowed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)
from typing import get_type_hints as type_hints

import msgspec
from msgspec import inspect

from rillet.errors import ParameterError

if TYPE_CHECKING:
    from rillet.registry import Registry

__all__ = [
    "LARGEST",
    "Option",
    "check_names",
    "convert",
    "converted",
    "from_text",
    "option",
    "options_of",
    "schema",
    "settle",
    "table_of",
    "unknown_name",
    "within",
]

Class = TypeVar("Class")

#: The largest float: a limit that infinity exceeds.
LARGEST = sys.float_info.max

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
    """Return mappings and lists with plain numbers and texts in them; other objects as they are.

    Arrays are lists.
    """
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    plain = getattr(value, "tolist", None)  # a number or an array of NumPy's
    return plain() if callable(plain) and hasattr(value, "ndim") else value


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
    if text == "Number out of range":
        return ParameterError(full, "a number that fits a float", found)
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


# --- Frozen dataclasses --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a dataclass, as its field declares it."""

    name: str = ""
    type: Any = str
    default: Any = None
    #: The texts that may stand in place of a proper value, such as ``auto``.
    words: tuple[str, ...] = ()
    #: What it is, in a line: the text of ``--help``, of the docstring and of a complaint.
    about: str = ""
    #: What ``--help`` calls its value.
    metavar: str = "KIND"
    #: For a field that holds one of these kinds: an object, or a table with its ``kind``.
    kinds: Registry | None = None
    #: What a list of such objects makes, where there may be several.
    several: Callable[[tuple[Any, ...]], Any] | None = None
    #: In place of the conversion to the type.
    converter: Callable[[Any], Any] | None = None

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is dataclasses.MISSING

    def convert(self, value: object, *, texts: bool = False) -> Any:
        """Return the value as the type that is declared.

        With ``texts`` a text may stand for a number, for none, or for a kind with its options, as
        in ``"binary-tree:law=gaussian"``: in TOML and on the command line.
        """
        if isinstance(value, str) and value in self.words:
            return value
        if self.kinds is not None:
            return self._of_kind(self.kinds, value, texts=texts)
        if texts and isinstance(value, str) and self.type is not str:
            value = from_text(value)
        if self.converter is not None:
            return self.converter(value)
        value = _plain(value)
        if type(value) is float and value.is_integer() and "float" not in str(self.type):
            value = int(value)
        try:
            return convert(value, self.type, self.name)
        except ParameterError as error:
            expected = " or ".join([error.expected, *self.words])
            raise ParameterError(error.parameter, expected, error.found, error.hint) from None

    def _of_kind(self, kinds: Registry, value: Any, *, texts: bool) -> Any:
        """Return an object of one of the kinds, from itself or from its tagged table."""
        if isinstance(None, self.type) and (value is None or (texts and value == "none")):
            return None
        if self.several is not None and isinstance(value, list | tuple):
            parts = [self._of_kind(kinds, part, texts=texts) for part in value]
            return parts[0] if len(parts) == 1 else self.several(tuple(parts))
        if isinstance(value, self.type):
            _options_of_kind(type(value), self.type, self.name)
            return value
        if texts and isinstance(value, str):
            kind, _, rest = value.partition(":")
            pairs = [part.partition("=") for part in _BETWEEN.split(rest) if part]
            if not all(equals for _, equals, _ in pairs):
                raise ParameterError(self.name, _OPTIONS_OF_TEXT, value)
            value = {"kind": kind} | {key.strip(): text.strip() for key, _, text in pairs}
        if not isinstance(value, Mapping):
            what = f"{kinds.what} object, a table with its kind"
            made = kinds.get(value, self.name) if isinstance(value, str) else value
            hint = None
            if isinstance(made, type):
                needed = _options_of_kind(made, self.type, self.name).items()
                given_by = ", ".join(f"{name}=…" for name, each in needed if each.required)
                hint = f"type {made.__name__}({given_by})"
            raise ParameterError(self.name, " or ".join([what, *self.words]), value, hint)
        given = dict(value)
        made = kinds.get(given.pop("kind", None), f"{self.name}.kind")
        options = _options_of_kind(made, self.type, f"{self.name}.kind")
        with within(self.name):
            check_names(options, given)
            return made(**converted(options, given, texts=texts))


_OPTIONS_OF_TEXT: Final = (
    "kind:option=value,option=value with lists in brackets, as in levels=[1,2]"
)
#: A comma that is not inside brackets.
_BETWEEN = re.compile(r",(?![^\[]*\])")


def option(about: str = "", *, default: Any = dataclasses.MISSING, **declared: Any) -> Any:
    """Declare a dataclass's field with what is to be known of it beside its type.

    Parameters
    ----------
    about, default, declared
        The fields of `Option`, and ``gt``, ``ge``, ``lt``, ``le`` for the numbers of its type.
    """
    limits = {name: declared.pop(name) for name in ("gt", "ge", "lt", "le") if name in declared}
    metadata = {"option": Option(about=about, **declared), "limits": limits}
    return dataclasses.field(default=default, metadata=metadata)


@functools.lru_cache(maxsize=256)
def options_of(kind: Hashable) -> dict[str, Option]:
    """Return the options of a dataclass by their names."""
    assert isinstance(kind, type)
    try:
        hints = type_hints(kind, include_extras=True)
    except NameError:  # its annotations cannot be read from here: taken as they are given
        hints = dict.fromkeys(kind.__dataclass_fields__, Any)  # type: ignore[attr-defined]
    options = {}
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        factory = field.default_factory
        options[field.name] = dataclasses.replace(
            field.metadata.get("option", Option()),
            name=field.name,
            default=field.default if factory is dataclasses.MISSING else factory(),
            **_divided(hints[field.name], field.metadata.get("limits", {})),
        )
    return options


def _divided(hint: Any, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Divide a type into what msgspec converts, with limits on numbers, and words beside it."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    words = [part for part in parts if get_origin(part) is Literal and len(parts) > 1]
    rest = [
        Annotated[part, msgspec.Meta(**limits)] if limits and part in (int, float) else part
        for part in parts
        if part not in words
    ]
    return {
        "type": Union[tuple(rest)],  # noqa: UP007
        "words": tuple(word for part in words for word in get_args(part)),
    }


def _options_of_kind(kind: Any, base: type, name: str) -> dict[str, Option]:
    """Return the options of a class that must be a dataclass itself, or it might hide some."""
    if isinstance(kind, type) and issubclass(kind, base) and "__dataclass_fields__" in vars(kind):
        return options_of(kind)  # type: ignore[arg-type]
    raise ParameterError(name, f"a {base.__name__} that is a frozen dataclass", kind)


def check_names(options: Mapping[str, Option], given: Mapping[str, object]) -> None:
    """Refuse names that are none of the options, and the lack of those that have no default."""
    for name in given:
        if name not in options:
            what = f"one of the options {', '.join(options)}" if options else "no options"
            raise unknown_name(str(name), what, str(name), list(options))
    for name, each in options.items():
        if each.required and name not in given:
            what = each.about.partition(";")[0] or "a value"
            raise ParameterError(name, what, _Words("nothing"), "it has no default")


@contextmanager
def within(name: str) -> Iterator[None]:
    """Let errors speak of options of the table ``name``."""
    try:
        yield
    except ParameterError as error:
        inner = f"{name}.{error.parameter}"
        raise ParameterError(inner, error.expected, error.found, error.hint) from None


def converted(
    options: Mapping[str, Option], given: Mapping[str, object], *, texts: bool = False
) -> dict[str, Any]:
    """Return the values of a table whose names are checked, as the types that are declared."""
    return {name: options[name].convert(value, texts=texts) for name, value in given.items()}


def settle(instance: Any) -> None:
    """Convert the fields of a new frozen dataclass in place: for its ``__post_init__``."""
    for name, each in options_of(type(instance)).items():  # type: ignore[arg-type]
        object.__setattr__(instance, name, each.convert(getattr(instance, name)))


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(option, dataclasses.field)
)
def schema(declared: type[Class]) -> type[Class]:
    """Make a frozen dataclass that complains of wrong names itself and has its options in its help.

    In its docstring they take the place of ``{options}``.
    """
    kind: Any = dataclasses.dataclass(frozen=True, kw_only=True)(declared)
    options, made = options_of(kind), kind.__init__

    @functools.wraps(made)
    def init(self: Any, *positional: Any, **given: Any) -> None:
        if positional:
            expected = f"its value by name, as in {declared.__name__}({next(iter(options))}=…)"
            raise ParameterError(next(iter(options)), expected, _Words("a value without a name"))
        check_names(options, given)
        made(self, **given)

    kind.__init__ = init
    lines = ["Parameters", "----------"]
    for each in options.values():
        lines += [each.name, *(f"    {line}" for line in textwrap.wrap(each.about, 88))]
    kind.__doc__ = kind.__doc__.replace("{options}", "\n    ".join(lines))
    made_kind: type[Class] = kind
    return made_kind


def table_of(thing: Any, kinds: Registry, name: str = "") -> dict[str, Any] | list[Any]:
    """Return the tagged table of an object of one of the kinds; of several, a list of them.

    Without the ``name`` of its option it is for a digest: it has the version too, and need not be
    one that can be read back.
    """
    parts = getattr(thing, "parts", None)
    # A kind of one's own may have an option of that name.
    if isinstance(parts, tuple) and parts and all(map(dataclasses.is_dataclass, parts)):
        return [table_of(part, kinds, name) for part in parts]
    version = {} if name or thing.version == 1 else {"version": thing.version}
    options = dataclasses.asdict(thing)
    if options.get("share", ...) is None:
        del options["share"]  # said only in a list of several
    return {"kind": kinds.name_of(thing, name), **version, **options}


def from_text(text: str) -> Any:
    """Return what a text stands for: a number, true, false, none, a list of these; else itself.

    Examples
    --------
    >>> [from_text(text) for text in ("150_000", "2^-2", "none", "[1, 2.5]", "mean")]
    [150000, 0.25, None, [1, 2.5], 'mean']
    """
    text = text.strip()
    if text.lower() in _NAMED:
        return _NAMED[text.lower()]
    if text.startswith("[") and text.endswith("]"):
        return [from_text(part) for part in text[1:-1].split(",") if part.strip()]
    base, power, exponent = text.replace("**", "^").partition("^")
    try:
        if not power and base.lstrip("+-").replace("_", "").isdigit():
            return int(base)
        number = float(base) ** float(exponent) if power else float(base)
    except (ValueError, OverflowError, ZeroDivisionError):
        return text
    return number if isinstance(number, float) else text


_NAMED = {"none": None, "true": True, "false": False}
