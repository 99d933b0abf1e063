"""Would the tests notice a mistake?  Change the source at random, and see which changes they miss.

    make mutants

Three steps, each of which goes on where it was stopped; what they keep is in ``build/mutants``::

    choose   500 places drawn at random, each with one change made by cosmic-ray's operators
    run      for each change the quick tests that reach it, until one of them fails
    report   docs/mutants.md: the share that was noticed, its interval, and what was not

Only ``choose`` needs cosmic-ray, in an environment of its own.  Changes are made in a copy of the
tree.  Time is processor time throughout, so that a busy machine kills no change by being slow.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "mutants"
TREE = KEPT / "tree"
CHOSEN = KEPT / "chosen.jsonl"
TRACED = KEPT / "traced.jsonl"
RESULTS = KEPT / "results.jsonl"
PAGE = ROOT / "docs" / "mutants.md"
REASONS = ROOT / "scripts" / "mutants.toml"

ROOMS = ("noise", "gather", "strategy", "threshold", "statistic", "privacy")
# Where tests of these rooms live; tests of jobs, sinks, sources and pages cost too much for each change.
TESTS = (
    *(f"tests/{room}" for room in ROOMS),
    "tests/test_crowd.py",
    "tests/test_fleet.py",
    "tests/test_golden.py",
    "tests/test_layout.py",
    "tests/test_levels.py",
    "tests/test_precision.py",
    "tests/test_release_interval.py",
    "tests/test_step.py",
    "tests/test_step_noise.py",
)
# Seconds of processor time: of a test that is used at all, and of all tests for one change.
LONGEST_TEST = 4.0
ALL_TESTS = 25.0
SEED = 20


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """What has been kept so far; a last line that was cut off counts as missing."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def keep(path: Path, row: dict[str, Any]) -> None:
    """Append one row."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def prepare_tree() -> None:
    """Copy what tests need, once, so that nobody else sees a changed source."""
    if not TREE.exists():
        for name in ("src", "tests", "pyproject.toml", "docs", "examples", "benchmarks", "scripts"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, TREE / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, TREE / name)


# --- choosing ------------------------------------------------------------------------------------


def left_out(module: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Stretches of a module in which a change is no change of what it computes.

    Annotations; arguments of errors and the conditions' texts; docstrings; how an object prints;
    blocks that only the type checker reads.
    """
    stretches: list[ast.AST] = []
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in ("__repr__", "__str__"):
                stretches.append(node)
            stretches += [node.returns] if node.returns else []
        elif isinstance(node, ast.arg) and node.annotation:
            stretches.append(node.annotation)
        elif isinstance(node, ast.AnnAssign):
            stretches.append(node.annotation)
        elif isinstance(node, ast.Raise | ast.Assert):
            stretches.append(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            stretches.append(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            stretches.append(node)
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id[:1].isupper() and "Union" in ast.unparse(node)
            for target in node.targets
        ):
            stretches.append(node)
    return [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]
        for node in stretches
    ]


def definition(module: ast.Module, line: int) -> str:
    """The qualified name of the innermost function around a line, or "" outside of all."""
    found = ""

    def visit(node: ast.AST, prefix: str) -> None:
        nonlocal found
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                inside = child.lineno <= line <= (child.end_lineno or 0)
                if isinstance(child, ast.ClassDef):
                    inner = f"{name}."
                else:
                    inner = f"{name}.<locals>."
                    if inside:
                        found = name
            visit(child, inner)

    visit(module, "")
    return found


def all_changes(path: Path) -> Iterator[dict[str, Any]]:
    """Every change that cosmic-ray's operators can make in a module."""
    import cosmic_ray.plugins
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code

    text = path.read_text(encoding="utf-8")
    module = ast.parse(text)
    nodes = list(ast_nodes(get_ast(text)))
    stretches = left_out(module)
    for name in sorted(cosmic_ray.plugins.operator_names()):
        made = cosmic_ray.plugins.get_operator(name)
        if made.arguments():
            continue
        operator = made()
        places = [
            place for node in nodes for place in operator.mutation_positions(node)
        ]
        for occurrence, (start, _) in enumerate(places):
            if any(first <= start <= last for first, last in stretches):
                continue
            yield {
                "path": path.relative_to(ROOT).as_posix(),
                "line": start[0],
                "column": start[1],
                "operator": name,
                "make": lambda operator=operator, occurrence=occurrence: mutate_code(
                    text, operator, occurrence
                ),
            }


def difference(before: str, after: str) -> tuple[int, str, str]:
    """Where two texts differ, and what stands there in each."""
    first = len(os.path.commonprefix([before, after]))
    rest = len(os.path.commonprefix([before[first:][::-1], after[first:][::-1]]))
    return first, before[first : len(before) - rest], after[first : len(after) - rest]


