"""``rillet demo --serve``: the race of the demonstration as a page.

**Privacy.** The data are public; that is why the truth may be shown.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from rillet.cli.common import say
from rillet.cli.demo import DELTA, EPSILON, Race, paced

#: Points of the chart, when there is nothing to wait for.
_POINTS = 120


def show_race(race: Race, address: str, *, fast: bool) -> None:
    """Serve the page, and let the race run while somebody may look; until it is stopped."""
    from rillet.web.app import check_page
    from rillet.web.compare import Show, make_compare_app
    from rillet.web.server import listen, parse_address, serve

    check_page()
    show = Show(
        {
            "title": "What the mechanism buys",
            "question": f"The average of {race.length:,} supermarket baskets, so far",
            "promise": f"Promised to every basket by each: ε = {EPSILON:g}, δ = {DELTA:.2g}",
            "unit": "$",
            "length": race.length,
            "labels": [runner.label for runner in race.runners],
            "lags": [runner.plan.layout.first_release for runner in race.runners],
        }
    )
    listener = listen(parse_address(address, "serve"))
    host, port = listener.getsockname()[:2]
    say(f"http://{host}:{port}/ shows it; stop it with Ctrl-C")
    sys.stdout.flush()

    def run() -> None:
        steps = range(race.length // _POINTS, race.length + 1, max(1, race.length // _POINTS))
        for until in steps if fast else paced(race.length, time.perf_counter()):
            race.advance(until)
            show.points.append(_point(race))
        show.ended = True

    threading.Thread(target=run, name="rillet-race", daemon=True).start()
    serve(make_compare_app(show), listener)


def _point(race: Race) -> dict[str, Any]:
    """Where every mechanism stands."""
    sides: dict[str, list[float | None]] = {"value": [], "low": [], "high": []}
    for runner in race.runners:
        releases = runner.releases
        numbers: tuple[float | None, ...] = (None, None, None)
        if releases is not None:
            latest = releases[-1]
            numbers = (latest.value, *latest.noise_interval(0.95))
        for side, number in zip(sides.values(), numbers, strict=True):
            side.append(number)
    return {"t": race.t, "truth": float(race.truth[race.t - 1]), **sides}
