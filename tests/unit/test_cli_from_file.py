"""``timers schedule --from-file``: many timers from JSON lines, against librdkafka's mock cluster."""

import io
import json
import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.harness.command_line import Ran, Run
from timers.cli.main import main
from timers.cli.timers import schedule
from timers.client import Repeat, TimersClient, timer_lines
from timers.client.request import Encoder, TimerRequest
from timers.client.timer_lines import numbered, timers_in
from timers.errors import InvalidTimerError
from timers.wire.topics import ID_REQUEST, REQUEST

PARTITIONS = 4  # the mock cluster's own default
DUE_S = 1_800_000_000
NOW_NS = 1_700_000_000_000_000_000


def line(**fields: Any) -> str:
    return json.dumps({"topic": "orders", "value": "v", "at": DUE_S} | fields)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A mock cluster in which the request topics and the callback topic exist, without records."""
    host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    for topic in (REQUEST, ID_REQUEST, "orders"):
        address = next(iter(host.list_topics(topic, timeout=10).brokers.values()))
    monkeypatch.setenv("TIMERS_BROKERS", f"{address.host}:{address.port}")
    monkeypatch.setenv("TIMERS_ID_TOPIC", ID_REQUEST)
    monkeypatch.chdir(tmp_path)
    yield f"{address.host}:{address.port}"
    del host


def records(brokers: str) -> int:
    """Number of requests on both topics."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "test"})
    try:
        places = [TopicPartition(topic, each) for topic in (REQUEST, ID_REQUEST) for each in range(PARTITIONS)]
        return sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
    finally:
        consumer.close()


@pytest.fixture
def send(run: Run) -> Run:
    """Sends a file."""

    def send(text: str | bytes, *options: str) -> Ran:
        Path("timers.jsonl").write_bytes(text.encode() if isinstance(text, str) else text)
        return run("schedule", "--from-file", "timers.jsonl", *options)

    return send


# --- sending ---------------------------------------------------------------------------------------------------------


def test_each_line_is_a_timer_and_ids_are_printed_in_order(brokers: str, send: Run) -> None:
    text = "\n".join(
        [line(key="a"), "", line(id="order-17"), line(token="t", headers={"h": None}, delay="15m", at=None)]
    )
    before_s = time.time()
    code, out, err = send(text, "-o", "json")
    assert (code, err) == (0, "3 timers scheduled\n")
    shown = [json.loads(each) for each in out.splitlines()]
    assert [each["line"] for each in shown] == [1, 3, 4]
    assert [each["id"].rpartition("/")[0][:13] for each in shown] == [REQUEST, "", REQUEST]
    assert shown[1]["id"] == "order-17"
    assert (shown[0]["due"], shown[0]["due_at"]) == (DUE_S, "2027-01-15T08:00:00Z")
    assert before_s + 900 <= shown[2]["due"] <= time.time() + 901
    assert records(brokers) == 3

    code, out, _ = send(text)
    assert code == 0
    assert [each.count("/") for each in out.splitlines()] == [2, 0, 2], "as text: the ids"