def choose(count: int, seed: int) -> None:
    """Draw places without repetition, all places alike, and one of the changes for each."""
    prepare_tree()
    if CHOSEN.exists():
        return
    places: dict[tuple[str, int, int], list[dict[str, Any]]] = collections.defaultdict(list)
    for room in ROOMS:
        for path in sorted((TREE / "src" / "rillet" / room).rglob("*.py")):
            for change in all_changes(ROOT / path.relative_to(TREE)):
                places[change["path"], change["line"], change["column"]].append(change)
    print(f"{len(places)} places, {sum(map(len, places.values()))} changes")
    draws = random.Random(seed)
    order = sorted(places)
    draws.shuffle(order)
    made = 0
    for place in order:
        change = draws.choice(places[place])
        text = (ROOT / change["path"]).read_text(encoding="utf-8")
        after = change.pop("make")()
        if after is None or same_program(text, after):
            continue
        offset, old, new = difference(text, after)
        line = text.splitlines()[change["line"] - 1].strip()
        begin = text.rfind("\n", 0, offset) + 1
        end = text.find("\n", offset + len(old))
        changed = (text[begin:offset] + new + text[offset + len(old) : end]).strip()
        keep(CHOSEN, change | {
            "number": made, "places": len(places),
            "definition": definition(ast.parse(text), change["line"]), "offset": offset, "old": old, "new": new,
            "was": line, "is": changed,
        })
        made += 1
        if made == count:
            break


def same_program(before: str, after: str) -> bool:
    """Whether two texts are one program, or the second none."""
    try:
        return ast.dump(ast.parse(before)) == ast.dump(ast.parse(after))
    except SyntaxError:
        return True


# --- running -------------------------------------------------------------------------------------


class TooLong(Exception):
    """A test took more processor time than it may."""


def at_work() -> None:
    """Make this process one that tests the copy."""
    os.chdir(TREE)
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(TREE / "src")]
    os.environ |= {
        "PYTHONPATH": f"{TREE / 'src'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


class Tracer:
    """A pytest plugin: which functions of the rooms each test calls, and what it costs."""

    def __init__(self, known: set[str]) -> None:
        self.known = known
        self.called: set[str] = set()
        self.failed = False

    def trace(self, frame: FrameType, event: str, arg: object) -> None:
        """Note the function that is called; its lines are not traced."""
        code = frame.f_code
        if code.co_filename.startswith(str(TREE / "src" / "rillet")):
            self.called.add(f"{Path(code.co_filename).relative_to(TREE)}:{code.co_qualname}")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out what was traced before."""
        items[:] = [item for item in items if item.nodeid not in self.known]

    def pytest_runtest_protocol(self, item: Any) -> None:
        """Before a test."""
        self.called, self.failed = set(), False
        self.started = time.process_time()

        def stop(number: int, frame: FrameType | None) -> None:
            raise TooLong

        signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, LONGEST_TEST, 2.0)
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """After a part of a test."""
        self.failed |= report.failed

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """After a test."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        spent = time.process_time() - self.started
        keep(TRACED, {
            "test": nodeid,
            "seconds": round(spent, 3),
            "used": not self.failed and spent <= LONGEST_TEST,
            "called": sorted(self.called),
        })


def trace() -> None:
    """Run every test once, without a change, in a process of its own."""
    if os.fork() == 0:
        import pytest

        at_work()
        known = {row["test"] for row in rows(TRACED)}
        pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS], [Tracer(known)])
        os._exit(0)
    os.wait()


