"""The check of parameters and bodies accepts what a complete validator of JSON Schema accepts, and nothing else."""

import json
from typing import Any

import jsonschema
import pytest

from tests.harness.sim_console import SimCluster, answer_of, console
from timers.console import checking
from timers.console.problems import Problem
from timers.console.routes import BY_NAME, ROUTES
from timers.console.schemas import SCHEMAS

SCHEMAS_OF_PARAMETERS = {f"{route.name}.{each.name}": each.schema for route in ROUTES for each in route.parameters}
SCHEMAS_OF_BODIES = {
    route.body: SCHEMAS[route.body]
    for route in ROUTES
    if route.body and not SCHEMAS[route.body].get("x-timers-own-checks")
}

# Without a text that ends in a line break: to this validator, which uses Python's `$`, it is the same without it.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 5, 30, 1000, 1001, 10**11, 0.5, 30.5, "", "a", "a b", ".", "..", "x" * 250),
    *("x" * 513, "x" * 9000, "minute", "topic-denied", "1/2", "t/1/2", "1/2/", [], ["a"], ["a b"], ["x"] * 11, [1]),
    *(["topic-denied"], ["1/2"], ["1/2"] * 101, {}, {"topic": "t"}, {"topic": 1}, {"names": []}, {"names": ["1/2"]}),
    *({"colour": 1}, {"dry_run": True}, {"dry_run": 1}, {"from": 5, "to": -1}, {"prefix": ""}, {"confirm": "x" * 3000}),
    *({"codes": ["nonsense"]}, {"since": 1.5}, {"since": True}),
]


@pytest.mark.parametrize("name", [*SCHEMAS_OF_PARAMETERS, *SCHEMAS_OF_BODIES])
def test_it_agrees_with_a_complete_validator(name: str) -> None:
    schema = {**SCHEMAS_OF_PARAMETERS, **SCHEMAS_OF_BODIES}[name]
    complete = jsonschema.Draft202012Validator(schema)
    for value in VALUES:
        try:
            checking.check(schema, value, name)
        except Problem as problem:
            assert problem.code == "parameter-invalid" and len(str(problem)) < 1000
            accepted = False
        else:
            accepted = True
        assert accepted == complete.is_valid(value), (name, value)


@pytest.mark.parametrize("text", ["\ud800", "a.\udcff"])
def test_a_lone_surrogate_is_refused(text: str) -> None:
    """JSON allows it, and UTF-8 cannot carry it."""
    with pytest.raises(Problem, match="is not text that UTF-8 can carry"):
        checking.check(SCHEMAS["CancelFilter"], {"prefix": "a", "confirm": text}, "the body")


def test_a_switch_of_a_query_is_0_or_1_as_the_document_says() -> None:
    for text, taken in (("0", False), ("1", True), ("true", None), ("True", None), ("", None), ("2", None)):
        try:
            assert checking.parameters(BY_NAME["listTimers"], [("value", text)])["value"] is taken
        except Problem as problem:
            assert taken is None and f"value='{text}' is not 0 or 1" in str(problem)


def test_all_schemas_are_schemas() -> None:
    for schema in (*SCHEMAS.values(), *SCHEMAS_OF_PARAMETERS.values()):
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/timers?{}=1", None),
        ("POST", "/v1/timers", {"topic": "t", "value": "v", "{}": 1}),
        ("POST", "/v1/timers", {"topic": "t", "value": "v", "delay": 1, "headers": {"{}": 1}}),
        ("POST", "/v1/timers", {"topic": "t", "value": "v", "delay": "{}"}),
        ("POST", "/v1/timers", {"topic": "t", "value": "v", "at": "{}"}),
        ("POST", "/v1/timers", {"topic": "{}", "value": "v", "delay": 1}),
        ("POST", "/v1/timers", {"topic": "t", "value": {"base64": "{}!"}, "delay": 1}),
        ("POST", "/v1/timers", {"topic": "t", "value": {"{}": "", "base64": 1e999}, "delay": 1}),
        ("POST", "/v1/timers/cancel", {"{}": 1}),
    ],
)
async def test_a_sentence_does_not_repeat_a_long_text(method: str, path: str, body: Any) -> None:
    name = "colour" * 1000  # in a path it must fit into a line of HTTP
    text = None if body is None else json.dumps(body).replace("{}", name * 20)
    async with console(SimCluster()) as client:
        headers = {"Content-Type": "application/json"}
        status, answer = await answer_of(client, method, path.format(name), data=text, headers=headers)
    assert status in (400, 422) and len(json.dumps(answer)) < 2500, answer["detail"][:1000]