def test_lines_come_from_standard_input(
    brokers: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = io.BytesIO("\n".join(line(topic=None, key=str(number)) for number in range(1000)).encode())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=data, isatty=lambda: False))
    assert main(["schedule", "--topic", "orders", "--from-file", "-"]) == 2, "null is no topic"
    data = io.BytesIO("\n".join(f'{{"value": "", "delay": {number}}}' for number in range(1000)).encode())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=data, isatty=lambda: False))
    capsys.readouterr()
    assert main(["schedule", "--topic", "orders", "--from-file", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1000
    assert records(brokers) == 1000


def test_a_wrong_line_sends_nothing_and_each_one_is_named(brokers: str, send: Run) -> None:
    wrong = [line(at=900), '{"topic": "orders"', line(valeu="x"), line(topic="a b")]
    code, out, err = send("\n".join([line(), *wrong, line()]))
    assert (code, out) == (2, "")
    said = err.splitlines()
    assert [each.partition(":")[0] for each in said[:4]] == ["line 2", "line 3", "line 4", "line 5"]
    assert "did you mean delay=900" in said[0]
    assert "this is no JSON object" in said[1]
    assert "there is no field 'valeu': did you mean 'value'?" in said[2]
    assert "'a b' is not a legal topic name" in said[3]
    assert said[4:] == ["timers: 4 of 6 lines are no timers; nothing was sent: correct these lines and run it again"]
    assert records(brokers) == 0


def test_a_rule_that_would_make_requests_is_a_wrong_line(brokers: str, send: Run) -> None:
    rule = line(at=None, id="r", topic=REQUEST, repeat={"every": 60})
    code, out, err = send("\n".join([line(), rule]))
    assert (code, out) == (2, "")
    assert err.startswith(f"line 2: callback topic '{REQUEST}' is one of the engine")
    assert records(brokers) == 0


def test_a_rule_that_ends_after_the_check_is_named_and_the_ids_before_it_are_printed(
    brokers: str, send: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join([line(id="a"), "", line(id="r", at=None, repeat={"every": 60}), line(id="b")])
    many = TimersClient.schedule_many

    def late(client: TimersClient, requests: Iterator[TimerRequest]) -> list[str]:
        over = Repeat.every(60, until=1_000)
        return many(client, (each._replace(repeat=over) if each.repeat else each for each in requests))

    monkeypatch.setattr(TimersClient, "schedule_many", late)
    code, out, err = send(text)
    assert (code, out) == (1, "a\n")
    assert "line 3: until=1000 has passed" in err
    assert err.endswith("The brokers confirmed all timers but those of lines 3, 4\n")
    assert records(brokers) == 1


def test_a_rule_that_ends_after_it_was_sent_is_shown(brokers: str, send: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    many, time_s = TimersClient.schedule_many, time.time
    until_s = int(time_s()) + 3600

    def slow(client: TimersClient, requests: Iterator[TimerRequest]) -> list[str]:
        ids = many(client, requests)
        monkeypatch.setattr(time, "time", lambda: time_s() + 7200)
        return ids

    monkeypatch.setattr(TimersClient, "schedule_many", slow)
    code, out, _ = send(line(id="r", at=None, repeat={"every": 60, "until": until_s}), "-o", "json")
    assert code == 0
    assert time_s() < json.loads(out)["due"] <= time_s() + 61


def test_the_help_names_each_field() -> None:
    assert [name for name in timer_lines._FIELDS if not re.search(rf"\b{name}\b", schedule.help or "")] == []


def test_an_id_that_comes_twice_is_said(brokers: str, send: Run) -> None:
    code, out, err = send("\n".join([line(id="a"), line(id="b"), line(id="a")]))
    assert (code, out.split()) == (0, ["a", "b", "a"])
    assert err.splitlines()[0] == "line 3 replaces line 1, which has the same id 'a'"


def test_of_many_wrong_lines_the_first_are_shown(brokers: str, send: Run) -> None:
    _, _, err = send("x\n" * 1000)
    assert len(err.splitlines()) == 21
    assert "1,000 of 1,000 lines are no timers, the first 20 are shown; nothing was sent" in err


def test_ids_need_a_topic_before_anything_is_sent(brokers: str, send: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERS_ID_TOPIC", "")
    code, out, err = send("\n".join([line(), line(id="order-17")]))
    assert (code, out) == (2, "")
    assert "TIMERS_ID_TOPIC is empty" in err
    assert records(brokers) == 0


def test_ctrl_c_says_how_many_timers_may_be_scheduled(brokers: str, send: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: TimersClient, requests: Iterator[TimerRequest]) -> list[str]:
        for _request in islice(requests, 2):
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr(TimersClient, "schedule_many", interrupted)
    code, out, err = send("\n".join([line()] * 5))
    assert (code, out, err.strip()) == (130, "", "interrupted: the first 2 timers may be scheduled")


def test_an_empty_file_and_missing_topics(brokers: str, send: Run) -> None:
    assert send("\n\n") == (0, "", "0 timers scheduled\n")
    code, _, err = send("\n".join([line(topic="nowhere"), line(), line(topic="nowhere")]))
    assert code == 0
    assert err.count("topic 'nowhere' does not exist") == 1
    assert "'orders' does not exist" not in err


@pytest.mark.parametrize("also", [["--in", "5s"], ["--value", "x"], ["--id", "x"], ["-H", "a=b"], ["-"]])
def test_options_of_one_timer_are_refused(brokers: str, send: Run, also: list[str]) -> None:
    code, out, err = send(line(), *also)
    assert (code, out) == (2, "")
    assert "--from-file goes with --topic, --create-topic and -o only" in err


def test_a_missing_file_is_wrong_usage(brokers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "--from-file", "no-such-file"]) == 2
    assert "no-such-file" in capsys.readouterr().err


# --- one line ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"value": "", "at": 1800000000}', TimerRequest("t", None, b"", DUE_S, headers=[])),
        ('{"value": "", "at": "2027-01-15T08:00:00Z"}', TimerRequest("t", None, b"", DUE_S, headers=[])),
        ('{"value": "", "delay": 1.5}', TimerRequest("t", None, b"", 1_700_000_002, headers=[])),
        (
            '{"value": {"b": [1, "ü", null], "base64": "x"}, "delay": "1h"}',
            TimerRequest("t", None, '{"b":[1,"ü",null],"base64":"x"}'.encode(), 1_700_003_600, headers=[]),
        ),
        ('{"value": [], "delay": "1h"}', TimerRequest("t", None, b"[]", 1_700_003_600, headers=[])),
        ('{"value": "", "delay": "1h"}', TimerRequest("t", None, b"", 1_700_003_600, headers=[])),
        (
            '{"topic": "o", "key": {"base64": "/w=="}, "value": {"base64": "/wA="}, "delay": 0, "id": "i", "token":'
            ' "k", "headers": [["a", "1"], ["a", null], ["b", {"base64": "/w=="}]]}',
            TimerRequest(
                "o", b"\xff", b"\xff\0", 1_700_000_000, None, [("a", "1"), ("a", None), ("b", b"\xff")], "k", "i"
            ),
        ),
    ],
)
def test_a_line_is_read(text: str, expected: TimerRequest) -> None:
    found = parse_line(text.encode(), "t")
    assert found == expected
    Encoder(1000)(found)


@pytest.mark.parametrize("digits", ["99999999999999999.99", "10.50", "1e5", "-0.0", "0.1", "3.00e+2", "7" * 40])
def test_the_digits_of_a_number_stay(digits: str) -> None:
    request = parse_line(f'{{"delay": 1.5, "value": {{"amount": {digits}, "of": [[{digits}]]}}}}'.encode(), "t")
    assert isinstance(request, TimerRequest)
    assert request.value == f'{{"amount":{digits},"of":[[{digits}]]}}'.encode()
    assert request.at == NOW_NS // 10**9 + 2


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        (b"\xff", "this is no JSON object"),
        ('{"topic": "t", "value": "Grüße"}'.encode("latin-1"), "this is no JSON object (byte 27 is not UTF-8)"),
        ('{"topic": "t", "value": "v", "delay": 5}'.encode("utf-16-le"), "this is no JSON object"),
        (b'{"topic": "t", "value": "\xed\xa0\x80", "delay": 5}', "this is no JSON object (byte 25 is not UTF-8)"),
        (b"[" * 100_000, "this is no JSON object"),
        (b"[]", "this is no JSON object, but a list"),
        (b"5", "this is no JSON object, but a number"),
        (b'{"value": "a", "value": "b", "delay": 1}', "a field is given twice"),
        (b'{"delay": 1}', "there is no value"),
        (b'{"value": 5, "delay": 1}', 'value is a number: give a text, or {"base64": "..."}'),
        (b'{"value": {"a": 1e999}, "delay": 1}', "value cannot be sent as JSON"),
        (b'{"value": ["\\ud800"], "delay": 1}', "value cannot be sent as JSON"),
        (b'{"value": {"base64": "?"}, "delay": 1}', "value is no base64"),
        (b'{"value": {"base64": 5}, "delay": 1}', "value is no base64"),
        (b'{"value": "", "key": true, "delay": 1}', "key is true or false"),
        (b'{"value": ""}', "no due time"),
        (b'{"value": "", "delay": 1, "at": 1800000000}', "two due times"),
        (b'{"value": "", "delay": NaN}', "is not a time span"),
        (b'{"value": "", "delay": "soon"}', "is not a duration"),
        (b'{"value": "", "delay": true}', "is not a time span"),
        (b'{"value": "", "delay": 1e999}', "is not a time span"),
        (b'{"value": "", "at": "900"}', "did you mean delay=900"),
        (b'{"value": "", "at": 1735689600123}', "did you mean 1735689601?"),
        (b'{"value": "", "delay": 1, "headers": "a"}', "headers is not"),
        (b'{"value": "", "delay": 1, "headers": [["a"]]}', "headers is not"),
        (b'{"value": "", "delay": 1, "headers": {"a": 1}}', "header 'a' is a number"),
        (b'{"value": "", "delay": 1, "nonsense": 1}', "there is no field 'nonsense': the fields are topic, key"),
    ],
)
def test_a_wrong_line_is_refused_with_a_sentence(text: bytes, expected_text: str) -> None:
    with pytest.raises(InvalidTimerError) as caught:
        parse_line(text, "t")
    assert expected_text in str(caught.value)


