"""The wheel and the sdist are complete, clean, and work away from the source tree."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]

# Built and installed once, by whichever process gets these tests.
pytestmark = pytest.mark.xdist_group("packaging")


def run(*command: str | Path, cwd: Path) -> str:
    # Nothing of the environment may help the installed package to be found.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """The bin folder of a fresh environment with the wheel, outside the source tree.

    What rillet depends on is borrowed from this environment by a .pth file; the .pth files of the
    borrowed folder, among them the one of an editable rillet, have no effect there.
    """
    folder = tmp_path_factory.mktemp("elsewhere") / "env"
    assert ROOT not in folder.parents
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet"),
        *("--no-deps", "--no-index", wheel),
        cwd=folder,
    )
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(run(python, "-c", ask, cwd=folder).strip())
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n", encoding="utf-8")
    return python.parent


def names_in_wheel(folder: Path) -> set[str]:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def names_in_sdist(folder: Path) -> set[str]:
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        return {
            str(PurePosixPath(*PurePosixPath(member.name).parts[1:]))
            for member in archive.getmembers()
        }


def modules_in_tree() -> set[str]:
    source = ROOT / "src"
    return {path.relative_to(source).as_posix() for path in source.rglob("*.py")}


def test_the_wheel_holds_the_package_and_nothing_else(built):
    names = names_in_wheel(built)
    assert "rillet/py.typed" in names
    assert modules_in_tree() <= names
    assert {name.split("/")[0] for name in names} == {"rillet", "rillet-0.1.0.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_holds_tests_and_documentation_and_no_junk(built):
    names = names_in_sdist(built)
    expected = {
        "LICENSE",
        "Makefile",
        "README.md",
        "constraints.txt",
        "zensical.toml",
        "pyproject.toml",
        ".ci/run",
        "docs/threat-model.md",
        "docs/proofs/index.md",
        "tests/conftest.py",
        "tests/test_packaging.py",
        "benchmarks/run.py",
        "src/rillet/py.typed",
    }
    assert expected <= names
    junk = ("__pycache__", ".pyc", ".venv", ".git/", "site/", ".hypothesis", "results/", ".db")
    assert [name for name in names if any(part in name for part in junk)] == []


CHECK = """
import sys
from pathlib import Path
import rillet
where = Path(rillet.__file__)
assert where.is_relative_to(sys.prefix), where
assert where.with_name("py.typed").is_file()
tree = Path(sys.argv[1])
inside = [entry for entry in sys.path if Path(entry).is_relative_to(tree / "src")]
assert not inside, inside
plan = rillet.Plan.baseline(epsilon=1.0, upper=3000.0, length=8)
stream = plan.open()
for value in (1.0, 20.0, 300.0):
    release = stream.update(value)
assert release.t == 3 and release.noise_std > 0
assert plan.resume(stream.snapshot(), secret=stream.secret).latest() == release
print(rillet.__version__)
"""


def test_the_wheel_works_outside_the_tree(installed, tmp_path):
    assert run(installed / "python", "-c", CHECK, ROOT, cwd=tmp_path).strip() == "0.1.0"


def test_the_command_answers_for_help(installed, tmp_path):
    assert "rillet" in run(installed / "rillet", "--help", cwd=tmp_path)
