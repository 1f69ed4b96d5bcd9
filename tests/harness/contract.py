"""Random requests from the OpenAPI document of a console, and the check that each answer is as the document says.

Ids, versions, cursors and confirmations of answers come back in later requests, so that requests build on each other.
"""

import json
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote

import jsonschema

PROBLEM = "application/problem+json"

_DEEP = 3000
_ODD: tuple[Any, ...] = (
    *("", " ", "\0", "\ud800", "a.\ud800", "ü", "a/../b", "x" * 600, "%ff", "*", "NaN", "0", "-1", "1e9", "٣", "a\nb"),
    *(None, True, -1, 0, 1.5, 10**20, float("nan"), [], {}, [[]], {"a": {"base64": "?"}}, {"base64": "/w=="}),
)
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_SLOW = ("listQueues", "getHistory", "listFired", "getQueue")
"""Operations that read topics for seconds: they are chosen less often."""


@dataclass
class Asked:
    """A request.

    Attributes:
        operation: its operation in the document; None for a path or a method that there is not.
    """

    method: str
    path: str
    operation: Mapping[str, Any] | None
    query: list[tuple[str, str]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None

    @property
    def target(self) -> str:
        """Path and query, percent-encoded."""
        pairs = (f"{name}={quote(text, safe='', errors='surrogatepass')}" for name, text in self.query)
        return f"{self.path}?{'&'.join(pairs)}"

    def __str__(self) -> str:
        parts = ["curl", "-X", self.method, self.target]
        for name, text in self.headers.items():
            parts += ["-H", f"{name}: {text}"]
        if self.body is not None:
            parts += ["-d", self.body[:500].decode(errors="replace")]
        return shlex.join(parts)


class Contract:
    """The document of a console.

    Args:
        topics: callback topics that exist.
        now_s: epoch seconds.
    """

    def __init__(self, document: dict[str, Any], random: Random, topics: list[str], now_s: Callable[[], float]) -> None:
        self._document = document
        self._random = random
        self._now_s = now_s
        self._operations = [
            (method.upper(), path, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]
        self._weights = [1 if each["operationId"] in _SLOW else 10 for _, _, each in self._operations]
        self._known: dict[str, list[Any]] = defaultdict(list, topic=[*topics])
        self._following: list[tuple[Asked, str, str]] = []

    # ---- requests -----------------------------------------------------------------------------------------------

    def request(self) -> Asked:
        """A random request; some are wrong."""
        draw = self._random.random()
        if self._following and draw < 0.15:
            return self._follow(*self._random.choice(self._following[-20:]))
        ((method, path, operation),) = self._random.choices(self._operations, self._weights)
        if draw > 0.98:
            return Asked(self._random.choice(_METHODS), f"{path}/x", None)
        asked = Asked(method, path, operation)
        for parameter in operation.get("parameters", ()):
            if parameter["required"] or self._random.random() < (0.4 if parameter["in"] == "query" else 0.15):
                self._add_parameter(asked, parameter)
        if "requestBody" in operation:
            asked.headers["Content-Type"] = "application/json"
            asked.body = self._body(operation["requestBody"]["content"]["application/json"]["schema"])
        return asked

    def _follow(self, before: Asked, name: str, text: str) -> Asked:
        """The same request with the cursor or the confirmation of its answer."""
        if before.body is None:
            query = [*((each, value) for each, value in before.query if each != name), (name, text)]
            return Asked(before.method, before.path, before.operation, query, before.headers)
        body = json.dumps({**json.loads(before.body), name: text}).encode()
        return Asked(before.method, before.path, before.operation, before.query, before.headers, body)

    def _add_parameter(self, asked: Asked, parameter: Mapping[str, Any]) -> None:
        value = self._value(parameter["name"], parameter["schema"])
        for each in value if isinstance(value, list) else [value]:
            text = each if isinstance(each, str) else json.dumps(each)
            if parameter["in"] == "query":
                asked.query.append((parameter["name"], text))
            elif text.isascii() and text.isprintable():
                asked.headers[parameter["name"]] = f'"{text}"' if parameter["name"] == "If-Match" else text

    def _body(self, schema: Mapping[str, Any]) -> bytes:
        draw = self._random.random()
        if draw < 0.02:
            return b'{"headers": ' + b"[" * (depth := self._random.randrange(_DEEP)) + b"]" * depth + b"}"
        if draw < 0.04:
            return self._random.choice((b"", b"[]", b"{", b'{"a": 1, "a": 1}', b"\xff"))
        body = self._value("", schema, may_be_odd=False)
        if "Timer" in schema["$ref"] and draw < 0.9:  # with one due time, as most bodies should be
            body.pop("at", None)
            body.setdefault("delay", self._time("delay"))
        return json.dumps(body).encode()

    def _value(self, name: str, schema: Mapping[str, Any], *, may_be_odd: bool = True) -> Any:
        draw = self._random.random()
        if may_be_odd and draw < 0.04:
            return self._random.choice(_ODD)
        if name == "wait":
            return self._random.choice((10, 30))
        if name in ("at", "delay", "since", "until", "from", "to"):
            return self._time(name)
        if draw < 0.7 and self._known[name]:
            return self._random.choice(self._known[name][-50:])
        return self._from(schema)

    def _time(self, name: str) -> Any:
        later_s = self._random.choice((1, 2, 30, 3600, 86_400))
        if name == "delay":
            return self._random.choice((later_s, f"{later_s}s", "15m", "1d"))
        return int(self._now_s()) + self._random.choice((later_s, -later_s))

    def _from(self, schema: Mapping[str, Any]) -> Any:
        random = self._random
        if "$ref" in schema:
            return self._from(self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return self._from(random.choice(schema["anyOf"]))
        if "enum" in schema:
            return random.choice(schema["enum"])
        kind = schema.get("type", "string")
        if kind in ("integer", "number"):
            low, high = schema.get("minimum", -10), schema.get("maximum", 10**6)
            return random.choice((low, high, random.randint(int(low), int(high)), 2))
        if kind == "array":
            return [self._from(schema.get("items", {})) for _ in range(random.randint(schema.get("minItems", 0), 3))]
        if kind == "object":
            fields = schema.get("properties", {})
            needed = {*schema.get("required", ())}
            return {each: self._value(each, fields[each]) for each in fields if each in needed or random.random() < 0.3}
        if kind == "boolean":
            return random.random() < 0.5
        if kind == "null":
            return None
        return "".join(random.choices("abc/.-_:17 ü€", k=random.randint(1, 12)))

    # ---- answers ------------------------------------------------------------------------------------------------

    def check(self, asked: Asked, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Check one answer; its names come back in later requests.

        Raises:
            AssertionError: the document has no such answer, or it is an error of the console.
        """
        content = headers.get("Content-Type", "").partition(";")[0]
        about = f"{asked}\n{status} {content} {body[:2000]!r}"
        assert status < 500 or status == 501, about
        if asked.operation is None:
            assert status in (404, 405) and content == PROBLEM, about
            return
        responses = asked.operation["responses"]
        assert str(status) in responses, f"the status is not documented: {about}"
        documented = responses[str(status)].get("content", {})
        assert content in documented, f"the type is not documented: {about}"
        if content not in ("application/json", PROBLEM):
            return
        answer = json.loads(body)
        schema = {**documented[content].get("schema", {}), "components": self._document["components"]}
        error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(answer))
        assert error is None, f"{error and error.message}: {about}"
        for name, header in responses[str(status)].get("headers", {}).items():
            assert header["schema"] == {"type": "string"}
            if name == "ETag" and name in headers:
                self._known["If-Match"].append(headers[name].strip('"'))
        if status < 300:
            self._learn(asked, answer)

    def _learn(self, asked: Asked, answer: Any) -> None:
        for name, key in (("next", "cursor"), ("next", "confirm"), ("confirm", "confirm")):
            if isinstance(text := answer.get(name), str) and (key == "confirm") == (asked.body is not None):
                self._following.append((asked, key, text))
        for each in (answer, *answer.get("timers", ()), *answer.get("dead_letters", ())):
            if isinstance(each.get("id"), str):
                self._known["id"].append(each["id"])
                self._known["prefix"].append(each["id"][:3])
            if isinstance(each.get("position"), str):
                self._known["name"].append(each["position"])
                self._known["names"].append([each["position"]])
