"""Reads a file of repeating timers, which is the wanted state of ``timers apply``, and says how it differs from what is
set. Pure.

The file is YAML, of which JSON is a part. Its timers have the fields of :mod:`timers.client.timer_lines`::

    set: billing
    timers:
      - id: daily-report
        repeat: {cron: "0 9 * * 1-5", zone: Europe/Paris}
        topic: reports
        key: paris
        value: {"kind": "daily"}

Each timer gets the header :data:`SET` with the name of the set. Its callbacks have it, too: workers keep no other
headers of a request than those of its callback, and list the timers of a set by it. So a receiver may copy it to timers
of its own. Of what has the header, only timers that repeat belong to the set.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

import yaml

from timers.client.request import TimerRequest, id_key
from timers.client.timer_lines import parse_fields, repeat_of
from timers.client.times import tell
from timers.core.printable import json_value, quoted, utc_text
from timers.errors import InvalidTimerError
from timers.wire.headers import SET, TOKEN, TRACE_HEADERS
from timers.wire.repeat import Repeat, RepeatError

MAX_BYTES = 16 * 1024 * 1024
MAX_NAMED = 20
"""So many wrong timers are named."""

EXAMPLE = """set: billing
timers:
  - {id: daily, repeat: {cron: "0 9 * * 1-5", zone: Europe/Paris}, topic: reports, value: ""}"""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
_TEXT = "tag:yaml.org,2002:"


class WantedSet(NamedTuple):
    """The timers that are to be set, and no others of their set."""

    name: str
    timers: dict[str, TimerRequest]
    """Id -> timer, whose rule comes again."""
    over: dict[str, str]
    """Id of a timer whose last moment has passed -> a sentence. It is not set, and not cancelled."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # it has no types
    """Reads what JSON can say. A date, ``no`` and ``0o7`` are texts, as they are in the fields of a timer."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node. An alias could make a text of gigabytes of a short file."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="an alias (*) is not read here", problem_mark=self.peek_event().start_mark
            )
        found: yaml.Node | None = super().compose_node(parent, index)
        return found

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The fields of a mapping, each of which is there once."""
        found: dict[str, Any] = {}
        for key, value in node.value:
            is_text = isinstance(key, yaml.ScalarNode)
            if not is_text or key.value in found:
                problem = f"the field {key.value!r} is there twice" if is_text else "the name of a field is no text"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            found[key.value] = self.construct_object(value, deep=True)
        return found


