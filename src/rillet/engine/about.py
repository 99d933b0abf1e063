"""What a durable run tells whoever shows its releases: two small public files in its folder.

``about.json`` has the plan in words and numbers, written when the run starts; ``progress.json``
how far the run is, written again while it lives.  With ``releases.db`` they are all that a page
needs, so whatever shows results never opens the state.

**Privacy.** Public numbers only: what :meth:`rillet.Plan.describe`, its charges and
:class:`rillet.engine.job.Summary` say.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rillet.errors import OutputError
from rillet.release import key_shown
from rillet.sink.file import Readers, open_file
from rillet.times import SECOND, show_moment

if TYPE_CHECKING:
    from rillet.engine.job import Summary
    from rillet.plan import Plan

ABOUT: Final = "about.json"
PROGRESS: Final = "progress.json"
#: Seconds between two looks at the summary, and at most between two writings.
_LOOK, _LONGEST = 0.5, 5.0
#: Keys that learn: if there are more, how far they are is written less often.
_MANY: Final = 500


def about(plan: Plan) -> dict[str, Any]:
    """The public facts of a plan, for a page."""
    layout, clock = plan.layout, plan.clock
    charges = layout.charges()
    worst = charges.worst()
    return {
        "format": "rillet-about-1",
        "statistic": json.loads(plan.to_json())["statistic"],
        "promise": {
            part.name: getattr(plan.guarantee_now, part.name) for part in fields(plan.guarantee)
        },
        "amendments": [{"after": each.after, "what": str(each)} for each in plan.amendments],
        "unit": "observation" if plan.unit is None else "person",
        "every": layout.every if clock is None else None,
        "every_seconds": None if clock is None else clock.every / SECOND,
        "lag": layout.lag,
        "first_release": layout.first_release,
        "first_release_at": None
        if clock is None
        else show_moment(clock.end_of(layout.first_release)),
        "learned_together": None if layout.shared is None else layout.shared.observations,
        "length": layout.length if layout.length_is_known else None,
        "keys": [key_shown(key) for key in plan.keys_now],
        "description": plan.describe().splitlines(),
        "charges": [
            {
                "label": event.label,
                "first": event.first,
                "last": event.last,
                "due": event.due,
                "cost": str(event.cost),
            }
            for event in charges.events
        ],
        "charged_to": charges.unit,
        "worst": None if worst is None else str(worst.cost),
    }


@contextmanager
def told(
    folder: Path, plan: Plan, summary: Callable[[], Summary], readers: Readers
) -> Iterator[None]:
    """Write both files, for these readers, and keep the second up to date until the run ends.

    Raises
    ------
    OutputError
        If they cannot be written at the start.  Later the run goes on without.
    """
    ended = threading.Event()

    def progress(*, running: bool) -> None:
        now = summary()
        content: dict[str, Any] = {
            "running": running,
            "absorbed": now.observations,
            "releases": now.releases,
            "delivered": now.delivered,
            "last_block": now.last_block or None,
            "updated": time.time(),
        }
        if now.of_keys is not None:
            content["learning"] = now.of_keys.counts()
        _write(folder / PROGRESS, content, readers)

    def keep_telling() -> None:
        written, told_at = summary().observations, time.monotonic()
        while not ended.wait(_LOOK):
            now = summary()
            # Many counts take a while to write, and to read.
            left = 0 if now.of_keys is None else now.of_keys.left
            due = _LONGEST if left > _MANY or now.observations == written else 0.0
            if time.monotonic() - told_at > due:
                written, told_at = now.observations, time.monotonic()
                try:
                    progress(running=True)
                except OSError:
                    return

    try:
        _write(folder / ABOUT, about(plan), readers)
        progress(running=True)
    except OSError as error:
        raise OutputError(
            f"{folder}: expected to write {ABOUT} there, found: {error.strerror}"
        ) from None
    thread = threading.Thread(target=keep_telling, name="rillet-about", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(OSError):
            progress(running=False)


def told_before(folder: Path) -> dict[str, int]:
    """How far each key was that had released nothing, as the last run told it; {} if it is lost."""
    try:
        found = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))["learning"]
        return {str(key): int(count) for key, count in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write(path: Path, content: dict[str, Any], readers: Readers) -> None:
    """Replace the file at once."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    descriptor = open_file(str(beside), os.O_WRONLY | os.O_EXCL, readers)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(content, stream, ensure_ascii=False)
    beside.replace(path)
