"""Sources: where observations come from.

A source is a function that opens something, checks what is public about it (does it exist, has it
the column), and returns an iterator of `Block`. Each block is a run of observations in order with
the position behind it. Sources share these promises:

- **One row, one observation.** A cell that is empty, missing or no number is NaN, which clipping
  maps to a fixed image. No value makes a source raise, skip or add a row.
- **Keys and sequence numbers.** On request each observation has the place of its key among the
  declared ones and its sequence number. A row with no such key stays, marked `UNDECLARED`; who
  absorbs the block drops it.
- **Bounded memory.** At most ``block_rows`` rows are held at a time, and a chunk of those behind.
- **Resume.** ``start=block.position`` continues behind that block, ``start=block.start`` gives it
  again.
- **Stop.** When ``stop`` is set, the iterator ends between two blocks.
- **Asking is acknowledging.** Who asks for the next block has safely absorbed the one before. A
  source over a broker acknowledges then, so a consumer must not read ahead of what it has made
  durable.

**Privacy.** Touches raw data: the values of a block are unreleased. Header lines, field names, the
number of rows and the size of a file count as public.
"""

from __future__ import annotations

from rillet.source.block import Block, Position
from rillet.source.delimited import read_csv
from rillet.source.json_lines import read_json_lines
from rillet.source.keys import UNDECLARED, DeclaredKeys
from rillet.source.mqtt import MqttSource
from rillet.source.parquet import read_parquet
from rillet.source.registry import read

__all__ = [
    "UNDECLARED",
    "Block",
    "DeclaredKeys",
    "MqttSource",
    "Position",
    "read",
    "read_csv",
    "read_json_lines",
    "read_parquet",
]
