"""What Prometheus may ask: how far the run is, and on request the released values.

**Privacy.** Public numbers: what the run says of itself, and releases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rillet.web.live import Live

__all__ = ["metrics"]


def metrics(live: Live, *, values: bool) -> str:
    """The text exposition format; with ``values`` also the latest release of each key."""
    lines: list[str] = []
    for name, kind, meaning, samples in _families(live, values=values):
        lines += [f"# HELP rillet_{name} {meaning}", f"# TYPE rillet_{name} {kind}"]
        lines += [f"rillet_{name}{_labels(labels)} {number!r}" for labels, number in samples]
    return "\n".join(lines) + "\n"


def _families(live: Live, *, values: bool) -> Iterator[tuple[str, str, str, list[Any]]]:
    about, progress = live.about() or {}, live.progress() or {}
    latest = list(live.latest.values())
    declared = max(len(about.get("keys", [])), len(latest), 1)
    absorbed = int(progress.get("absorbed", 0))
    yield "run_up", "gauge", "Whether the run says that it lives", [({}, int(_is_up(progress)))]
    yield (
        *("run_seen_timestamp_seconds", "gauge", "When the run last said so"),
        [({}, float(progress.get("updated") or 0))],
    )
    yield (
        *("absorbed_total", "counter", "Observations absorbed, by the clock ticks closed"),
        [({}, absorbed)],
    )
    yield (
        *("keys", "gauge", "Declared keys, by whether they release already"),
        [({"state": "releasing"}, len(latest)), ({"state": "learning"}, declared - len(latest))],
    )
    needed = max(about.get("first_release") or 1, 1)
    learning: dict[str, int] = progress.get("learning") or {}
    if not learning and not latest and declared == 1:
        learning = {"": absorbed}
    shares = {key: min(1.0, count / needed) for key, count in learning.items()}
    yield (
        *("learning_ratio", "gauge", "Share that has come of what first releases need, by keys"),
        [({}, min(1.0, (len(latest) + sum(shares.values())) / declared))],
    )
    if not values:
        return
    yield (
        *("key_learning_ratio", "gauge", "The same, of each key that has released nothing"),
        [({"key": key}, share) for key, share in shares.items()],
    )
    rows = [
        ({"key": str(row["key"]), "name": name}, (value, low, high))
        for row in latest
        for name, value, low, high in zip(
            live.names, row["value"], row["low"], row["high"], strict=True
        )
        if value is not None
    ]
    for index, (name, meaning) in enumerate(
        (
            ("value", "Latest released value"),
            ("value_low", "Lower end of its 95 % interval"),
            ("value_high", "Upper end of its 95 % interval"),
        )
    ):
        found = [(labels, numbers[index]) for labels, numbers in rows if numbers[index] is not None]
        yield name, "gauge", meaning, found
    times = [({"key": str(row["key"])}, row["at"] / 1000) for row in latest]
    yield "release_timestamp_seconds", "gauge", "When the latest release was made", times


def _is_up(progress: dict[str, Any]) -> bool:
    return bool(progress.get("running")) and float(progress.get("age", 0)) < 20


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""

    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"
