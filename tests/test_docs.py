"""Every command and every code block of the documentation works."""

import contextlib
import doctest
import importlib
import inspect
import pkgutil
import re
import runpy
import tomllib
from pathlib import Path

import msgspec
import pytest

import rillet
from helpers.pages import RUN, SHOWN, Page, blocks, matches
from helpers.servers import broker, database
from rillet.release import FIELDS

__all__ = ["broker", "database"]

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# How many blocks of each page are shown but not run, each with its reason above it. A number that
# grows is a decision, to be made here.
NOT_RUN = {
    "CONTRIBUTING.md": 1,
    "README.md": 1,
    "docs/benchmarks.md": 1,
    "docs/command-line.md": 1,
    "docs/index.md": 1,
    "docs/live-page.md": 1,
    "docs/mechanism.md": 1,
    "docs/reproduce.md": 1,
    "docs/scale.md": 3,
    "docs/sources.md": 1,
}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def servers(page, request):
    """Real ones in place of those that a page names."""
    if page.name != "engineer.md":
        return {}
    broker, database = map(request.getfixturevalue, ("broker", "database"))
    return {
        "broker.example:1883": f"{broker.host}:{broker.port}",
        "host=db.example dbname=grid user=rillet": database.dsn(),
    }


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_blocks_of_a_page_run(page, tmp_path, servers):
    running, before = Page(tmp_path, servers), None
    for block in blocks(page):
        assert block.language in RUN | SHOWN, (
            f"{block}: '{block.language}' is neither run ({', '.join(sorted(RUN))}) "
            f"nor for show only ({', '.join(sorted(SHOWN))})"
        )
        if block.language in RUN and block.not_run is None:
            running.run(block)
        elif block.language == "text" and before == "python":
            running.compare(block)
        before = block.language if block.not_run is None else None


def test_the_blocks_that_are_not_run_are_counted():
    counted = {
        name(page): sum(block.not_run is not None for block in blocks(page)) for page in PAGES
    }
    assert {page: count for page, count in counted.items() if count} == NOT_RUN


