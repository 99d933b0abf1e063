"""The report: one HTML page with everything inside, the numbers as JSON, the figures as files.

**Privacy.** Made from public data only.
"""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from rillet.errors import OutputError
from rillet.reproduce.experiments import numbers_of
from rillet.reproduce.result import Picture, Result, Table

__all__ = ["REPORT", "html_report", "named_tables", "summary_table", "write_report"]

REPORT: Final = "report.html"
NUMBERS: Final = "numbers.json"
FIGURES: Final = "figures"
TABLES: Final = "tables"

_STYLE = """
:root { color-scheme: light; --ink: #1a1a1a; --faint: #5c5c5c; --line: #d9d9d9; --tint: #f6f8fa; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; color: var(--ink); background: white;
  font: 16px/1.5 system-ui, sans-serif; }
h1 { line-height: 1.2; } h2 { margin: 0 0 .8rem; line-height: 1.25; }
section { border-top: 2px solid var(--ink); padding: 1.2rem 0 1.6rem; }
nav a { margin-right: 1rem; white-space: nowrap; } a { color: #005a9c; }
.sides { display: grid; grid-template-columns: repeat(3, 1fr); gap: 1.2rem; }
.sides > div { background: var(--tint); border-radius: 6px; padding: .2rem 1rem .4rem; }
.sides h3 { margin: .6rem 0 0; font-size: .95rem; color: var(--faint); }
.sides p { margin: .5rem 0; }
figure { margin: 1.2rem 0; text-align: center; } figure img { max-width: 100%; height: auto; }
figcaption, caption { color: var(--faint); font-size: .92rem; }
.scroll { overflow-x: auto; } details { margin: .6rem 0; } summary { cursor: pointer; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .92rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { border-bottom: 2px solid var(--ink); white-space: nowrap; } .number { text-align: right; }
@media (max-width: 52rem) { .sides { grid-template-columns: 1fr; } }
@media print { body { max-width: none; } section { break-inside: avoid-page; } }
"""


def write_report(results: Sequence[Result], folder: Path, *, quick: bool) -> Path:
    """Write everything into a folder, which is made if need be; returns the page.

    Raises
    ------
    OutputError
        If the folder cannot be written.
    """
    page = folder / REPORT
    try:
        (folder / FIGURES).mkdir(parents=True, exist_ok=True)
        for result in results:
            for picture in result.pictures:
                (folder / FIGURES / f"{picture.name}.png").write_bytes(picture.png)
                (folder / FIGURES / f"{picture.name}.pdf").write_bytes(picture.pdf)
        (folder / TABLES).mkdir(exist_ok=True)
        for name, table in named_tables(results):
            with (folder / TABLES / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([table.head, *table.rows])
        numbers = json.dumps(numbers_of(results, quick), indent=1, ensure_ascii=False)
        (folder / NUMBERS).write_text(numbers + "\n", encoding="utf-8")
        page.write_text(html_report(results, quick=quick), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(f"{folder}: expected a folder to write to, found: {reason}") from error
    return page


def summary_table(results: Sequence[Result]) -> Table:
    """Everything that was compared, first of all."""
    rows = [
        (claim.item, claim.paper, claim.ours, claim.verdict)
        for result in results
        for claim in result.claims
    ]
    caption = "What the paper reports, and what comes out here"
    return Table(caption, ("item", "paper", "here", "verdict"), tuple(rows))


def named_tables(results: Sequence[Result]) -> Iterator[tuple[str, Table]]:
    """Every table under the name of its file."""
    yield "summary", summary_table(results)
    for result in results:
        for number, table in enumerate(result.tables, 1):
            yield f"{result.name}-{number}" if number > 1 else result.name, table


def html_report(results: Sequence[Result], *, quick: bool) -> str:
    """One page that needs nothing beside itself."""
    links = " ".join(
        f'<a href="#{escape(result.name)}">{escape(result.name)}</a>' for result in results
    )
    amount = (
        "A quick run: fewer random runs and coarser curves than the paper."
        if quick
        else "As many random runs as the paper."
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>rillet: the paper, reproduced on public data</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>The paper, reproduced on public data</h1>
<p>Perrier, Asghar, Kaafar, “Private continual release of real-valued data streams”, NDSS 2019. The
paper's data are not public; baskets of The Complete Journey stand in for its supermarket, simulated
commutes, light-tailed by construction, for its train trips: these test the method and not its
premise. {escape(amount)} All noise comes from published secrets, so that two
runs print the same numbers.</p>
{_table(summary_table(results))}
<nav>{links}</nav>
{"".join(_section(result) for result in results)}
</body>
</html>
"""


def _section(result: Result) -> str:
    sides = "".join(
        f"<div><h3>{heading}</h3>{_paragraphs(text)}</div>"
        for heading, text in (
            ("The paper", result.paper),
            ("rillet, on public data", result.ours),
            ("Why they differ", result.difference),
        )
    )
    shown = "".join(_table(table) for table in result.tables[:1])
    if len(result.tables) > 1:
        more = "".join(_table(table) for table in result.tables[1:])
        shown += f"<details><summary>More tables</summary>{more}</details>"
    figures = "".join(_figure(picture) for picture in result.pictures)
    return (
        f'<section id="{escape(result.name)}">\n<h2>{escape(result.title)}</h2>\n'
        f'<div class="sides">{sides}</div>\n{figures}\n{shown}\n</section>\n'
    )


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(part)}</p>" for part in text.split("\n\n"))


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode("ascii")
    words = escape(picture.words)
    return (
        f'<figure><img alt="{words}" src="data:image/png;base64,{data}">'
        f"<figcaption>{words}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    right = [_is_number([row[index] for row in table.rows]) for index in range(len(table.head))]

    def cells(tag: str, texts: Sequence[str]) -> str:
        marks = (' class="number"' if is_right else "" for is_right in right)
        pairs = zip(texts, marks, strict=True)
        return "".join(f"<{tag}{mark}>{escape(text)}</{tag}>" for text, mark in pairs)

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    return (
        f'<div class="scroll"><table><caption>{escape(table.caption)}</caption>\n'
        f"<thead><tr>{cells('th', table.head)}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )


def _is_number(texts: Sequence[str]) -> bool:
    """Whether a column holds numbers, with thousands, ± or a dash for none."""
    return bool(texts) and all(
        text == "–" or text.replace(",", "").replace(" ± ", "").replace(".", "").isdigit()
        for text in texts
    )
