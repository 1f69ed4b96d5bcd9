"""Requests that aiokafka lacks: their bytes stay the same, and what is read of an answer.

``kafka_requests.json`` has what a request and an answer consist of, and their bytes. Each field has a value that no
other one has. The bytes are those with which the tests with brokers of each version have passed.
"""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from timers.kafka.aiokafka_internals import open_transactions, other_groups
from timers.kafka.aiokafka_internals.requests import OneVersion, layout

CASES = json.loads(
    Path(__file__).with_name("kafka_requests.json").read_text(),
    object_hook=lambda found: bytes.fromhex(found["bytes"]) if found.keys() == {"bytes"} else found,
)
OF_PRODUCT = {each.__name__: each for each in OneVersion.__subclasses__() if each.__module__.startswith("timers.")}


def as_json(value: Any) -> Any:
    """A value of an answer, with lists in place of tuples."""
    if isinstance(value, dict):
        return {str(name): as_json(each) for name, each in value.items()}
    return [as_json(each) for each in value] if isinstance(value, list | tuple) else value


def test_each_request_has_a_case() -> None:
    assert {open_transactions.__name__, other_groups.__name__} < {each.__module__ for each in OF_PRODUCT.values()}
    assert [case["name"] for case in CASES] == sorted(OF_PRODUCT, key=lambda name: (OF_PRODUCT[name].API_KEY, name))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_bytes_of_a_request_and_what_is_read_of_its_answer(case: dict[str, Any]) -> None:
    request = OF_PRODUCT[case["name"]](*case["fields"]).prepare({case["key"]: (case["version"],) * 2})
    assert request.build_request_header(1, "c").encode().hex() == case["header"]
    assert request.encode().hex() == case["request"]
    answer = request.RESPONSE_TYPE.decode(bytes.fromhex(case["answer"]))
    assert as_json(answer.to_object()) == case["read"]


def test_a_structure_that_is_missing_is_none() -> None:
    read = layout("before int8, it ?{number int16}, after int8", is_flexible=False)
    assert read.decode(BytesIO(b"\1\1\0\7\2")) == (1, (7,), 2)
    assert read.decode(BytesIO(b"\1\xff\2")) == (1, None, 2)