for _kind, _form, _first in (
    ("null", r"null|~|", ["n", "~", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", list("-0123456789")),
):
    _Loader.add_implicit_resolver(_TEXT + _kind, re.compile(rf"(?:{_form})\Z", re.ASCII), _first)


def read(text: bytes, now_ns: int, say: Callable[[str], object] = tell) -> WantedSet:
    """The set that a file names.

    Args:
        now_ns: epoch nanoseconds; each rule must come again after it.
        say: called with a sentence for a local time that is missing or comes twice.

    Raises:
        InvalidTimerError: it is none. The sentences name lines.
    """
    fields, lines = _load(text)
    if not isinstance(fields, dict) or fields.keys() != {"set", "timers"} or not isinstance(fields["timers"], list):
        raise InvalidTimerError(f"the file has not exactly the fields set and timers, a list; write\n{EXAMPLE}")
    name = fields["set"]
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidTimerError(
            f"set is {quoted(str(name)[:100])}: name the set with 1 to 100 letters, digits, dots, _ and -: billing"
        )
    timers: dict[str, TimerRequest] = {}
    over: dict[str, str] = {}
    wrong: list[str] = []
    for line, each in zip(lines, fields["timers"], strict=True):
        try:
            until_s = _over_s(each, now_ns, say)
            if until_s is not None:
                over[each["id"]] = f"line {line}: {each['id']} is over since {utc_text(until_s)}, and is not set"
                continue
            request = _timer(each, name, now_ns, lambda note, line=line: say(f"line {line}: {note}"))  # type: ignore[misc]
            assert request.id is not None
            if request.id in timers or request.id in over:
                raise InvalidTimerError(f"id {quoted(request.id)} is there twice")
            timers[request.id] = request
        except InvalidTimerError as error:
            wrong.append(f"line {line}: {error}")
    if wrong:
        more = [f"and {len(wrong) - MAX_NAMED} more"] if len(wrong) > MAX_NAMED else []
        raise InvalidTimerError("\n".join([f"nothing was changed, {len(wrong)} wrong:", *wrong[:MAX_NAMED], *more]))
    return WantedSet(name, timers, over)


def _load(text: bytes) -> tuple[Any, list[int]]:
    """What a file holds, and the line of each of its timers."""
    if len(text) > MAX_BYTES:
        raise InvalidTimerError(f"the file has more than {MAX_BYTES:,} bytes: make several sets of it")
    try:
        loader = _Loader(text.decode("utf-8-sig"))
        node = loader.get_single_node()
        fields = None if node is None else loader.construct_document(node)
    except UnicodeDecodeError as error:
        raise InvalidTimerError(f"the file is not UTF-8: byte {error.start}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise InvalidTimerError(f"the file is no YAML: {where}{error.problem}; write\n{EXAMPLE}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidTimerError(f"the file is no YAML: {error}; write\n{EXAMPLE}") from None
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    found = next((value for key, value in pairs if key.value == "timers"), None)
    return fields, [each.start_mark.line + 1 for each in found.value] if isinstance(found, yaml.SequenceNode) else []


def _over_s(fields: Any, now_ns: int, say: Callable[[str], object]) -> int | None:
    """The last moment of a timer that has passed; None: it has not, or the timer is wrong. A file that was right must
    not be refused only because time has passed."""
    if not isinstance(fields, dict) or not isinstance(fields.get("id"), str) or fields.get("repeat") is None:
        return None
    repeat = repeat_of(fields["repeat"], say)
    return repeat.until_s if repeat.until_s is not None and repeat.until_s <= now_ns // 10**9 else None


def _timer(fields: Any, name: str, now_ns: int, say: Callable[[str], object]) -> TimerRequest:
    if not isinstance(fields, dict):
        raise InvalidTimerError(f"a timer is a mapping with the fields id, repeat, topic and value; write\n{EXAMPLE}")
    if fields.get("repeat") is None or fields.get("id") is None:
        raise InvalidTimerError("a timer of a set has an id and a repeat, such as {every: 15m}")
    request = parse_fields(fields, now_ns, say)
    if not isinstance(request.id, str):
        raise InvalidTimerError(f'id {json.dumps(request.id)} is no text: write it in quotes, "{request.id}"')
    id_key(request.id)  # raises if it is not legal as the id of a timer
    headers = _pairs(request)
    if any(header == SET for header, _ in headers):
        raise InvalidTimerError(f"the header {SET} is that of the name of the set: leave it out")
    return request._replace(headers=[*headers, (SET, name)])


def _pairs(request: TimerRequest) -> list[tuple[str, Any]]:
    """The headers of a timer."""
    headers = request.headers or ()
    return [*(headers.items() if isinstance(headers, Mapping) else headers)]


# ---- what differs ---------------------------------------------------------------------------------------------------


def of_request(request: TimerRequest) -> dict[str, str]:
    """What a wanted timer is, as texts for people: name of a part -> content."""
    assert request.repeat is not None
    headers = [(name, _bytes(value)) for name, value in _pairs(request)]
    if request.token is not None:
        headers.append((TOKEN, _bytes(request.token)))
    return _parts(
        request.topic, _bytes(request.key), _bytes(request.value), headers, request.repeat.to_header().decode()
    )


def of_answer(timer: Mapping[str, Any]) -> dict[str, str]:
    """What a timer is that is set, as a worker says it with its value; see :func:`of_request`. One that does not repeat
    has its due second in place of a rule."""

    def content(value: Any) -> bytes | None:
        return base64.b64decode(value["base64"]) if isinstance(value, dict) else _bytes(value)

    value = base64.b64decode(timer["value"]) if "value" in timer else None
    headers = [(name, content(value)) for name, value in timer.get("headers", ())]
    rule = timer.get("repeat", "")
    with suppress(
        RepeatError
    ):  # another client may write the same in another way, or a newer one what is not known here
        rule = Repeat.of_header(rule.encode()).to_header().decode()
    found = _parts(timer.get("topic", ""), content(timer.get("key")), value, headers, rule)
    if "value" not in timer:
        del found["value"]
    return found if "repeat" in timer else {"due": str(timer.get("due_at", "")), **found}


def differences(now: Mapping[str, str] | None, wanted: Mapping[str, str]) -> list[str]:
    """The lines of a difference, as ``diff`` shows it; empty: there is none.

    Args:
        now: of :func:`of_answer`; None: nothing is set. Parts of which a worker shows nothing are not compared.
        wanted: of :func:`of_request`.
    """
    if now is None:
        return [f"+ {name}: {text}" for name, text in wanted.items()]
    known = {name: text for name, text in wanted.items() if name in now or _is_shown(name, now)}
    if "repeat.every" in known and "repeat.from" not in known:
        now = {name: text for name, text in now.items() if name != "repeat.from"}  # the second in which it was set
    if now == known:
        return []
    lines = []
    for name in dict.fromkeys([*known, *now]):
        before, after = now.get(name), known.get(name)
        if before == after:
            lines.append(f"  {name}: {before}")
        else:
            lines += [f"- {name}: {before}"] if before is not None else []
            lines += [f"+ {name}: {after}"] if after is not None else []
    return lines


def _is_shown(name: str, now: Mapping[str, str]) -> bool:
    return "value" in now or (name != "value" and not name.startswith("header "))


def _parts(
    topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], rule: str
) -> dict[str, str]:
    parts = {f"repeat.{name}": text for name, _, text in (each.partition("=") for each in rule.split("; ") if each)}
    parts |= {"topic": topic}
    parts |= {} if not key else {"key": _text(key)}
    parts |= {"value": _text(value or b"")}
    for name, content in headers:
        if name in TRACE_HEADERS:  # says who has set it, and not what it is
            continue
        number = sum(known.partition(" #")[0] == f"header {name}" for known in parts)
        parts[f"header {name}{f' #{number + 1}' if number else ''}"] = "null" if content is None else _text(content)
    return parts


def _bytes(content: Any) -> bytes | None:
    if content is None:
        return None
    return content.encode("utf-8", "surrogateescape") if isinstance(content, str) else bytes(content)


def _text(content: bytes) -> str:
    """Content as JSON, so that it is one line."""
    return json.dumps(json_value(content), ensure_ascii=False)
