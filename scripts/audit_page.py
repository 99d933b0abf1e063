"""Put what ``rillet audit all`` found into docs/audit.md.

    make audit

The tables of the page are replaced by those of the file, and the two times by those of the JSON.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    """Replace tables and times."""
    page = (DOCS / "audit.md").read_text(encoding="utf-8")
    found = json.loads((DOCS / "assets" / "audit.json").read_text(encoding="utf-8"))
    for table in Path(sys.argv[1]).read_text(encoding="utf-8").strip().split("\n\n"):
        head = re.escape(table.split("\n", 1)[0])
        page, count = re.subn(rf"{head}\n(\|.*\n)+", lambda _, new=table: f"{new}\n", page)
        if count != 1:
            sys.exit(f"expected one table with this head in docs/audit.md, found {count}: {head}")
    times = f"in {found['processor_seconds']:.0f} seconds of processor\ntime ("
    page = re.sub(r"in \d+ seconds of processor\ntime \(", times, page)
    page = re.sub(
        r"[\d.]+ minutes by the clock", f"{found['seconds'] / 60:.1f} minutes by the clock", page
    )
    (DOCS / "audit.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
