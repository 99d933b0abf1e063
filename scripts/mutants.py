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
import gc
import importlib
import inspect
import json
import math
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
from functools import _lru_cache_wrapper as lru
from pathlib import Path
from types import CodeType, FrameType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "mutants"
TREE = KEPT / "tree"
CHOSEN = KEPT / "chosen.jsonl"
TRACED = KEPT / "traced.jsonl"
RESULTS = KEPT / "results.jsonl"
SOURCE = KEPT / "source"
PAGE = ROOT / "docs" / "mutants.md"
REASONS = ROOT / "scripts" / "mutants.toml"

ROOMS = ("noise", "gather", "strategy", "threshold", "statistic", "privacy")
# Where tests of these rooms live; those of jobs, sinks, sources and pages cost too much for each.
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
LONGEST_TEST = 1.5
ALL_TESTS = 15.0
# The same where long tests are tried too, on what the others have not noticed.
WITH_LONG_TESTS = 35.0
# The same for tests that are named.
NAMED_TESTS = 300.0
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


def renew_tests() -> None:
    """Copy tests that are new or have changed, beside the source that was kept.

    What a file had before has not noticed what is tried again, and may need a newer source: only
    what is new in it is traced and used.
    """
    changed = set()
    for new in (ROOT / "tests").rglob("*"):
        old = TREE / new.relative_to(ROOT)
        if new.is_dir() or "__pycache__" in new.parts:
            continue
        if not old.exists() or old.read_bytes() != new.read_bytes():
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(new, old)
            changed.add(new.relative_to(ROOT).as_posix())
    kept = [
        row | {"used": False, "called": ["changed"]}
        if row["test"].split("::")[0] in changed
        else row
        for row in rows(TRACED)
    ]
    TRACED.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


def prepare_tree() -> None:
    """Copy what tests need, once, so that nobody else sees a changed source."""
    if not TREE.exists():
        for name in ("src", "tests", "pyproject.toml", "docs", "examples", "benchmarks", "scripts"):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, TREE / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, TREE / name)
        shutil.copytree(TREE / "src", SOURCE)


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
        elif (isinstance(node, ast.arg) and node.annotation) or isinstance(node, ast.AnnAssign):
            stretches.append(node.annotation)
        elif isinstance(node, ast.Raise | ast.Assert):
            stretches.append(node)
        elif isinstance(node, ast.If):
            stretches += [node] if "TYPE_CHECKING" in ast.unparse(node.test) else []
        elif isinstance(node, ast.Expr):
            stretches += [node] if isinstance(node.value, ast.Constant) else []
    return [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))  # type: ignore[attr-defined]
        for node in stretches
    ]


def definition(module: ast.Module, line: int) -> tuple[str, bool]:
    """The qualified name of the innermost function around a line, and whether it is in the body.

    Outside of all functions the name is empty.
    """
    found, within = "", False

    def visit(node: ast.AST, prefix: str) -> None:
        nonlocal found, within
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
                        # A header inside of another function is made anew with that one.
                        found = name
                        within = "<locals>" in name or line >= child.body[0].lineno
            visit(child, inner)

    visit(module, "")
    return found, within


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
        places = [place for node in nodes for place in operator.mutation_positions(node)]
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

    def alike(one: str, other: str) -> int:
        pairs = enumerate(zip(one, other, strict=False))
        return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))

    first = alike(before, after)
    rest = alike(before[first:][::-1], after[first:][::-1])
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
        name, inside = definition(ast.parse(text), change["line"])
        line = text.splitlines()[change["line"] - 1].strip()
        begin = text.rfind("\n", 0, offset) + 1
        end = text.find("\n", offset + len(old))
        changed = (text[begin:offset] + new + text[offset + len(old) : end]).strip()
        keep(
            CHOSEN,
            change
            | {
                "number": made,
                "places": len(places),
                "definition": name,
                "inside": inside,
                "offset": offset,
                "old": old,
                "new": new,
                "was": line,
                "is": changed,
            },
        )
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
# One process collects all tests, and forks for each change. Most changes are inside of a function:
# there the child gives the function that is loaded its changed code. The others, and all that were
# not noticed so, are tried in a new process that imports the changed file.