@pytest.mark.parametrize(
    "fields", [{"key": "\ud800"}, {"token": ""}, {"token": 5}, {"id": 5}, {"topic": 5}, {"headers": {"timer-id": "x"}}]
)
def test_what_the_client_refuses_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidTimerError):
        Encoder(1000)(parse_line(line(**fields).encode(), None))


def read(text: bytes) -> tuple[list[tuple[int, TimerRequest | InvalidTimerError]], list[str]]:
    """The timers of a file, and what was said."""
    said: list[str] = []
    return list(timers_in(text.splitlines(keepends=True), "t", NOW_NS, said.append)), said


def parse_line(text: bytes, topic: str | None) -> TimerRequest:
    [(_, found)] = timers_in([text], topic, NOW_NS, print)
    if isinstance(found, InvalidTimerError):
        raise found
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"value,at\nv,1800000000\n", TimerRequest("t", None, "v", DUE_S, headers=[])),
        (b"\xef\xbb\xbfvalue;at\r\nv;1800000000\r\n", TimerRequest("t", None, "v", DUE_S, headers=[])),
        (b"value\tdue\nv\t2027-01-15T08:00:00Z\n", TimerRequest("t", None, "v", DUE_S, headers=[])),
        (b"value,at\nv,2027-01-15 09:00 Europe/Berlin\n", TimerRequest("t", None, "v", DUE_S, headers=[])),
        (b"value,delay,key,topic\n,90,,\n", TimerRequest("t", None, b"", 1_700_000_090, headers=[])),
        (b"value, delay\nv, 90 \n", TimerRequest("t", None, "v", 1_700_000_090, headers=[])),
        (b"value, at\nv, 2027-01-15 09:00 Europe/Berlin \n", TimerRequest("t", None, "v", DUE_S, headers=[])),
        (b"value,delay\n,1h\n", TimerRequest("t", None, b"", 1_700_003_600, headers=[])),
        (
            b'topic,key,value,at,id,token,headers\no,k,"a, ""b""\nc",1800000000,i,tok,"{""n"": ""1""}"\n',
            TimerRequest("o", "k", 'a, "b"\nc', DUE_S, None, [("n", "1")], "tok", "i"),
        ),
        (b"value,at\n" + b"v" * 200_000 + b",1800000000\n", TimerRequest("t", None, "v" * 200_000, DUE_S, headers=[])),
    ],
)
def test_a_row_of_csv_is_read(text: bytes, expected: TimerRequest) -> None:
    assert read(text) == ([(2, expected)], [])


