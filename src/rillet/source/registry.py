"""One door to all sources: from a table of options to a source."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rillet.registry import Registry
from rillet.source.base import Source
from rillet.source.keys import DeclaredKeys

if TYPE_CHECKING:
    from msgspec import Struct

__all__ = ["SOURCES", "open_source"]

#: Kinds of sources; other packages add theirs through the entry point group ``rillet.sources``.
SOURCES = Registry(
    "a kind of source",
    "rillet.sources",
    {
        "file": "rillet.source.file:FileSource",
        "mqtt": "rillet.source.mqtt:MqttSource",
        "http": "rillet.source.http:HttpSource",
    },
)


def open_source(
    options: Mapping[str, object] | Struct,
    *,
    keys: DeclaredKeys | None = None,
    stop: threading.Event | None = None,
) -> Source:
    """Return the source that a table of options describes; nothing is opened yet.

    **Privacy.** Public options only.

    Parameters
    ----------
    options : mapping or Struct
        ``kind`` (``"file"`` if there is none) and the options of that kind, as
        `rillet.source.file.FileOptions`, `rillet.source.mqtt.MqttOptions` and
        `rillet.source.http.HttpOptions` list them.
    keys : DeclaredKeys, optional
        The declared keys, of which each row has one or none.
    stop : threading.Event, optional
        Once it is set, no further block comes.

    Raises
    ------
    ParameterError
        If the kind is unknown, or an option is unknown, missing or wrong.

    Examples
    --------
    >>> open_source({"path": "trips.csv", "column": "minutes"})
    FileSource('trips.csv')
    """
    import msgspec

    from rillet.options import convert

    # Made in Python, a struct has not been checked.
    table = msgspec.to_builtins(options) if isinstance(options, msgspec.Struct) else options
    kind = SOURCES.get(table.get("kind", "file"), "source.kind")
    source: Source = kind(convert(table, kind.Options, "source"), keys=keys, stop=stop)
    return source
