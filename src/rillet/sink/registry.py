"""One door to all sinks: from the options of a configuration to a sink that is open.

**Privacy.** Post-processing. Passwords are in files or in what ``dsn`` says, and in no message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from rillet.errors import OutputError, ParameterError
from rillet.sink.base import Place, Sink, lost
from rillet.sink.file import FileSink, StandardOutputSink
from rillet.sink.mqtt import MqttSink
from rillet.sink.postgres import PostgresSink
from rillet.sink.sqlite import SqliteSink, Synchronous

__all__ = ["SINK_KINDS", "check_sink", "open_sink"]


@dataclass(frozen=True)
class _Kind:
    """What the options of a kind of sink are, with type or choices; and which must be there."""

    options: Mapping[str, type | tuple[str, ...]]
    required: Sequence[str]
    open: Callable[..., Sink]


def _open_file(options: dict[str, Any], place: Place | None, _columns: Sequence[str]) -> Sink:
    return FileSink(**options, place=place)


def _open_sqlite(options: dict[str, Any], place: Place | None, _columns: Sequence[str]) -> Sink:
    return SqliteSink(**options, place=place)


def _open_postgres(options: dict[str, Any], place: Place | None, _columns: Sequence[str]) -> Sink:
    return PostgresSink(**options, place=place)


def _open_mqtt(options: dict[str, Any], place: Place | None, columns: Sequence[str]) -> Sink:
    return MqttSink(**options, place=place, key_columns=columns)


def _open_stdout(_options: dict[str, Any], place: Place | None, _columns: Sequence[str]) -> Sink:
    if place is not None:
        raise OutputError(f"standard output: expected no place, found {dict(place)}")
    return StandardOutputSink()


_KINDS: dict[str, _Kind] = {
    "jsonl": _Kind({"path": str, "fsync": bool}, ["path"], _open_file),
    "sqlite": _Kind({"path": str, "synchronous": get_args(Synchronous)}, ["path"], _open_sqlite),
    "postgres": _Kind({"dsn": str, "table": str, "patience": float}, [], _open_postgres),
    "mqtt": _Kind(
        {
            "address": str,
            "topic": str,
            "retain": bool,
            "client_id": str,
            "username": str,
            "password_file": str,
            "tls": bool,
            "ca_file": str,
            "protocol": ("5", "3.1.1"),
            "patience": float,
        },
        ["address", "topic"],
        _open_mqtt,
    ),
    "stdout": _Kind({}, [], _open_stdout),
}
#: What ``kind`` may be.
SINK_KINDS = tuple(_KINDS)

_WORDS = {str: "text", bool: "true or false", float: "a positive number"}


def open_sink(
    options: Mapping[str, object],
    *,
    place: Place | None = None,
    key_columns: Sequence[str] = (),
) -> Sink:
    """Open the sink that a table of options describes.

    **Privacy.** Post-processing.

    Parameters
    ----------
    options : mapping
        ``kind``, one of :data:`SINK_KINDS`, and the options of that kind, which are the parameters
        of :class:`~rillet.sink.file.FileSink`, :class:`~rillet.sink.sqlite.SqliteSink`,
        :class:`~rillet.sink.postgres.PostgresSink` and :class:`~rillet.sink.mqtt.MqttSink`.
    place : mapping, optional
        What the sink's ``place()`` said at the last acknowledgement; None at the first start.
    key_columns : sequence of str
        The names of the parts of a key, for topics.

    Raises
    ------
    ParameterError
        If an option is unknown, missing or wrong.
    OutputError
        If the sink cannot be opened.
    MissingExtra
        If it needs a package that is not installed.

    Examples
    --------
    >>> sink = open_sink({"kind": "jsonl", "path": "releases.jsonl", "fsync": True})
    >>> sink.place()
    {'offset': 0}
    >>> sink.close()
    """
    kind, known = _checked(options)
    return kind.open(known, place, key_columns)


def check_sink(
    options: Mapping[str, object],
    *,
    place: Place | None = None,
    key_columns: Sequence[str] = (),
) -> str:
    """Validate options and target without publishing or making anything; return the sink's name.

    A file or database that exists is opened as :func:`open_sink` would, one that does not needs a
    folder that can be written; a server must be reached and let us in, and a table of PostgreSQL
    is made and taken back.

    **Privacy.** Post-processing.

    Raises
    ------
    ParameterError, OutputError, MissingExtra
        As :func:`open_sink`.
    """
    kind, known = _checked(options)
    path = known.get("path")
    if path is not None and (not Path(path).exists() or not Path(path).stat().st_size):
        _check_folder(Path(path))
        for what, number in (place or {}).items():
            if number:
                unit = "bytes" if what == "offset" else "releases"
                raise lost(path, f"{number:,} {unit}", "none")
        return str(path)
    if kind is _KINDS["postgres"]:
        known["keep_table"] = False
    sink = kind.open(known, place, key_columns)
    name = sink.name
    sink.close()
    return name


def _checked(options: Mapping[str, object]) -> tuple[_Kind, dict[str, Any]]:
    known: dict[str, Any] = dict(options)
    name = known.pop("kind", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ParameterError("sink.kind", f"one of {', '.join(SINK_KINDS)}", name)
    for option, value in known.items():
        if option not in kind.options:
            near = get_close_matches(option, kind.options, 1)
            raise ParameterError(
                "sink",
                f"options of {name}: {', '.join(kind.options) or 'none'}",
                option,
                f"did you mean {near[0]}?" if near else None,
            )
        known[option] = _of_type(f"sink.{option}", value, kind.options[option])
    for option in kind.required:
        if not known.get(option):
            raise ParameterError(f"sink.{option}", f"one for a sink of kind {name}", "none")
    return kind, known


def _of_type(name: str, value: object, expected: type | tuple[str, ...]) -> object:
    if isinstance(expected, tuple):
        if value not in expected:
            raise ParameterError(name, f"one of {', '.join(expected)}", value)
        return value
    found = float(value) if expected is float and type(value) is int else value
    if type(found) is not expected or (isinstance(found, float) and not found > 0):
        # Not the value itself: it may be a password at the wrong place.
        raise ParameterError(name, _WORDS[expected], type(value).__name__)
    return found


def _check_folder(path: Path) -> None:
    folder = path.parent
    target = path if path.exists() else folder
    if not folder.is_dir():
        raise OutputError(f"{path}: expected a folder to write to, found no {folder}; make it")
    if path.is_dir():
        raise OutputError(f"{path}: expected a file, found a folder; name a file in it")
    if not os.access(target, os.W_OK):
        raise OutputError(
            f"{path}: expected to be allowed to write, found that {target} does not let us; "
            "change its mode or owner, or name another file"
        )
