"""A small engine to be killed: delivers batches to a sink and notes its acknowledgements."""

from __future__ import annotations

import json
import random
import resource
import signal
from pathlib import Path
from typing import Any

from rillet.errors import OutputError
from rillet.release import Releases
from rillet.sink import make_sink
from sink.tables import table

KEYS = tuple((f"meter {index}", index) for index in range(50))
#: Rows of one key.
ROWS = 300


def whole_table() -> Releases:
    return table(KEYS, ROWS, seed=12)


def engine(options: dict[str, Any], note: Path, seed: int, started: Any) -> None:
    """Deliver everything that is not acknowledged, in batches cut at random."""
    cuts = random.Random(seed)
    releases = whole_table()
    state = json.loads(note.read_text()) if note.exists() else {"rows": 0, "position": None}
    started.set()
    sink = make_sink(options).open(state["position"])
    rows = state["rows"]
    while rows < len(releases):
        count = cuts.choice([1, 7, 300, 4000])
        sink.deliver(releases[rows : rows + count])
        rows = min(rows + count, len(releases))
        beside = note.with_suffix(".new")
        beside.write_text(json.dumps({"rows": rows, "position": sink.position()}))
        beside.replace(note)
    sink.close()


def on_a_small_disk(options: dict[str, Any], most: int, answer: Any) -> None:
    """Deliver until no file may grow any more; send what was delivered and the error."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    releases = whole_table()
    sink = make_sink(options).open()
    rows, position, messages = 0, sink.position(), []
    while not messages:
        try:
            sink.deliver(releases[rows : rows + 500])
        except OutputError as error:
            messages.append(str(error))
        else:
            rows, position = rows + 500, sink.position()
    try:  # and again, as an engine might
        sink.deliver(releases[rows : rows + 500])
    except OutputError as error:
        messages.append(str(error))
    answer.send((rows, position, messages))
