"""Kinds by name: rillet's own, those of other packages, and clear refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rillet.errors import ParameterError
from rillet.registry import Registry


@pytest.fixture
def registry() -> Registry:
    return Registry("a number", "rillet.numbers", {"pi": "math:pi"})


def distribution(folder: Path, name: str, entries: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rillet.numbers]\n{entries}\n")


def test_a_kind_of_another_package(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "golden", "phi = golden_numbers:phi\npi = golden_numbers:phi")
    (tmp_path / "golden_numbers.py").write_text("phi = 1.618\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.names() == ("pi", "phi")
    assert "golden_numbers" not in sys.modules
    assert registry.get("phi", "kind") == 1.618
    assert registry.get("pi", "kind") == pytest.approx(3.14159, abs=1e-4)  # rillet's own wins


def test_two_packages_with_one_name(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        distribution(tmp_path, name, f"e = {name}:e")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ParameterError, match=r"uninstall all but one of one:e, two:e"):
        registry.get("e", "kind")


@pytest.mark.parametrize("value", ["no_such_module_here:x", "math:no_such_name"])
def test_a_kind_that_cannot_be_imported(
    registry: Registry, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "broken", f"x = {value}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ParameterError, match=r"kind: expected a number that can be imported"):
        registry.get("x", "kind")


@pytest.mark.parametrize("name", ["tau", None, 3, ""])
def test_an_unknown_kind_lists_the_known_ones(registry: Registry, name: object) -> None:
    with registry.registered("e", 2.718), pytest.raises(ParameterError) as caught:
        registry.get(name, "number.kind")
    assert str(caught.value).startswith("number.kind: expected a number, one of pi, e, found ")


def test_registered_for_a_while(registry: Registry) -> None:
    with registry.registered("e", 2.718):
        assert registry.get("e", "kind") == 2.718
    assert registry.names() == ("pi",)
    with pytest.raises(ParameterError), registry.registered("pi", 3):
        raise AssertionError


def test_rillet_imports_neither_entry_points_nor_schemas() -> None:
    code = (
        "import sys, rillet\n"
        "print([name for name in ('msgspec', 'importlib.metadata') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
