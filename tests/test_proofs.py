"""Every exported mechanism has a page of proof, and every page has all its parts."""

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

import rillet
import rillet.noise
import rillet.privacy
import rillet.statistic
import rillet.strategy
import rillet.threshold
from rillet.noise import LAWS, Law
from rillet.privacy import UNITS, Person
from rillet.statistic import STATISTICS, Statistic
from rillet.strategy import STRATEGIES, Strategy
from rillet.threshold import THRESHOLDS, Threshold

HOMES = (
    rillet,
    rillet.noise,
    rillet.privacy,
    rillet.statistic,
    rillet.strategy,
    rillet.threshold,
)
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "proofs"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.stem != "index")
ROW = re.compile(r"^\| ((?:`[\w.]+`(?:, )?)+) \| ([\w ]+) \| (.*) \|$", re.MULTILINE)
LINE = re.compile(r"^(?:- \*\*(L\d+)\*\*|(L\d+)  )", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def exported() -> dict[str, str]:
    """What is public and releases something, or determines what a release costs."""
    kinds: dict[str, type] = {"strategy": Strategy, "threshold": Threshold, "statistic": Statistic}
    kinds |= {"unit": Person, "law": Law}
    values = [getattr(home, name) for home in HOMES for name in home.__all__]
    for registry in (STRATEGIES, THRESHOLDS, STATISTICS, UNITS):
        values += registry.own.values()
    values += [type(law) for law in LAWS.values()]
    return {
        value.__name__: word
        for value in values
        if isinstance(value, type) and not inspect.isabstract(value)
        for word, kind in kinds.items()
        if issubclass(value, kind)
    }


def covered(index: str) -> dict[str, tuple[str, list[str]]]:
    """What the index says: for each name what it is, and its pages."""
    return {
        name: (word, re.findall(r"\]\((\w[\w-]*)\.md\)", pages))
        for names, word, pages in ROW.findall(index)
        for name in re.findall(r"`([\w.]+)`", names)
    }


@cache
def functions_of(path: str) -> frozenset[str]:
    """The functions of a file of tests that pytest runs."""
    if not (ROOT / path).exists():
        return frozenset()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def lacks(text: str) -> list[str]:
    """The parts of a proof that a page does not have."""
    missing = []
    parts = {
        "a claim": r"^(\*\*Claim\b|## Claim)",
        "neighbours": r"^\*\*Neighbours\.\*\*",
        "assumptions": r"^(## Assumptions|\*\*Assumptions\.\*\*)$",
        "a labelled assumption": r"^- \*\*[A-Z]\d( \([\w ]+\))?\.",
        "an end of a proof": r"∎",
        "tests": r"^## Tests$",
    }
    missing += [what for what, form in parts.items() if not re.search(form, text, re.MULTILINE)]
    before, _, after = text.partition("\n## Tests\n")
    lines = [one or other for one, other in LINE.findall(before)]
    if len(lines) < 4 or lines != [f"L{number}" for number in range(1, len(lines) + 1)]:
        missing.append("lines L1, L2, …")
    rows = dict(re.findall(r"^\| (L\d+) \| (.*) \|$", after, re.MULTILINE))
    missing += [f"a test of {line}" for line in lines if not TEST.search(rows.get(line, ""))]
    missing += [f"a line {line}" for line in rows if line not in lines]
    missing += [
        f"{file}::{test}" for file, test in TEST.findall(text) if test not in functions_of(file)
    ]
    return missing


def test_every_exported_mechanism_has_a_page():
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    listed, there = covered(index), exported()
    assert {"BinaryTree", "TailHistogram", "Mean", "Person", "GaussianLaw"} <= set(there)
    assert {name: listed.get(name, ("nothing",))[0] for name in there} == there
    for name, (_, pages) in listed.items():
        assert pages, f"{name}: no page"
        for page in pages:
            assert (FOLDER / f"{page}.md").exists(), f"{name}: {page}.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_all_parts_of_a_proof(page):
    assert lacks(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("**Claim.**", "", ["a claim"]),
        ("**Neighbours.**", "", ["neighbours"]),
        ("- **T", "- ", ["a labelled assumption"]),
        ("∎", "", ["an end of a proof"]),
        ("\nL3  ", "\n    ", ["lines L1, L2, …", "a line L3"]),
        ("| L2 |", "| |", ["a test of L2"]),
        (
            "::test_nodes_are_what_they_say",
            "::test_nodes",
            ["tests/strategy/test_tree.py::test_nodes"],
        ),
    ],
)
def test_a_part_that_is_missing_is_named(old, new, missing):
    text = (FOLDER / "tree.md").read_text(encoding="utf-8")
    assert old in text
    assert lacks(text.replace(old, new)) == missing


def test_an_exported_mechanism_without_a_page_is_named():
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert exported().keys() - covered(index.replace("`HonakerTree`", "")).keys() == {"HonakerTree"}