def test_each_bad_row_of_csv_is_named_with_the_line_where_it_begins() -> None:
    text = (
        b'key,value,at\nk1,"two\nlines",1800000000\n\nk2,v\nk3,v,soon\nk4,\xe9,1800000000\n,,\n'
        b'k5,v,2027-03-28T02:30:00 Europe/Berlin\nk6,v,1,1\nk7,"v"x,1800000000\nk8,v,1800000000\n'
    )
    timers, said = read(text)
    assert [(number, timer.key) for number, timer in timers if isinstance(timer, TimerRequest)] == [
        (2, "k1"),
        (9, "k5"),
        (12, "k8"),
    ]
    bad = {number: str(timer) for number, timer in timers if isinstance(timer, InvalidTimerError)}
    assert list(bad) == [5, 6, 7, 10, 11]
    assert bad[5].startswith("this row has 2 cells, and the header line has 3")
    assert bad[6].startswith("'soon' is not a time")
    assert bad[7] == "value '\\xe9' is not UTF-8: save the file as UTF-8"
    assert bad[10].startswith("this row has 4 cells")
    assert bad[11].startswith("this is no row of CSV:")
    assert said == [
        "line 9: there is no 2027-03-28T02:30:00 in Europe/Berlin, where clocks are set forward: the first second "
        "after is 2027-03-28T03:00:00+02:00"
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"value,at,due\nv,1800000000,1900000000\n", "the column 'at' is there twice (`due` is another name of `at`)"),
        (b"value,at,value\nv,1800000000,w\n", "the column 'value' is there twice: keep one of them"),
        (b"orders,o-17,unpaid,1800000000\n", "'orders,o-17,unpaid,1800000000' is neither a JSON object nor the first"),
        (b"Topic;Key;Value;At\n", "'Topic;Key;Value;At' is neither a JSON object nor the first line of CSV"),
        (b"sep=;\ntopic;value;at\n", "'sep=;' is neither a JSON object nor the first line of CSV"),
        ("topic,value,at\n".encode("utf-16"), "'\ufffd"),
        (b"value,at\rv,1800000000\r", "this is neither JSON nor CSV (new-line character seen in unquoted field"),
    ],
)
def test_a_wrong_header_line_is_named(text: bytes, sentence: str) -> None:
    [(number, error)] = timers_in(io.BytesIO(text), None, NOW_NS, print)
    assert number == 1 and str(error).startswith(sentence)


def test_a_wrong_column_is_named_for_each_row() -> None:
    [(_, error)], _ = read(b"value,at,topik\nv,1800000000,o\n")
    assert str(error) == "there is no field 'topik': did you mean 'topic'?"


def test_lines_are_counted_with_blank_ones_and_a_byte_order_mark_is_skipped() -> None:
    text = [b"\xef\xbb\xbf{}\r\n", b"\r\n", b"  \n", b"{}\n", b"{}"]
    assert list(numbered(text)) == [(1, b"{}\r\n"), (4, b"{}\n"), (5, b"{}")]
