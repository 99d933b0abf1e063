"""An audit of everything: all mechanisms, and all that are broken on purpose.

**Privacy.** For audits, on made-up streams with fresh secrets.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from rillet.audit.auditor import FAMILY_ALPHA, FULL, QUICK, Report, audit, finite
from rillet.audit.broken import BROKEN, Broken, catch
from rillet.audit.mechanisms import SUBJECTS, Subject

__all__ = ["Caught", "Family", "audit_all", "audit_one"]

#: Fresh secrets with which each broken mechanism must be caught.
SECRETS: Final = 20
_SECRETS_QUICK: Final = 1


class Table(NamedTuple):
    """Rows for people."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Caught:
    """A broken mechanism: with how many secrets it was caught, how, and what ε was measured."""

    name: str
    mistake: str
    caught: int
    secrets: int
    how: str
    measured: float | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain fields, for JSON."""
        return {name: finite(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Family:
    """All findings of one audit; together they are wrong with chance ``alpha`` at most."""

    reports: tuple[Report, ...]
    broken: tuple[Caught, ...]
    quick: bool
    alpha: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every mechanism keeps its promise and every broken one was caught."""
        kept = all(report.passed for report in self.reports)
        return kept and all(each.caught == each.secrets for each in self.broken)

    @property
    def processor_seconds(self) -> float:
        """Processor time of all audits together."""
        audits = (each.seconds for each in self.reports)
        return sum(audits) + sum(each.seconds for each in self.broken)

    @property
    def summary(self) -> str:
        """In one line."""
        kept = sum(report.passed for report in self.reports)
        text = f"{kept} of {len(self.reports)} mechanisms keep their promise"
        if self.broken:
            caught = sum(each.caught == each.secrets for each in self.broken)
            text += f"; {caught} of {len(self.broken)} broken ones caught with each of "
            text += f"{self.broken[0].secrets} secrets"
        text += f"; confidence {1 - self.alpha:.0%} for all together; "
        return text + f"{self.processor_seconds:.0f} s of processor time"

    def to_dict(self) -> dict[str, Any]:
        """Plain fields, for JSON."""
        return {
            "passed": self.passed,
            "quick": self.quick,
            "alpha": self.alpha,
            "seconds": round(self.seconds, 1),
            "processor_seconds": round(self.processor_seconds, 1),
            "mechanisms": [report.to_dict() for report in self.reports],
            "broken": [each.to_dict() for each in self.broken],
        }

    def markdown(self) -> str:
        """The tables, as pages of documentation have them."""
        lines: list[str] = []
        for _, head, rows in self.tables():
            lines += ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]
            lines.append("")
        return "\n".join(lines)

    def tables(self) -> Iterator[Table]:
        """What to print."""
        head = ("mechanism", "claimed ε", "δ", "most exposed", "trials show", "black box", "runs")
        yield Table(
            "What is claimed, and what is measured: ε",
            head,
            [
                (
                    f"{'✓' if report.passed else '✗'} {report.name}",
                    f"{report.claimed:g}",
                    f"{report.delta:.1g}",
                    _number(report.exact),
                    _number(report.bound),
                    _number(report.black_box),
                    f"{report.trials:,}" if report.trials else "",
                )
                for report in self.reports
            ],
        )
        if self.broken:
            yield Table(
                "Broken on purpose",
                ("mistake", "caught", "by", "ε ≥"),
                [
                    (
                        each.mistake,
                        f"{each.caught} of {each.secrets}",
                        each.how,
                        _number(each.measured),
                    )
                    for each in self.broken
                ],
            )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 100 else "∞"


def audit_one(subject: Subject, *, quick: bool = False) -> Family:
    """Audit one mechanism, or a user's plan."""
    began = time.perf_counter()
    report = audit(subject, QUICK if quick else FULL, alpha=FAMILY_ALPHA)
    return Family((report,), (), quick, FAMILY_ALPHA, time.perf_counter() - began)


def audit_all(
    *,
    quick: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    processes: int = 1,
    names: Sequence[str] = tuple(SUBJECTS),
) -> Family:
    """Audit every mechanism, and catch every one that is broken.

    ``tell`` is called with a few words as each of them is done; ``processes`` run side by side.
    """
    began = time.perf_counter()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        mechanisms = [pool.submit(_audited, name, quick) for name in names]
        broken = [pool.submit(_caught, number, quick) for number in range(len(BROKEN))]
        reports = []
        for pending in mechanisms:
            reports.append(pending.result())
            tell(f"{reports[-1].name}: {'passed' if reports[-1].passed else reports[-1].found}")
        found = []
        for each in broken:
            found.append(each.result())
            tell(f"{found[-1].name}: caught with {found[-1].caught} of {found[-1].secrets} secrets")
    return Family(tuple(reports), tuple(found), quick, FAMILY_ALPHA, time.perf_counter() - began)


def _audited(name: str, quick: bool) -> Report:
    return audit(SUBJECTS[name], QUICK if quick else FULL, alpha=FAMILY_ALPHA / len(SUBJECTS))


def _caught(number: int, quick: bool) -> Caught:
    """Try to catch a broken mechanism, each time with fresh secrets."""
    return caught_of(BROKEN[number], _SECRETS_QUICK if quick else SECRETS)


def caught_of(broken: Broken, secrets: int) -> Caught:
    """With how many secrets a broken mechanism is caught, and by which check."""
    began, alpha = time.process_time(), FAMILY_ALPHA / len(BROKEN) / secrets
    reports = [catch(broken, alpha=alpha) for _ in range(secrets)]
    found = [report for report in reports if not report.passed]
    how, measured = "", None
    if found:
        how = next(check.name for check in found[0].checks if not check.passed)
        shown = [found[0].exact, found[0].bound, found[0].black_box]
        beyond = [each for each in shown if each is not None and each > found[0].claimed]
        measured = max(beyond, default=None)
    seconds = time.process_time() - began
    return Caught(broken.name, broken.mistake, len(found), secrets, how, measured, seconds)
