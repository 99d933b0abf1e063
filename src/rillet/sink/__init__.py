"""Sinks: where releases go.

:class:`rillet.sink.base.Sink` says what a sink promises, :func:`make_sink` makes one from a table
of options; each kind has a file of its own. Other packages add kinds through the entry point group
``rillet.sinks``.

**Privacy.** Post-processing. Nothing here can import what touches raw data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rillet.registry import Registry

if TYPE_CHECKING:
    from rillet.sink.base import Sink

__all__ = ["SINKS", "make_sink"]

#: The kinds of sinks, each a :class:`rillet.sink.base.Sink`; none is imported before it is used.
SINKS = Registry(
    "a sink",
    "rillet.sinks",
    {
        "jsonl": "rillet.sink.json_lines:JsonLinesSink",
        "stdout": "rillet.sink.json_lines:StandardOutputSink",
        "sqlite": "rillet.sink.sqlite:SqliteSink",
        "parquet": "rillet.sink.parquet:ParquetSink",
        "postgres": "rillet.sink.postgres:PostgresSink",
        "mqtt": "rillet.sink.mqtt:MqttSink",
    },
)


def make_sink(options: Mapping[str, Any], *, key_columns: Sequence[str] = ()) -> Sink:
    """Make the sink that a table of options describes; it is not open yet.

    **Privacy.** Post-processing. No message quotes the text of an option: it may be a password.

    Parameters
    ----------
    options : mapping
        ``kind``, a name of :data:`SINKS`, and the fields of that kind's ``Options``.
    key_columns : sequence of str
        The names of the parts of a key, for topics.

    Raises
    ------
    ParameterError
        If an option is unknown, missing or wrong.
    MissingExtra
        If the sink needs a package that is not installed.

    Examples
    --------
    >>> with make_sink({"kind": "jsonl", "path": "releases.jsonl"}).open() as sink:
    ...     sink.position()
    {'offset': 0}
    """
    from rillet.options import convert

    kind: type[Sink] = SINKS.get(options.get("kind"), "sink.kind")
    return kind(convert(options, kind.Options, "sink"), key_columns=key_columns)
