"""The OpenAPI document of the app: what may be asked, and what comes back.

The fields of a record follow from :data:`rillet.release.FIELDS`.

**Privacy.** Touches no data.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from rillet.release import FIELDS
from rillet.web.answers import FORMATS

__all__ = ["document", "operation"]

_KINDS: dict[str, dict[str, Any]] = {
    "key": {"type": ["string", "integer"]},
    "integer": {"type": "integer"},
    "time": {"type": "string", "format": "date-time"},
    "number": {"type": "number"},
    "text": {"type": "string"},
    "texts": {"type": "array", "items": {"type": "string"}},
}


def document() -> dict[str, Any]:
    """All paths of the app, as OpenAPI 3.1."""
    return described(
        "Releases of a private stream",
        "Public numbers only: every value has noise, and `low` and `high` are the ends of its "
        "95 % interval.",
        {
            "/api/about": {"get": operation("The plan, how far the run is, all keys together")},
            "/api/keys": {"get": operation("All keys, the latest release and a history of each")},
            "/api/latest": {
                "get": operation(
                    "The last release of each key, or of one",
                    [_KEY, _FORMAT],
                    content=_releases(),
                    problems=(404, 406, 422, 503),
                )
            },
            "/api/releases": {
                "get": operation(
                    "The releases of one key, the last ones by default",
                    [
                        _KEY,
                        _parameter("after", "only those with a larger t", minimum=0),
                        _time("since", "only those released from this time on"),
                        _time("until", "only those released before this time"),
                        _parameter("most", "at most so many (default 1,000)", minimum=1),
                        _flag("thin", "evenly spaced ones instead of the last ones"),
                        _FORMAT,
                    ],
                    content=_releases(),
                    problems=(404, 406, 422, 503),
                )
            },
            "/metrics": {
                "get": operation(
                    "How far the run is, for Prometheus",
                    [_flag("values", "the latest released values too")],
                    content={"text/plain": {"schema": {"type": "string"}}},
                )
            },
            "/api/live": {
                "get": operation(
                    "News as they come: server-sent events `latest` (the newest release of each "
                    "key that moved), `progress`, and with a key `releases` (all of them, each "
                    "with the last t as its id)",
                    [
                        _KEY,
                        _parameter("after", "only those with a larger t", minimum=0),
                        _parameter(
                            "look",
                            "begin with the keys that moved since /api/keys said this",
                            minimum=0,
                        ),
                    ],
                    content={"text/event-stream": {"schema": {"type": "string"}}},
                    problems=(404, 422),
                )
            },
        },
        {
            "Record": {
                "type": "object",
                "properties": {
                    **{field.name: _schema(field) for field in FIELDS},
                    "low": {"type": ["number", "null"]},
                    "high": {"type": ["number", "null"]},
                },
                "required": [field.name for field in FIELDS],
            }
        },
    )


def described(
    title: str, description: str, paths: dict[str, Any], schemas: dict[str, Any]
) -> dict[str, Any]:
    """A whole document around some paths."""
    problem = {
        "type": "object",
        "properties": {"error": {"type": "string"}},
        "required": ["error"],
        "additionalProperties": False,
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "description": description, "version": version("rillet")},
        "paths": paths,
        "components": {
            "schemas": {"Problem": problem, **schemas},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def operation(
    summary: str,
    parameters: list[dict[str, Any]] | None = None,
    *,
    content: dict[str, Any] | None = None,
    body: dict[str, Any] | None = None,
    problems: tuple[int, ...] = (),
) -> dict[str, Any]:
    """One operation; what every path may refuse is added."""
    words = {
        400: "not what its media type says",
        401: "no token, or another",
        404: "no such key",
        406: "a format that is not installed",
        408: "too slow",
        413: "too large",
        415: "another media type",
        421: "another host",
        422: "a wrong parameter",
        429: "too many requests",
        503: "not ready",
    }
    answers: dict[str, Any] = {
        "200": {
            "description": "as asked",
            "content": content or {"application/json": {"schema": {"type": "object"}}},
        }
    }
    reference = {"$ref": "#/components/schemas/Problem"}
    for status in sorted({*problems, 401, 413, 421, 429}):
        answers[str(status)] = {
            "description": words[status],
            "content": {"application/json": {"schema": reference}},
        }
    found: dict[str, Any] = {
        "summary": summary,
        "parameters": parameters or [],
        "responses": answers,
    }
    if body is not None:
        found["requestBody"] = body
    return found


def _parameter(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "description": description,
        "schema": {"type": "integer", "maximum": 2**62, **schema},
    }


def _time(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "string", "format": "date-time"}
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _flag(name: str, description: str) -> dict[str, Any]:
    schema = {"type": "boolean"}
    return {"name": name, "in": "query", "description": description, "schema": schema}


_KEY = {
    "name": "key",
    "in": "query",
    "description": "a key as /api/keys shows it",
    "schema": {"type": "string"},
}
_FORMAT = {
    "name": "format",
    "in": "query",
    "description": "how the answer is written; by default as the header Accept says, or json",
    "schema": {"type": "string", "enum": list(FORMATS)},
}


def _releases() -> dict[str, Any]:
    record = {"$ref": "#/components/schemas/Record"}
    columns = {"type": "object", "required": ["names", "t", "at", "value", "low", "high"]}
    whole = {
        "type": "object",
        "properties": {"releases": {"type": "array", "items": record}},
        "required": ["releases"],
    }
    return {
        "application/json": {"schema": {"anyOf": [whole, columns]}},
        "text/csv": {"schema": {"type": "string"}},
        "application/vnd.apache.arrow.stream": {"schema": {"type": "string", "format": "binary"}},
    }


def _schema(field: Any) -> dict[str, Any]:
    kind = dict(_KINDS[field.kind])
    if field.optional:
        kind["type"] = [kind["type"], "null"]
    return kind