class Killer:
    """A pytest plugin: the test that noticed a change."""

    def __init__(self, order: list[str]) -> None:
        self.rank = {test: rank for rank, test in enumerate(order)}
        self.by = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Only the tests asked for, in their order."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self.rank),
            key=lambda item: self.rank[item.nodeid],
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember what failed first."""
        if report.failed and not self.by:
            self.by = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        """A module that cannot be imported any more has noticed it as well."""
        if report.failed and not self.by:
            self.by = report.nodeid or "collection"


def tests_for(change: dict[str, Any], traced: list[dict[str, Any]]) -> list[str]:
    """The cheapest tests that reach a change, then the cheapest of its room; goldens come last."""
    wanted = f"{change['path']}:{change['definition']}"
    room = f"tests/{change['path'].split('/')[2]}/"

    def rank(row: dict[str, Any]) -> tuple[bool, bool, bool, float]:
        reaches = any(
            name == wanted or name.startswith(f"{wanted}.<locals>") for name in row["called"]
        )
        golden = row["test"].startswith("tests/test_golden")
        return (not reaches, golden, not row["test"].startswith(room), row["seconds"])

    chosen, spent = [], 0.0
    for row in sorted((row for row in traced if row["used"]), key=rank):
        if rank(row)[0] and not row["test"].startswith((room, "tests/test_golden")):
            continue
        spent += row["seconds"] + 0.01
        if spent > ALL_TESTS:
            break
        chosen.append(row["test"])
    return chosen


def attempt(change: dict[str, Any], tests: list[str]) -> dict[str, Any]:
    """Make a change, run tests until one fails, and undo it."""
    path = TREE / change["path"]
    text = path.read_text(encoding="utf-8")
    first = change["offset"]
    last = first + len(change["old"])
    if text[first:last] != change["old"]:
        raise SystemExit(f"{path} is not what the changes were chosen for; remove {KEPT}")
    reading, writing = os.pipe()
    began = time.monotonic()
    try:
        path.write_text(text[:first] + change["new"] + text[last:], encoding="utf-8")
        child = os.fork()
        if child == 0:
            test_in_child(tests, writing)
        os.close(writing)
        threading.Timer(900.0, _end, [child]).start()
        _, status, used = os.wait4(child, 0)
    finally:
        path.write_text(text, encoding="utf-8")
    with os.fdopen(reading) as file:
        answer = file.read()
    by = answer.strip() or "out of time"
    return {
        "number": change["number"],
        "noticed": by != "nothing",
        "by": by,
        "tests": len(tests),
        "seconds": round(used.ru_utime + used.ru_stime, 1),
        "wall": round(time.monotonic() - began, 1),
    }


def _end(child: int) -> None:
    """Stop a child that does not end: a change can make a loop endless without using time."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_in_child(tests: list[str], writing: int) -> None:
    """Run tests against the copy as it is now; the answer goes into the pipe."""
    import pytest

    os.setsid()
    at_work()
    limit = int(4 * ALL_TESTS)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    plugin = Killer(tests)
    files = sorted({test.split("::")[0] for test in tests})
    answer = "crash"
    try:
        code = pytest.main(
            ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *files], [plugin]
        )
        answer = plugin.by or ("nothing" if code == 0 else f"exit {int(code)}")
    finally:
        os.write(writing, answer.encode())
        os._exit(0)


def preload() -> None:
    """Import what every child needs and no change touches."""
    import cryptography.hazmat.primitives.ciphers.aead
    import hypothesis
    import mpmath
    import msgspec
    import numpy as np
    import pytest
    import rich
    import scipy.integrate
    import scipy.optimize
    import scipy.signal
    import scipy.special
    import scipy.stats

    assert all((cryptography, hypothesis, mpmath, msgspec, np, pytest, rich, scipy))
    assert "rillet" not in sys.modules


def run(numbers: set[int]) -> None:
    """Try every change that has not been tried; those asked for by number once more."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    preload()
    trace()
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(TREE)], check=False)
    traced = list(rows(TRACED))
    done = {row["number"] for row in rows(RESULTS)} - numbers
    for change in rows(CHOSEN):
        if change["number"] in done or (numbers and change["number"] not in numbers):
            continue
        for cached in (TREE / change["path"]).parent.glob(f"__pycache__/{Path(change['path']).stem}.*"):
            cached.unlink()
        row = attempt(change, tests_for(change, traced))
        keep(RESULTS, row)
        print(f"{change['number']:4d} {row['by'][:60]:60s} {row['seconds']:6.1f} s  {change['is'][:60]}", flush=True)


# --- reporting -----------------------------------------------------------------------------------


def interval(noticed: int, tried: int) -> tuple[float, float]:
    """The exact 95 % interval of a share (Clopper and Pearson)."""
    from scipy.special import betaincinv

    lower = 0.0 if noticed == 0 else float(betaincinv(noticed, tried - noticed + 1, 0.025))
    upper = 1.0 if noticed == tried else float(betaincinv(noticed + 1, tried - noticed, 0.975))
    return lower, upper


def report() -> None:
    """Write the page."""
    chosen = {row["number"]: row for row in rows(CHOSEN)}
    latest = {row["number"]: row for row in rows(RESULTS)}
    reasons = {entry["number"]: entry for entry in tomllib.loads(REASONS.read_text()).get("survivor", [])}
    for number, row in sorted(latest.items()):
        if not row["noticed"]:
            change = chosen[number]
            print(number, change["path"], change["line"], change["definition"])
            print("   -", change["was"])
            print("   +", change["is"], "|", reasons.get(number, {}).get("reason", "?"))
    noticed = sum(row["noticed"] for row in latest.values())
    print(noticed, len(latest), interval(noticed, len(latest)))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("step", choices=["choose", "run", "report"])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--again", type=int, nargs="*", default=[], help="numbers to try once more")
    told = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    if told.step == "choose":
        choose(told.count, told.seed)
    elif told.step == "run":
        run(set(told.again))
    else:
        report()


if __name__ == "__main__":
    main()
