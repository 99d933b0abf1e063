"""The report: JSON, tables, and a page that needs nothing but itself."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from rillet.audit import Check, Report
from rillet.audit.family import Caught, Family
from rillet.audit.page import page_of

GOOD = Report(
    name="a<b",
    about="a & b",
    claimed=1.0,
    delta=0.0,
    exact=0.99,
    bound=0.8,
    black_box=0.2,
    trials=1000,
    unit="observation 1",
    checks=(Check("replay", True, "3 pairs"),),
    seconds=1.0,
)
BAD = replace(GOOD, name="bad", exact=math.inf, checks=(Check("exposure", False, "ε = 3 > 1"),))
CAUGHT = Caught("tree-short", "a tree <one> level short", 20, 20, "exposure", 1.5, 1.0)


def family(*reports: Report, broken: tuple[Caught, ...] = (CAUGHT,)) -> Family:
    return Family(reports, broken, quick=False, alpha=0.01, seconds=12.0)


def test_what_fails_is_said():
    assert family(GOOD).passed
    assert not family(GOOD, BAD).passed
    assert not family(GOOD, broken=(replace(CAUGHT, caught=19),)).passed
    assert family(GOOD, BAD).summary.startswith("1 of 2 mechanisms keep their promise; 1 of 1")
    assert BAD.found == "exposure: ε = 3 > 1"


def test_json_is_plain():
    text = json.dumps(family(GOOD, BAD).to_dict(), allow_nan=False)
    read = json.loads(text)
    assert [one["passed"] for one in read["mechanisms"]] == [True, False]
    assert read["mechanisms"][1]["exact"] == "infinite"
    assert read["broken"][0]["caught"] == 20


def test_the_page_needs_nothing_else():
    page = page_of(family(GOOD, BAD))
    assert not re.search(r"(src|href)=|url\(|@import|https?:", page)
    assert "a&lt;b" in page
    assert "<one>" not in page
    assert page.count("<circle") == 2
    assert "caught 20 of 20 times by exposure: ε ≥ 1.50" in page
    assert "class=bad" in page


def bars(page: str) -> list[float]:
    return [float(width) for width in re.findall(r"<rect x=250 y=[\d.]+ width=([\d.]+)", page)]


def test_bars_are_as_long_as_what_was_shown():
    short, long = (bars(page_of(family(replace(GOOD, bound=bound)))) for bound in (0.4, 0.8))
    assert long[0] == pytest.approx(2 * short[0], rel=1e-3)
    assert long[1] == short[1]