def at_work() -> None:
    """Make this process one that tests the copy."""
    os.chdir(TREE)
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(TREE / "src")]
    os.environ |= {
        "PYTHONPATH": f"{TREE / 'src'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def with_change(change: dict[str, Any]) -> str:
    """The text of a module with a change."""
    text = (SOURCE / Path(change["path"]).relative_to("src")).read_text(encoding="utf-8")
    first = change["offset"]
    last = first + len(change["old"])
    assert text[first:last] == change["old"]
    return text[:first] + change["new"] + text[last:]


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and all that are inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def functions(thing: object) -> Iterator[FunctionType]:
    """The functions behind a descriptor, a decorator or a cache."""
    if isinstance(thing, FunctionType):
        yield thing
    for name in ("fget", "fset", "__func__", "func", "__wrapped__"):
        inner = inspect.getattr_static(thing, name, None)
        if isinstance(inner, MemberDescriptorType | GetSetDescriptorType):
            inner = getattr(thing, name, None)
        if inner is not None and not isinstance(inner, str):
            yield from functions(inner)


def swapped(change: dict[str, Any]) -> bool:
    """Give the function that a change is in its changed code; False where that is not possible."""
    names = change["definition"].split(".<locals>")[0].split(".")
    home = change["path"].removeprefix("src/").removesuffix(".py").replace("/", ".")
    thing: Any = sys.modules.get(home)
    if not change["inside"] or home.endswith("kernels") or thing is None:
        return False
    for name in names:
        thing = inspect.getattr_static(thing, name)
    made = compile(with_change(change), str(TREE / change["path"]), "exec")
    for function in functions(thing):
        old = function.__code__
        for new in codes(made):
            same = (new.co_qualname, new.co_firstlineno, new.co_freevars)
            if same == (old.co_qualname, old.co_firstlineno, old.co_freevars):
                function.__code__ = new
                for other in gc.get_objects():
                    if type(other) is lru and str(other.__module__).startswith("rillet"):
                        other.cache_clear()
                return True
    return False


def runs(items: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Run tests one after the other."""
    from _pytest.runner import runtestprotocol

    for item, following in zip(items, [*items[1:], None], strict=True):
        yield item, runtestprotocol(item, log=False, nextitem=following)


def trace(items: list[Any]) -> None:
    """Which functions of the rooms each test calls, and what it costs.

    In a process of its own, which a test that takes too long ends; the next one goes on after it.
    """
    while True:
        known = {row["test"] for row in rows(TRACED)}
        left = [item for item in items if item.nodeid not in known]
        if not left:
            return
        child = os.fork()
        if child == 0:
            _trace(left)
        _, status = os.waitpid(child, 0)
        if status:
            done = {row["test"] for row in rows(TRACED)}
            ended = next(item.nodeid for item in left if item.nodeid not in done)
            row = {"test": ended, "seconds": LONGEST_TEST, "used": False, "called": []}
            keep(TRACED, row)


def _trace(items: list[Any]) -> NoReturn:
    """Run tests one after the other and keep what each of them calls."""
    called: set[str] = set()
    started = 0.0
    prefix = str(TREE / "src" / "rillet")

    def note(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(prefix):
            called.add(f"{code.co_filename.removeprefix(str(TREE) + '/')}:{code.co_qualname}")

    def begin() -> None:
        nonlocal started
        called.clear()
        started = time.process_time()
        # The signal ends the process: an exception in its place may hit the machinery of pytest.
        signal.setitimer(signal.ITIMER_PROF, LONGEST_TEST)
        sys.settrace(note)

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    begin()
    for item, reports in runs(items):
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        spent = time.process_time() - started
        passed = all(report.passed for report in reports)
        row = {"test": item.nodeid, "seconds": round(spent, 3), "used": passed}
        keep(TRACED, row | {"called": sorted(called)})
        begin()
    os._exit(0)


def tests_for(change: dict[str, Any], traced: list[dict[str, Any]]) -> list[str]:
    """The cheapest tests that reach a change, then the cheapest of its room; goldens come last."""
    wanted = f"{change['path']}:{change['definition']}"
    room = f"tests/{change['path'].split('/')[2]}/"

    def rank(row: dict[str, Any]) -> tuple[bool, bool, bool, float]:
        # Outside of all functions: whatever calls one of the module.
        inner = f"{wanted}.<locals>" if change["definition"] else wanted
        reaches = any(name == wanted or name.startswith(inner) for name in row["called"])
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
    if not chosen:
        raise RuntimeError(f"expected tests for {wanted}, found none that may be used")
    return chosen


def long_tests_for(change: dict[str, Any], traced: list[dict[str, Any]]) -> list[str]:
    """Tests that take too long for each change: of the module, of its room, and goldens.

    One of each function first, those of the module's own file before others, then the quick ones.
    """
    room, stem = change["path"].split("/")[2], Path(change["path"]).stem
    folder = Path(change["path"]).parent.name
    names = (stem.lstrip("_"), folder)
    ranked, times = [], collections.Counter[str]()
    for row in traced:
        file, _, test = row["test"].partition("::")
        if row["used"] or row["called"] or not file.startswith((f"tests/{room}/", "tests/test_")):
            continue
        function = f"{file}::{test.partition('[')[0]}"
        own = Path(file).stem.removeprefix("test_") in names
        ranked.append((times[function], not own, "golden" not in file, row["test"]))
        times[function] += 1
    ranked.sort(key=lambda rank: rank[:3])
    first = [test for number, *_, test in ranked if number == 0]
    return [*first, *tests_for(change, traced), *(test for number, *_, test in ranked if number)]


def attempt(change: dict[str, Any], items: list[Any]) -> dict[str, Any] | None:
    """Run tests with a change until one fails; None where a new process must do it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        limit = int(4 * ALL_TESTS)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        by = "crash"
        try:
            by = "new process" if not swapped(change) else noticed(items)
        finally:
            os.write(writing, by.encode())
            os._exit(0)
    os.close(writing)
    timer = threading.Timer(1800.0, _end, [child])
    timer.start()
    _, _, used = os.wait4(child, 0)
    timer.cancel()
    with os.fdopen(reading) as file:
        by = file.read() or "out of time"
    if by == "new process":
        return None
    seconds = used.ru_utime + used.ru_stime
    return found(change, by, len(items), seconds, new=False)


def found(
    change: dict[str, Any], by: str, tests: int, spent: float, *, new: bool
) -> dict[str, Any]:
    """What is kept of one attempt."""
    row = {"number": change["number"], "by": by, "tests": tests, "seconds": round(spent, 1)}
    return row | {"new process": new}


def noticed(items: list[Any], most: float = math.inf) -> str:
    """The test that fails, or "nothing" where none does in so many seconds."""
    begun = time.process_time()
    for item, reports in runs(items):
        if any(report.failed for report in reports):
            return str(item.nodeid)
        if time.process_time() - begun > most:
            break
    return "nothing"


def in_new_process(
    change: dict[str, Any], tests: list[str], most: float = WITH_LONG_TESTS
) -> dict[str, Any]:
    """The same with the changed file in the copy, imported by a process of its own."""
    path = TREE / change["path"]
    files = sorted({test.split("::")[0] for test in tests})
    asked = KEPT / "asked.json"
    asked.write_text(json.dumps({"tests": tests, "most": most}))
    limit = int(4 * most) + 60
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        path.write_text(with_change(change), encoding="utf-8")
        command = [sys.executable, str(Path(__file__)), "one", *files]
        ended = subprocess.run(
            ["/bin/sh", "-c", f'ulimit -t {limit}; exec "$@"', "sh", *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=TREE,
            timeout=3600,
        )
    finally:
        shutil.copy(SOURCE / Path(change["path"]).relative_to("src"), path)
    answer = [line for line in ended.stdout.splitlines() if line.startswith("noticed by ")]
    by = answer[-1].removeprefix("noticed by ") if answer else "import or out of time"
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = spent.ru_utime + spent.ru_stime - begun.ru_utime - begun.ru_stime
    return found(change, by, len(tests), seconds, new=True)


def _end(child: int) -> None:
    """Stop a child that waits for ever."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return


class One:
    """A pytest plugin for one change in a new process: the tests asked for, in their order."""

    def pytest_runtestloop(self, session: Any) -> bool:
        """Say which test noticed it."""
        asked = json.loads((KEPT / "asked.json").read_text())
        items = {item.nodeid: item for item in session.items}
        chosen = [items[test] for test in asked["tests"] if test in items]
        by = "collection" if session.testsfailed else noticed(chosen, asked["most"])
        print("\nnoticed by", by, flush=True)
        return True


class All:
    """A pytest plugin that tries the changes in place of running the tests."""

    def __init__(self, again: set[int], *, named: bool = False) -> None:
        self.again, self.named = again, named

    def pytest_runtestloop(self, session: Any) -> bool:
        """Try every change that has not been tried, and those asked for by number once more.

        First all by quick tests, with their code swapped where that is possible.  Then those that
        were not noticed so by long tests too, in a new process, as what was made when the module
        was imported is the old one otherwise.
        """
        items = {item.nodeid: item for item in session.items}
        if self.named:
            for change in [*rows(CHOSEN), *controls()]:
                if change["number"] in self.again:
                    self.kept(in_new_process(change, list(items), NAMED_TESTS), change)
            return True
        trace(list(items.values()))
        traced = [row for row in rows(TRACED) if row["test"] in items]
        changes = {row["number"]: row for row in [*rows(CHOSEN), *controls()]}
        latest = {} if self.again else {row["number"]: row for row in rows(RESULTS)}
        for number in self.again or changes:
            if number not in latest:
                tests = tests_for(changes[number], traced)
                row = attempt(changes[number], [items[test] for test in tests])
                if row is None or row["by"] == "crash":
                    row = in_new_process(changes[number], tests)
                latest[number] = self.kept(row, changes[number])
        for number, row in latest.items():
            if not row["noticed"] and not row.get("long"):
                tests = long_tests_for(changes[number], traced)
                again = in_new_process(changes[number], tests) | {"long": True}
                self.kept(again, changes[number])
        return True

    def kept(self, row: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
        """Keep what was found, and show it."""
        row |= {"noticed": row["by"] != "nothing", "again": bool(self.again)}
        keep(RESULTS, row)
        shown = f"{change['number']:4d} {row['by'][-70:]:70s} {row['seconds']:6.1f} s"
        print(f"{shown}  {change['is'][:60]}", flush=True)
        return row


def controls() -> Iterator[dict[str, Any]]:
    """Of each room the first change without what it changes, which no test may notice; and broken.

    A function that divides by zero and a module that cannot be imported must be noticed.
    """
    seen: set[str] = set()
    for change in rows(CHOSEN):
        room = change["path"].split("/")[2]
        if room in seen or not change["inside"]:
            continue
        seen.add(room)
        number = -1 - ROOMS.index(room)
        yield change | {"number": number, "new": change["old"], "is": f"nothing, {room}"}
        text = (SOURCE / Path(change["path"]).relative_to("src")).read_text(encoding="utf-8")
        offset = text.find(change["was"])
        broken = change | {"offset": offset, "old": "", "new": "1 / 0; ", "is": "division by zero"}
        if text.count(change["was"]) == 1 and not change["was"].startswith(("for", "if", "while")):
            yield broken | {"number": number - 10}
        yield broken | {"number": number - 20, "offset": 0, "inside": False, "is": "no import"}


def run(plugin: object, arguments: list[str]) -> None:
    """Collect tests of the copy and hand them to a plugin."""
    import pytest

    at_work()
    # What rillet imports late, and takes long: once, not in each process that forks.
    for late in ("scipy.signal", "rillet.noise.kernels", "rillet.strategy.toeplitz.kernels"):
        importlib.import_module(late)
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments], [plugin]))


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
    first: dict[int, dict[str, Any]] = {}
    latest: dict[int, dict[str, Any]] = {}
    unchanged: dict[int, dict[str, Any]] = {}
    for row in rows(RESULTS):
        if row["number"] < 0:
            unchanged[row["number"]] = row
            continue
        if not row["again"]:
            first[row["number"]] = row
        latest[row["number"]] = row
    said = tomllib.loads(REASONS.read_text(encoding="utf-8"))["survivor"]
    reasons = {(entry["path"], entry["is"]): entry["reason"] for entry in said}
    numbers = {
        room: [n for n in first if room in ("all", chosen[n]["path"].split("/")[2])]
        for room in (*ROOMS, "all")
    }
    by = collections.Counter(
        "golden" if "test_golden" in row["by"] else row["by"] for row in first.values()
    )
    lines = [
        HEAD.format(
            wanted=len(chosen),
            tried=len(first),
            places=next(iter(chosen.values()))["places"],
            seed=SEED,
            longest=LONGEST_TEST,
            most=ALL_TESTS,
            long=WITH_LONG_TESTS,
            before=sum(not row["noticed"] for row in first.values()),
            untried=sum(not row["noticed"] and "long" not in row for row in first.values()),
            after=sum(not row["noticed"] for row in latest.values()),
            goldens=by["golden"],
            stopped=by["import or out of time"] + by["out of time"] + by["collection"],
            controls=sum(number > -10 for number in unchanged),
            alarms=sum(row["noticed"] for number, row in unchanged.items() if number > -10),
            broken=sum(number < -10 for number in unchanged),
            caught=sum(row["noticed"] for number, row in unchanged.items() if number < -10),
        ),
        f"| room | changes tried |{''.join(f' noticed {when} | {SHARE} |' for when in WHEN)}",
        "|---|---|---|---|---|---|",
    ]
    for room, own in numbers.items():
        if own:
            cells = [room, str(len(own))]
            for results in (first, latest):
                found = sum(results[number]["noticed"] for number in own)
                low, high = interval(found, len(own))
                cells += [str(found), f"{found / len(own):.1%} ({low:.1%} to {high:.1%})"]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Not noticed", "", "| where | was | is | why |", "|---|---|---|---|"]
    missed = [number for number, row in sorted(latest.items()) if not row["noticed"]]
    for number in missed:
        change = chosen[number]
        where = f"{change['path'].removeprefix('src/rillet/')}, {change['definition'] or 'module'}"
        texts = [f"`{change[name].replace('|', chr(92) + '|')}`" for name in ("was", "is")]
        reason = reasons.get((change["path"], change["is"]), "not yet looked at")
        lines.append(f"| {where} | {' | '.join(texts)} | {reason} |")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{PAGE}: {len(first) - len(missed)} of {len(first)} noticed")


WHEN = ("at first", "in the end")
SHARE = "share, 95 % interval"
HEAD = """# Mutants

Would the tests notice a mistake? `make mutants` changes the source of noise, gathering,
strategies, thresholds, statistics and charges at random places, one change at a time, made by the
operators of [cosmic-ray](https://cosmic-ray.readthedocs.io) (arithmetic, comparisons, `not`,
`and` and `or`, numbers by one, booleans, decorators, loops that do not run, `break`), and runs
quick tests until one of them fails. This page is written by that command (`scripts/mutants.py`).

**How it is drawn.** {wanted} of {places} places, without repetition, all alike (seed {seed}), and
at each one of the changes that are possible there. Not counted, and not drawn: annotations,
docstrings, arguments of errors and assertions, how an object prints, what only the type checker
reads; changes that leave the same program.

**How it is tried.** Each test was run once to see which functions it calls. For a change, those
that call its function come first, the cheapest at the front, then others of its room, releases
pinned by goldens last; tests over {longest:g} s are left out, and at most {most:g} s of tests are
run (processor time). What they have not noticed is tried once more in a new process with long
tests too, those of the module first, for {long:g} s. So a share here is less than what the whole
suite notices. A change that makes tests fail, break, or run out of time is noticed. The same was
done {controls} times with nothing changed, once for each room: {alarms} of these were noticed;
and {broken} times with a division by zero or a module that cannot be imported: {caught} were.

**Result.** {tried} changes were tried, and {before} were not noticed at first: of the others,
{goldens} by pinned releases alone, {stopped} because the module could not be imported or ran out of
time. {untried} of the {before} were tried by quick tests only, so the first share is rather too
low. Where it mattered a test was written, or a longer one that was there already was run, and the
change tried again against the same source;
{after} are left, listed below with the reason.

The intervals are exact (Clopper and Pearson). **Only the first share says something about changes
that were not drawn**: it is an unbiased estimate for all {places} places, taken before anybody had
looked at the survivors. The second is what is now known of these {tried}; its interval is stated
for comparison, and is no estimate for other changes, as the new tests were written for these.
"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("step", choices=["choose", "run", "one", "report"])
    parser.add_argument("files", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--tests", nargs="*", default=list(TESTS), help="try these alone, however long"
    )
    parser.add_argument("--again", type=int, nargs="*", default=[], help="numbers to try once more")
    told = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    if told.step == "choose":
        choose(told.count, told.seed)
    elif told.step == "run":
        # A run that was killed in the middle of a change has left it in the copy.
        shutil.copytree(SOURCE, TREE / "src", dirs_exist_ok=True)
        if told.again:
            renew_tests()
        named = told.tests != list(TESTS)
        run(All(set(told.again), named=named), told.tests)
    elif told.step == "one":
        run(One(), told.files)
    else:
        report()


if __name__ == "__main__":
    main()
