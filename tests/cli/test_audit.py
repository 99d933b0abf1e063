"""``rillet audit``."""

from __future__ import annotations

import json

import pytest

from rillet import BinaryTree, Plan
from rillet.cli import main


def test_one_mechanism(tmp_path, capsys):
    page, table = tmp_path / "audit.html", tmp_path / "audit.md"
    files = ["--html", str(page), "--markdown", str(table)]
    assert main(["audit", "independent", "--quick", *files]) == 0
    out = capsys.readouterr().out
    assert "✓ independent" in out
    assert "1 of 1 mechanisms keep their promise" in out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert table.read_text(encoding="utf-8").startswith("| mechanism | claimed ε |")


def test_a_plan_of_ones_own_as_json(tmp_path, capsys):
    path = tmp_path / "plan.json"
    plan = Plan(epsilon=0.5, upper=9.0, length=40, lag=0, strategy=BinaryTree())
    path.write_text(plan.to_json(), encoding="utf-8")
    assert main(["audit", str(path), "--quick", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    (report,) = found["mechanisms"]
    assert found["passed"]
    assert report["claimed"] == 0.5
    assert report["exact"] == pytest.approx(0.5)
    assert 0 < report["bound"] <= 0.5


def test_what_is_wrong_ends_with_three(capsys, monkeypatch):
    own = BinaryTree.sensitivity
    monkeypatch.setattr(BinaryTree, "sensitivity", lambda s, n, k: own(s, n - 1, k))
    assert main(["audit", "binary-tree", "--quick"]) == 3
    assert "✗ exposure: inf added in tick 1: ε = 1.5000" in capsys.readouterr().out


def test_names(capsys):
    assert main(["audit", "list"]) == 0
    assert "binary-tree" in capsys.readouterr().out
    assert main(["audit", "no-such"]) == 2
    assert "expected all, list, a file PLAN.json or one of binary-tree" in capsys.readouterr().err
