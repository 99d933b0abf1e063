"""Sinks: where releases go.

A sink takes records, mappings from the names of a release (``key``, ``t``, ``value``,
``noise_std``, …) to public values, and writes them in the order given.

**Privacy.** Post-processing. Nothing here can import what touches raw data.
"""

from __future__ import annotations

from rillet.sink.json_lines import JsonLinesSink

__all__ = ["JsonLinesSink"]
