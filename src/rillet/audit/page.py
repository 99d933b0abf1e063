"""The report for people: one page with everything inside, claimed against measured ε as a chart.

**Privacy.** Made from findings on made-up streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import Final

from rillet.audit.auditor import Report
from rillet.audit.family import Caught, Family

__all__ = ["page_of"]

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #667079; --line: #d8dde2;
  --tint: #f5f7f9; --paper: #fff; --seen: #0072b2; --box: #56b4e9; --exact: #d55e00;
  --good: #007a5a; --bad: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebee; --faint: #9aa4ad; --line: #343b42;
  --tint: #1d2227; --paper: #14181c; --seen: #4aa8e0; --box: #2b6f9c; --exact: #ff9142;
  --good: #3ecf9f; --bad: #ff7b6b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 2rem 1.5rem 4rem; color: var(--ink);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .4rem; }
p { max-width: 46rem; margin: .5rem 0; } .faint { color: var(--faint); }
.verdict { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font-size: 13px; }
svg .beyond { fill: var(--bad); opacity: .09; }
svg .faint { fill: var(--faint); font-size: 11.5px; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; font-size: .92rem; margin: .6rem 0; }
.legend span::before { content: ""; display: inline-block; width: .9rem; height: .7rem;
  margin-right: .4rem; border-radius: 2px; background: var(--of); }
.caught { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: .5rem;
  padding: 0; list-style: none; font-size: .93rem; }
.caught li { background: var(--tint); border-left: 4px solid var(--of); border-radius: 4px;
  padding: .4rem .7rem; } .caught small { color: var(--faint); display: block; }
details { border-bottom: 1px solid var(--line); padding: .3rem 0; } summary { cursor: pointer; }
details li { font-size: .93rem; overflow-wrap: anywhere; }
"""
_MEANING: Final = """
Each mechanism promises an ε: the line. The bar is what trials prove with confidence {confidence}
for all of them together: no smaller ε holds. It must not pass the line. The dot is what the most
exposed unit pays, by the proved formulas, for what was measured left of the noise. No bar can show
that a mechanism is private; one that passes the line shows that it is not.
"""
_ON_PURPOSE: Final = """
The same code with one mistake each. An audit that lets one of them pass is worth nothing, so each
is tried again and again, with fresh secrets.
"""
_LEGEND: Final = """
<div class=legend><span style='--of:var(--seen)'>shown by likelihood ratios</span>
<span style='--of:var(--box)'>shown by the public interface alone</span>
<span style='--of:var(--exact)'>paid by the most exposed unit</span>
<span style='--of:var(--ink)'>claimed</span></div>
"""
#: A larger ε says no more than that nothing is private.
_ABSURD: Final = 100.0
#: Of the chart: where names end and numbers begin, and the height of a row.
_LEFT, _RIGHT, _WIDTH, _ROW = 250, 90, 1000, 30


def page_of(family: Family) -> str:
    """The page, as text."""
    verdict, confidence = "good" if family.passed else "bad", f"{1 - family.alpha:.0%}"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'><title>Audit of rillet</title>",
        f"<style>{_STYLE}</style>",
        "<h1>Claimed against measured ε</h1>",
        f"<p class='verdict {verdict}'>{escape(family.summary)}</p>",
        f"<p>{_MEANING.format(confidence=confidence)}</p>",
        _LEGEND,
        _chart([report for report in family.reports if report.exact is not None]),
    ]
    if family.quick:
        parts.append("<p class=faint>A quick run: with few trials little of ε can be shown.</p>")
    if family.broken:
        parts += [
            "<h2>Broken on purpose</h2>",
            f"<p>{_ON_PURPOSE}</p>",
            "<ul class=caught>",
            *map(_caught, family.broken),
            "</ul>",
        ]
    parts += ["<h2>Every check</h2>", *map(_details, family.reports), "</html>"]
    return "\n".join(parts)


def _chart(reports: list[Report]) -> str:
    """Horizontal bars, one row for each mechanism."""
    most = 1.15 * max((report.claimed for report in reports), default=1.0)
    finite = [value for r in reports for value in (r.exact, r.bound) if value is not None]
    most = min(max([most, *(value * 1.05 for value in finite if value < 4 * most)]), 4 * most)
    height = _ROW * len(reports) + 40

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(value, most) / most

    def rows() -> Iterator[str]:
        line = min((report.claimed for report in reports), default=1.0)
        beyond = x(most) - x(line)
        yield f"<rect x={x(line):.1f} y=18 width={beyond:.1f} height={height - 34} class=beyond />"
        for tick in range(int(most / 0.2) + 1):
            at = x(tick * 0.2)
            yield f"<path d='M{at:.1f} 18V{height - 16}' stroke='var(--line)'/>"
            yield f"<text class=faint x={at:.1f} y=12 text-anchor=middle>{tick * 0.2:.1f}</text>"
        for number, report in enumerate(reports):
            yield from _row(report, 24 + _ROW * number, x)

    box = f"viewBox='0 0 {_WIDTH} {height}' role=img aria-label='claimed and measured epsilon'"
    return f"<svg {box}>{''.join(rows())}</svg>"


def _row(report: Report, top: float, x: Callable[[float], float]) -> Iterator[str]:
    middle = top + _ROW / 2
    colour = "" if report.passed else " style='fill:var(--bad)'"
    yield f"<text x=0 y={middle + 4}{colour}>{escape(report.name)}</text>"
    for value, of, inset in ((report.bound, "seen", 5), (report.black_box, "box", 12)):
        if value is not None:
            thick = _ROW - 2 * inset
            yield (
                f"<rect x={_LEFT} y={top + inset} width={max(1.0, x(value) - _LEFT):.1f} "
                f"height={thick} rx=2 fill='var(--{of})'/>"
            )
    at = x(report.claimed)
    yield f"<path d='M{at:.1f} {top + 2}v{_ROW - 4}' stroke='var(--ink)' stroke-width=3 />"
    if report.exact is not None:
        yield (
            f"<circle cx={x(report.exact):.1f} cy={middle} r=5 fill='var(--exact)' "
            "stroke='var(--paper)' stroke-width=1.5 />"
        )
    shown = "exact only" if report.bound is None else f"ε ≥ {report.bound:.2f}"
    yield f"<text class=faint x={_WIDTH} y={middle + 4} text-anchor=end>{shown}</text>"


def _caught(each: Caught) -> str:
    of = "good" if each.caught == each.secrets else "bad"
    words = f"caught {each.caught} of {each.secrets} times by {each.how or 'nothing'}"
    if each.measured is not None and each.measured < _ABSURD:
        words += f": ε ≥ {each.measured:.2f}"
    return f"<li style='--of:var(--{of})'>{escape(each.mistake)}<small>{escape(words)}</small></li>"


def _details(report: Report) -> str:
    of = "good" if report.passed else "bad"
    items = "".join(
        f"<li class='{'' if check.passed else 'bad'}'>{'✓' if check.passed else '✗'} "
        f"{escape(check.name)}: {escape(check.detail)}</li>"
        for check in report.checks
    )
    return (
        f"<details><summary><span class={of}>{'✓' if report.passed else '✗'}</span> "
        f"{escape(report.name)} <span class=faint>{escape(report.about)}, "
        f"{report.seconds:.1f} s</span></summary><ul>{items}</ul></details>"
    )
