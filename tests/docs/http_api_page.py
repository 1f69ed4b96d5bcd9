"""Writes the reference of docs/http-api.md from the table of routes; run by ``make docs``.

The text above the mark is written by hand.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from timers.console.openapi import answers_of, problem_codes
from timers.console.problems import PROBLEM_KINDS
from timers.console.routes import PUBLIC, ROUTES, Route
from timers.console.schemas import SCHEMAS
from timers.wire import dead_letter

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"
MARK = "<!-- `make docs` writes what follows from timers/console/routes.py -->\n"


def reference() -> str:
    """The part of the page that is made from the table."""
    return MARK + "\n" + "\n".join([*_routes(), *_codes()]) + "\n"


def page() -> str:
    """The text of docs/http-api.md."""
    return PAGE.read_text().partition(MARK)[0] + reference()


def _routes() -> Iterator[str]:
    yield "## Routes\n"
    yield "Below, a name in brackets after an answer, such as `TimerList`, is a schema of `/v1/openapi.json`.\n"
    yield "| route | role | what it does |\n|---|---|---|"
    for route in ROUTES:
        yield f"| [`{_name(route)}`](#{_anchor(_name(route))}) | {route.role or 'no login'} | {route.summary} |"
    for route in ROUTES:
        yield from _route(route)


def _route(route: Route) -> Iterator[str]:
    needs = "Needs no login." if route.role == PUBLIC else f"Role: {route.role}."
    switch = " Needs `TIMERS_CONSOLE_WRITE=1`." if route.writes else ""
    yield f"\n### {_name(route)}\n\n{route.summary} {needs}{switch}"
    if route.parameters:
        yield "\n| parameter | | form |\n|---|---|---|"
        for each in route.parameters:
            form = {"boolean": "0 or 1", "array": "text"}.get(each.schema["type"]) or _form(each.schema)
            yield f"| `{each.name}` | {each.why}{'; required' if each.required else ''} | {form} |"
    if route.headers:
        yield "\n| header | | form |\n|---|---|---|"
        for each in route.headers:
            yield f"| `{each.name}` | {each.why} | {each.schema['description']} |"
    if route.body:
        yield f"\nThe body is `{route.body}`:\n\n```json\n{json.dumps(route.example)}\n```"
        yield "\n| field | | form |\n|---|---|---|"
        schema = SCHEMAS[route.body]
        for name, field in schema["properties"].items():
            required = "; required" if name in schema["required"] else ""
            yield f"| `{name}` | {field.get('description', '')}{required} | {_form(field)} |"
    yield "\n| status | |\n|---|---|"
    for status, answers in answers_of(route).items():
        own = [answer for answer in answers if not answer.is_problem]
        codes = [f"`{answer.why.split('`')[1]}`" for answer in answers if answer.is_problem]
        text = [f"{answer.why} (`{answer.schema}`)" if answer.schema in SCHEMAS else answer.why for answer in own]
        text += [f"header {name}: {why}" for answer in own for name, why in answer.headers.items()]
        yield f"| {status} | {'; '.join([*text, *codes])} |"


def _codes() -> Iterator[str]:
    yield "\n## Codes of problems\n"
    yield "| code | status | meaning |\n|---|---|---|"
    used = {code for route in ROUTES for code in problem_codes(route)}
    for code, (status, meaning) in PROBLEM_KINDS.items():
        if code not in dead_letter.CODES:
            yield f"| `{code}` | {status} | {meaning} |"
    letters = ", ".join(f"`{code}`" for code in dead_letter.CODES if code in used)
    yield f"\nThese codes of [dead letters](bad-input.md) have status 422: {letters}."


def _form(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_form(each) for each in schema["anyOf"]))
    if "$ref" in schema:
        return "object"
    if schema["type"] == "boolean":
        return "true or false"
    if schema["type"] == "object":
        return '`{"base64": "..."}`' if "base64" in schema.get("properties", {}) else "object"
    if schema["type"] == "array":
        if "prefixItems" in schema:
            return "pair"
        return "list" if not schema["items"] else f"list of {_form(schema['items'])}s"
    default = f", by default {schema['default']}" if "default" in schema else ""
    if "enum" in schema and len(schema["enum"]) <= 5:
        return ", ".join(f"`{each}`" for each in schema["enum"]) + default
    if "minimum" in schema:
        return f"{schema['minimum']} to {schema['maximum']}{default}"
    return {"string": "text", "number": "number", "integer": "number", "null": "null"}[schema["type"]] + default


def _name(route: Route) -> str:
    return f"{route.method} {route.path}"


def _anchor(name: str) -> str:
    return "".join(each for each in name.lower().replace(" ", "-") if each.isalnum() or each in "-_")


if __name__ == "__main__":
    PAGE.write_text(page())
