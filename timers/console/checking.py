"""The check of what is sent to a route: its parameters, and its body. Pure.

It knows the part of JSON Schema that the schemas of parameters and of bodies use. A value that it refuses is named in a
sentence. ``tests/unit/test_console_checking.py`` compares it with a complete validator.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from timers.console.problems import Problem
from timers.console.routes import Route
from timers.core.printable import is_utf8, quoted

SHOWN = 100
"""Characters that a sentence repeats of what a user sent."""

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "integer": (int,),
    "number": (int, float),
}


def parameters(route: Route, given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The query parameters of a request, converted; those that are missing have their defaults or are left out."""
    known = {each.name: each for each in route.parameters}
    found: dict[str, Any] = {}
    for name, text in given:
        if name not in known:
            raise Problem("parameter-invalid", f"there is no parameter {quoted(name[:SHOWN])}: {_meant(name, known)}")
        schema = known[name].schema
        if schema["type"] == "array":
            found.setdefault(name, []).append(text)
        elif name in found:
            raise Problem("parameter-invalid", f"the parameter {quoted(name)} is given twice")
        else:
            found[name] = _converted(name, schema, text)
    for each in route.parameters:
        if each.name in found:
            check(each.schema, found[each.name], each.name)
        elif each.required:
            raise Problem("parameter-invalid", f"the parameter {each.name!r} is missing: {each.why}")
        elif "default" in each.schema:
            found[each.name] = each.schema["default"]
    return found


def _converted(name: str, schema: Mapping[str, Any], text: str) -> Any:
    if schema["type"] == "integer" and re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII):
        return int(text)
    if schema["type"] == "number" and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text, re.ASCII):
        return float(text)
    if schema["type"] == "boolean":
        if text not in ("0", "1"):
            raise _wrong(name, text, "0 or 1")
        return text == "1"
    return text


def check(schema: Mapping[str, Any], value: Any, name: str) -> None:
    """Check one value, or raise the problem that it is not as the schema says."""
    kinds = _TYPES[schema["type"]]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise _wrong(name, value, f"of type {schema['type']}")
    if "enum" in schema and value not in schema["enum"]:
        raise _wrong(name, value, f"one of {', '.join(schema['enum'])}")
    if isinstance(value, (int, float)) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        raise _wrong(name, value, f"between {schema['minimum']} and {schema['maximum']}")
    if isinstance(value, str):
        if not is_utf8(value):
            raise _wrong(name, value, "text that UTF-8 can carry")
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            raise _wrong(name, value, f"{schema.get('minLength', 0)} to {schema['maxLength']} characters long")
        if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
            raise _wrong(name, value, schema.get("description", f"text of the form {schema['pattern']}"))
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema["maxItems"]:
            raise _wrong(name, f"{len(value)} items", f"{schema.get('minItems', 0)} to {schema['maxItems']} items")
        for each in value:
            check(schema["items"], each, name)
    if isinstance(value, dict):
        _check_object(schema, value, name)


def _check_object(schema: Mapping[str, Any], value: Mapping[str, Any], name: str) -> None:
    fields = schema["properties"]
    for each in value:
        if each not in fields:
            raise Problem("parameter-invalid", f"{name} has no field {quoted(each[:SHOWN])}: {_meant(each, fields)}")
        check(fields[each], value[each], each)
    for each in schema.get("required", ()):
        if each not in value:
            raise Problem("parameter-invalid", f"{name} has no field {quoted(each)}, which is required")


def _wrong(name: str, value: Any, expected: str) -> Problem:
    return Problem("parameter-invalid", f"{name}={quoted(str(value)[:SHOWN])} is not {expected}")


def _meant(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    nearest = difflib.get_close_matches(name[:SHOWN], names, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(names) or 'none'}"
