"""Sources: where observations come from; `Source` lists what each of them promises.

**Privacy.** Touches raw data: the values of a block are unreleased. Header lines, field names, the
number of rows and the size of a file count as public.
"""

from __future__ import annotations

from rillet.source.base import Block, Position, Source
from rillet.source.keys import UNDECLARED, DeclaredKeys
from rillet.source.registry import SOURCES, open_source

__all__ = [
    "SOURCES",
    "UNDECLARED",
    "Block",
    "DeclaredKeys",
    "Position",
    "Source",
    "open_source",
]
