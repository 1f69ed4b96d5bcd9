"""The OpenAPI document of the table of routes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from http import HTTPStatus
from typing import Any

from timers import __version__
from timers.console import problems
from timers.console import schemas as s
from timers.console.routes import JSON, ROUTES, SETS_TIMERS, TRACE_PARAMETERS, Answer, Route
from timers.console.schemas import SCHEMAS


def document(base_path: str) -> dict[str, Any]:
    """The document for a console under this path."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "timers",
            "version": __version__,
            "description": "Set, find, change and watch timers. docs/http-api.md has examples.",
        },
        "servers": [{"url": base_path or "/"}],
        "paths": _paths(),
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


@cache  # it takes 4 ms, and is the same for all consoles of a process
def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return paths


_ABOUT = {
    "timers": "timers timer next pending",
    "callback topics": "targets events fired",
    "dead letters": "dead-letters dead-letter",
    "queues": "queues queue",
    "workers": "workers lateness figures",
    "console": "health problem openapi.json metrics",
}
_TAGS = {name: tag for tag, names in _ABOUT.items() for name in names.split()}
"""What follows ``/v1`` in a path -> its tag in the document."""


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [_TAGS[route.path.removeprefix("/v1").split("/")[1]]],
        "security": [{"basic": []}, {"bearer": []}, {"certificate": []}, {}] if route.role else [{}],
        "responses": {str(status): _response(answers) for status, answers in answers_of(route).items()},
    }
    if route.role:
        operation["x-timers-role"] = route.role
    taken = (*route.headers, *(TRACE_PARAMETERS if route.body in SETS_TIMERS else ()))
    if route.parameters or taken:
        operation["parameters"] = [
            {
                "name": each.name,
                "in": place,
                "required": each.required,
                "description": each.why,
                "schema": {**each.schema, "type": "integer", "enum": [0, 1], "default": int(each.schema["default"])}
                if each.schema["type"] == "boolean"
                else each.schema,
            }
            for place, parameters in (("query", route.parameters), ("header", taken))
            for each in parameters
        ]
    if route.body:
        content = {JSON: {"schema": s.reference(route.body), "examples": {"example": {"value": route.example}}}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def answers_of(route: Route) -> dict[int, list[Answer]]:
    """Status -> the answers with this status, those that all routes have included."""
    found: dict[int, list[Answer]] = {}
    for answer in (*route.answers, *map(_problem, problem_codes(route))):
        found.setdefault(answer.status, []).append(answer)
    return dict(sorted(found.items()))


def problem_codes(route: Route) -> Iterable[str]:
    """The codes of all problems that a route may answer with."""
    yield from ("misdirected", "cross-site", "failed", "parameter-invalid", "address-too-long")
    yield from dict.fromkeys(route.problems)
    if route.role:
        yield from ("login-missing", "role-missing", "rate-limited", "issuer-unreachable")
    if route.writes:
        yield from ("read-only", "not-recorded", "condition-unsupported")
    if route.body:
        yield from ("body-not-json", "body-too-large")


def _problem(code: str) -> Answer:
    status, meaning = problems.PROBLEM_KINDS[code]
    return Answer(status, f"`{code}`: {meaning}", "Problem", content=problems.PROBLEM_CONTENT_TYPE)


def _response(answers: list[Answer]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": ". ".join(answer.why for answer in answers)}
    content = {
        answer.content: {"schema": s.reference(answer.schema)} if answer.content == JSON or answer.is_problem else {}
        for answer in answers
        if answer.schema
    }
    if content:
        response["content"] = content
    headers = {name: why for answer in answers for name, why in answer.headers.items()}
    if answers[0].status == HTTPStatus.TOO_MANY_REQUESTS:
        headers["Retry-After"] = "seconds to wait"
    if headers:
        response["headers"] = {
            name: {"description": why, "schema": {"type": "string"}} for name, why in headers.items()
        }
    return response
