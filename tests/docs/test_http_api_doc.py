"""docs/http-api.md is what ``make docs`` writes, and the OpenAPI document fits the table of routes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.docs.http_api_page import MARK, PAGE, page
from timers.console import checking
from timers.console.openapi import document
from timers.console.problems import PROBLEM_KINDS, Problem
from timers.console.routes import OPERATOR, ROUTES
from timers.console.schemas import SCHEMAS


def test_the_page_is_what_the_table_says() -> None:
    assert MARK in PAGE.read_text()
    assert PAGE.read_text() == page(), "run `make docs`"


def test_each_route_is_in_the_document_once() -> None:
    found = document("/base")
    operations = [(method, path) for path, methods in found["paths"].items() for method in methods]
    assert sorted(operations) == sorted((route.method.lower(), route.path) for route in ROUTES)
    names = [route.name for route in ROUTES]
    assert len(set(names)) == len(names)
    json.dumps(found)


def test_each_reference_and_code_exists() -> None:
    for name in references(document("")):
        assert name in SCHEMAS or name == "Text", name
    assert {code for route in ROUTES for code in route.problems} <= PROBLEM_KINDS.keys()


def references(part: Any) -> Iterator[str]:
    """The names of all schemas that a part of the document refers to."""
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"].rpartition("/")[2]
        for each in part.values():
            yield from references(each)
    elif isinstance(part, list):
        for each in part:
            yield from references(each)


def test_a_route_that_changes_something_is_for_operators() -> None:
    for route in ROUTES:
        assert (route.role == OPERATOR) == (route.method != "GET"), route.name


def test_the_examples_fit_their_schemas() -> None:
    for route in ROUTES:
        if route.body and not SCHEMAS[route.body].get("x-timers-own-checks"):
            checking.check(SCHEMAS[route.body], route.example, "the body")
        for each in route.parameters:
            assert each.why and isinstance(each.schema["type"], str)


def test_a_problem_of_each_code_has_a_status() -> None:
    for code, (status, meaning) in PROBLEM_KINDS.items():
        assert Problem(code, "why").status == status and 400 <= status < 600 and meaning


def test_the_page_says_how_a_flag_in_a_body_is_written() -> None:
    flags = [
        (name, field)
        for route in ROUTES
        if route.body
        for name, field in SCHEMAS[route.body]["properties"].items()
        if field.get("type") == "boolean"
    ]
    assert flags
    for name, field in flags:
        checking.check(field, True, name)
        with pytest.raises(Problem):
            checking.check(field, 1, name)
        assert f"| `{name}` | {field['description']} | true or false |" in page()
