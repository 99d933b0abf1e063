"""Sinks: where releases go.

:class:`JsonLinesSink` writes records, mappings from the names of a release (``key``, ``t``,
``value``, ``noise_std``, …) to public values, in the order given. The sinks of a durable run
(:mod:`rillet.sink.base` says what they promise, :mod:`rillet.sink.registry` opens them) take tables
of releases, and take none twice.

**Privacy.** Post-processing. Nothing here can import what touches raw data.
"""

from __future__ import annotations

from rillet.sink.json_lines import JsonLinesSink

__all__ = ["JsonLinesSink"]
