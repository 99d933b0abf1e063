"""Rules of the house that no other tool checks."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rillet

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rillet"
MODULES = sorted(SOURCE.rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_there_is_something_to_check():
    assert {"noise/secret.py", "gather/grid.py", "step.py"} <= {name(path) for path in MODULES}


# --- Randomness -------------------------------------------------------------------------------
# One module draws what a release depends on. Simulations and made-up data may use NumPy's
# generators, and have rooms of their own, where nothing is released.

MAY_DRAW_SECRETS = {"noise/secret.py"}
MAY_SIMULATE = ("datasets.py", "reproduce/", "testing/")

SECRET_MODULES = {"secrets", "random"}
SECRET_CALLS = {"urandom", "getrandom", "uuid4", "generate_key", "SystemRandom"}
SIMULATION_CALLS = {"default_rng", "RandomState", "rvs"}


def randomness(code: str) -> set[tuple[str, int]]:
    """Where a module draws randomness: ("secret" or "simulation", line)."""
    found: set[tuple[str, int]] = set()
    for node in ast.walk(ast.parse(code)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            names = [f"{owner}.{node.attr}"]
        elif isinstance(node, ast.Name):
            names = [node.id]
        for dotted in names:
            first, last = dotted.split(".")[0], dotted.split(".")[-1]
            line = getattr(node, "lineno", 0)
            imported = isinstance(node, (ast.Import, ast.ImportFrom))
            if re.match(r"(numpy|np)\.random\b", dotted) or last in SIMULATION_CALLS:
                found.add(("simulation", line))
            elif (imported and first in SECRET_MODULES) or last in SECRET_CALLS:
                found.add(("secret", line))
            elif dotted in ("mpmath.rand", "mpmath.randmatrix"):
                found.add(("simulation", line))
    return found


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_randomness_comes_from_one_place(path):
    drawn = randomness(path.read_text(encoding="utf-8"))
    if name(path) in MAY_DRAW_SECRETS:
        drawn = {place for place in drawn if place[0] != "secret"}
    if name(path).startswith(MAY_SIMULATE):
        drawn = {place for place in drawn if place[0] != "simulation"}
    assert not drawn, f"{name(path)} draws randomness (kind, line): {sorted(drawn)}"


@pytest.mark.parametrize(
    "code",
    [
        "import secrets",
        "import random",
        "from random import gauss",
        "from secrets import token_bytes as t",
        "import os\nos.urandom(8)",
        "from os import urandom",
        "import numpy.random",
        "from numpy import random",
        "from numpy.random import default_rng",
        "import numpy as np\nnp.random.default_rng()",
        "import numpy as np\nnp.random.laplace()",
        "from scipy import stats\nstats.norm.rvs()",
        "import mpmath\nmpmath.rand()",
        "def f():\n    import random",
        "AESGCM.generate_key(256)",
    ],
)
def test_the_search_for_randomness_finds_it(code):
    assert randomness(code)


def test_the_search_for_randomness_does_not_cry_wolf():
    assert not randomness(
        "import numpy as np\nfrom rillet.noise import Secret\nx = np.sort([1])\nSecret.generate()\n"
        "randomness = 'import random'\n"
    )


# --- Imports ----------------------------------------------------------------------------------


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-logo", "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=tree,
        env={"PYTHONPATH": str(tree), "PATH": str(program.parent), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("line", ["import rillet.gather.grid", "from rillet.streams import Stream"])
@pytest.mark.parametrize("room", ["sink", "web"])
def test_what_shows_results_cannot_import_what_touches_raw_data(tmp_path, room, line):
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCE, tmp_path / "rillet", ignore=ignore)
    folder = tmp_path / "rillet" / room
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    (folder / "curious.py").write_text(line + "\n", encoding="utf-8")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"rillet.{room}" in done.stdout
    assert "BROKEN" in done.stdout


OPTIONAL = ("EnergyData", "matplotlib", "numba", "pandas", "paho", "psycopg", "pyarrow")


def test_public_names_need_no_extra():
    code = "import sys; from rillet import *; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"numpy", "scipy", "rillet"} <= loaded
    assert not loaded & set(OPTIONAL)


def test_a_start_waits_for_no_slow_part_of_scipy():
    """They take as long as all the rest, and are loaded where they are needed."""
    code = "import sys, rillet.cli.run, rillet.engine.service; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "scipy.special" in loaded
    assert not loaded & {"scipy.optimize", "scipy.signal", "scipy.stats"}


def test_every_public_name_has_a_home():
    assert set(rillet._HOMES) == set(rillet.__all__) - {"__version__"}
    assert set(rillet.__all__) <= set(dir(rillet))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = rillet.Nonsense


# --- Words ------------------------------------------------------------------------------------
# Spelled in two halves, so that this list does not find itself.

UNWANTED = [a + b for a, b in [("Chat", "GPT"), ("/wo", "rk/"), ("/ro", "ot/"), ("TODO", ":")]]
FOLDERS = ("src", "tests", "docs", "benchmarks", ".ci")


def test_the_project_speaks_of_itself_alone():
    files = [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".yml", ".txt")]
    for folder in FOLDERS:
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    readable = [
        path for path in files if "__pycache__" not in path.parts and "results" not in path.parts
    ]
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in readable
        for word in UNWANTED
        if word in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []


def test_the_version_is_said_once():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == rillet.__version__


def test_making_a_plan_loads_nothing_that_reads_or_writes():
    """Sources, sinks, the engine, encryption of connections and plots come when they are used."""
    code = (
        "import sys, rillet\n"
        "rillet.Plan(epsilon=1.0, delta=1e-6, upper=9.0, length=10_000)\n"
        "print(*sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "rillet.plan.plan" in found
    heavy = ("ssl", "sqlite3", "matplotlib", "paho", "psycopg", "pyarrow", "pandas")
    rooms = ("rillet.source", "rillet.sink", "rillet.engine", "rillet.cli", "rillet.reproduce")
    assert [name for name in found if name.split(".")[0] in heavy or name.startswith(rooms)] == []