MODULES = ["rillet", *(found.name for found in pkgutil.walk_packages(rillet.__path__, "rillet."))]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(
        importlib.import_module(module),
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert result.failed == 0


def names_in_glossary() -> list[str]:
    """What stands in the column "name in code", the fourth of the tables of symbols."""
    rows = [
        line.split(" | ")
        for line in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    return re.findall(r"`([A-Za-z_.]+)`", " ".join(row[3] for row in rows if len(row) == 4))


def exists(dotted: str) -> bool:
    """Whether a name below ``rillet`` is a module, an attribute, or a field of a class."""
    found: object = rillet
    for part in dotted.split("."):
        if part in getattr(found, "__dataclass_fields__", {}):
            return True
        if found is rillet.Release and part in {field.name for field in FIELDS}:
            return True
        if not hasattr(found, part) and inspect.ismodule(found):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(f"{found.__name__}.{part}")
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def test_every_name_in_the_glossary_exists():
    names = names_in_glossary()
    assert len(names) > 20
    assert [name for name in names if not exists(name)] == []
    assert not exists("Plan.epsilom")
    assert not exists("no_such_room.Plan")


# The site: what its generator does not check.


def pages_in(entry: object) -> list[str]:
    """The pages of a navigation, in order."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in pages_in(part)]


def test_every_page_is_in_the_navigation_once():
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    listed = pages_in(site["project"]["nav"])
    assert listed[0] == "index.md"
    assert sorted(listed) == sorted(
        page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")
    )


def test_the_index_of_the_proofs_lists_every_page():
    folder = ROOT / "docs" / "proofs"
    listed = re.findall(r"^- \[.*\]\((.*\.md)\)", (folder / "index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(
        page.name for page in folder.glob("*.md") if page.stem != "index"
    )
    assert listed.index("segments.md") < listed.index("toeplitz.md") < listed.index("smooth.md")


def test_the_architecture_page_lists_every_folder():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w/]+)/` \|", page, re.MULTILINE)
    there = {
        path.parent.relative_to(ROOT / "src" / "rillet").as_posix()
        for path in (ROOT / "src" / "rillet").rglob("__init__.py")
    } - {"."}
    assert len(listed) == len(there) and set(listed) == there
    hops = re.findall(r"^\| (\d+) \| `([\w/.]+)` \|", page, re.MULTILINE)
    assert [int(number) for number, _ in hops] == list(range(1, len(hops) + 1))
    assert len(hops) <= 15
    assert all((ROOT / "src" / "rillet" / where).exists() for _, where in hops)


def test_every_public_name_is_in_the_reference():
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
    missing = [
        name
        for name in rillet.__all__
        if name != "__version__"
        and f"rillet.{name}" not in shown
        and not any(f"{getattr(rillet, name).__module__}.".startswith(f"{m}.") for m in shown)
    ]
    assert missing == []


def test_what_pages_name_exists():
    """Files and folders of the repository that a page names, and pages that the source names."""
    missing = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"`((?:tests|scripts|benchmarks|rillet)/[\w/.-]*)`", text):
            root = ROOT / "src" if path.startswith("rillet/") else ROOT
            known = (root / path).exists() or path.startswith("benchmarks/results/")
            missing += [] if known else [f"{name(page)}: {path}"]
    for source in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for path in re.findall(r"docs/[\w/-]+\.md", source.read_text(encoding="utf-8")):
            missing += [] if (ROOT / path).exists() else [f"{source.relative_to(ROOT)}: {path}"]
    assert missing == []


def test_every_invariant_names_code_and_tests_that_exist():
    page = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    invariants = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    assert len(invariants) > 20
    missing = []
    for invariant in invariants:
        title = invariant.splitlines()[0]
        code = re.findall(r"`rillet\.([\w.]+)`", invariant)
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", invariant)
        missing += [] if code and tests else [f"{title}: no code or no test"]
        missing += [f"{title}: {dotted}" for dotted in code if not exists(dotted)]
        for file, test in tests:
            path = ROOT / file
            defined = path.exists() and f"\ndef {test}(" in path.read_text(encoding="utf-8")
            missing += [] if defined else [f"{title}: {file}::{test}"]
        # No name escapes the two patterns above.
        assert invariant.count("`rillet.") == len(code)
        assert invariant.count("`tests/") == len(tests)
    assert missing == []


def test_formulas_are_converted_or_refused():
    typeset = runpy.run_path(str(ROOT / "scripts" / "formulas.py"))["typeset"]
    assert "".join(typeset(r"x'_i \le \sqrt{2}", "inline").itertext()) == "x′i≤2"
    for broken in (r"\nosuchcommand x", r"\frac{1"):
        with pytest.raises(ValueError, match="formula"):
            typeset(broken, "inline")


def test_tables_of_options_come_from_the_classes():
    table = runpy.run_path(str(ROOT / "scripts" / "option_tables.py"))["table"]

    class Options(msgspec.Struct):
        """Made up.

        Parameters
        ----------
        path : str
            Where it is.
        wait, patience : float
            Seconds, ``0`` for none.
        """

        path: str
        wait: float = 0.5
        patience: float | None = None

    assert table(Options)[3:-1] == [
        "| `path` | required | Where it is. |",
        "| `wait` | `0.5` | Seconds, `0` for none. |",
        "| `patience` | none | Seconds, `0` for none. |",
    ]
    Options.__doc__ = "Nothing is described."
    with pytest.raises(KeyError, match="path"):
        table(Options)


# The runner itself: each kind of broken page must fail.

FENCE = "```"


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text.replace("FENCE", FENCE), encoding="utf-8")
    return page


def run(page: Path, folder: Path) -> Page:
    running = Page(folder)
    for block in blocks(page):
        running.run(block)
    return running


def test_blocks_share_a_namespace_and_a_folder(tmp_path):
    page = write(
        tmp_path,
        "FENCEpython\nx = 6\nimport pathlib; pathlib.Path('six').write_text(str(x))\nFENCE\n"
        "- in a list:\n\n    FENCEpython\n    x *= 7\n    FENCE\n"
        "FENCEconsole\n$ cat six; \\\n> echo ' and'\n6 and\n$ true\nFENCE\n"
        "FENCEbash\ntest -f six\nFENCE\n",
    )
    assert run(page, tmp_path).namespace["x"] == 42


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("FENCEpython\nassert False\nFENCE\n", AssertionError),
        ("FENCEpython\n1 / 0\nFENCE\n", ZeroDivisionError),
        ("FENCEconsole\n$ echo one\ntwo\nFENCE\n", AssertionError),
        ("FENCEconsole\n$ false\nFENCE\n", AssertionError),
        ("FENCEconsole\n$ false | cat\nFENCE\n", AssertionError),
        ("FENCEconsole\nno prompt\nFENCE\n", ValueError),
        ("FENCEbash\nfalse\ntrue\nFENCE\n", AssertionError),
        ("FENCEpython\nnever = 'closed'\n", ValueError),
    ],
)
def test_a_broken_page_fails(tmp_path, text, error):
    page = write(tmp_path, text)
    with pytest.raises(error):
        run(page, tmp_path)


def test_only_a_reason_directly_above_excuses_a_block(tmp_path):
    page = write(
        tmp_path,
        "<!-- not run: it takes a day -->\nFENCEpython\nFENCE\n"
        "<!-- not run: it takes a day -->\n\nFENCEpython\nFENCE\n"
        "<!-- not run: -->\nFENCEpython\nFENCE\n",
    )
    assert [block.not_run for block in blocks(page)] == ["it takes a day", None, None]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("mean 1...", "mean 12.5\n", True),
        ("a\n...\nz", "a\nb\nc\nz\n", True),
        ("mean 2...", "mean 12.5\n", False),
        ("a", "a b", False),
    ],
)
def test_output_is_compared_up_to_dots_and_white_space(expected, printed, same):
    assert matches(expected, printed) is same
