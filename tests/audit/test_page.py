"""The report: JSON, tables, and a page that needs nothing but itself."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rillet.audit import SUBJECTS, Check, Report
from rillet.audit.broken import BROKEN
from rillet.audit.family import SECRETS, Caught, Family
from rillet.audit.page import page_of

DOCS = Path(__file__).parents[2] / "docs"

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


# --- The page of the documentation -----------------------------------------------------------


def stored() -> Family:
    """What the command found when the page was made."""
    found = json.loads((DOCS / "assets" / "audit.json").read_text(encoding="utf-8"))
    reports = []
    for fields in found["mechanisms"]:
        fields.pop("passed")
        fields["checks"] = tuple(Check(**check) for check in fields["checks"])
        reports.append(Report(**fields))
    broken = [Caught(**each) for each in found["broken"]]
    broken = [replace(e, measured=math.inf) if e.measured == "infinite" else e for e in broken]
    return Family(tuple(reports), tuple(broken), found["quick"], found["alpha"], found["seconds"])


def test_the_documented_tables_are_those_of_the_command():
    page = (DOCS / "audit.md").read_text(encoding="utf-8")
    made = stored()
    for table in made.markdown().strip().split("\n\n"):
        assert table in page
    assert f"{made.processor_seconds:.0f} seconds of processor" in page


def test_the_documented_audit_is_complete_and_shows_what_is_asked():
    made = stored()
    assert made.passed
    assert not made.quick
    assert made.processor_seconds < 2 * 600  # ten minutes on two cores
    assert [report.name for report in made.reports] == list(SUBJECTS)
    assert [each.name for each in made.broken] == [broken.name for broken in BROKEN]
    assert {each.secrets for each in made.broken} == {SECRETS}
    for report in made.reports:
        asked = SUBJECTS[report.name].asked
        assert asked is None or report.bound >= asked
