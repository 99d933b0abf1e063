"""The Grafana dashboard: Grafana's own models know all of it, PostgreSQL runs its queries."""

import json
from pathlib import Path

import psycopg
import pytest

from rillet.sink import make_sink
from sink.tables import table

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana-dashboard.json"


def lost(given, kept, path=""):
    """What is in one tree of JSON and not in another."""
    if isinstance(given, dict):
        for name, value in given.items():
            if not isinstance(kept, dict) or name not in kept:
                yield f"{path}/{name}"
            else:
                yield from lost(value, kept[name], f"{path}/{name}")
    elif isinstance(given, list):
        if not isinstance(kept, list) or len(kept) != len(given):
            yield path
        else:
            for index, pair in enumerate(zip(given, kept, strict=True)):
                yield from lost(*pair, f"{path}[{index}]")
    elif given != kept:
        yield f"{path}: {given!r}"


def understood(dashboard):
    """What Grafana's models make of it."""
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))


def test_grafanas_models_know_all_of_it():
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert list(lost(dashboard, understood(dashboard))) == []
    wrong = {**dashboard, "panles": []}
    assert list(lost(wrong, understood(wrong))) == ["/panles"]


@pytest.fixture
def filled(database):
    with make_sink({"kind": "postgres", "dsn": database.dsn(), "table": "releases"}).open() as sink:
        sink.deliver(table())
    return database


def test_postgresql_runs_its_queries(filled):
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [
        item["query"] for item in dashboard["templating"]["list"] if item["name"] != "source"
    ]
    queries += [each["rawSql"] for panel in dashboard["panels"] for each in panel["targets"]]
    assert len(queries) == 6
    with psycopg.connect(filled.dsn()) as connection:
        (keys,), (names,) = (connection.execute(query).fetchall()[:1] for query in queries[:2])
        known = {"$key": keys[0], "$name": names[0], "$__timeFilter(at)": "at > '1970-01-01'"}
        for query in queries:
            asked = query
            for word, value in known.items():
                asked = asked.replace(word, value)
            assert connection.execute(asked).fetchall(), asked
