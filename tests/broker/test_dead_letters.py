"""``timers dead-letters``: how it shows real dead letters, and that a retry publishes each request once."""

import base64
import io
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.letters import await_letters
from tests.harness.records import Headers, Publisher, Record, Request
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S, due_in
from timers.cli.main import main
from timers.core.timer import Rejected
from timers.errors import NameTakenError
from timers.offline.dead_letters.retrying import Retrier
from timers.wire import dead_letter, future

pytestmark = pytest.mark.broker

HEADERS: Headers = [("trace", b"1"), ("timer-id", b"forged"), ("trace", None), ("other", b"\x00\xff")]

Run = Callable[..., tuple[int, str, str]]


@dataclass
class Sent:
    """Dead letters of this module: three for a topic that does not exist, one without a value, and one without a value
    that is too large for the topic of dead letters."""

    nowhere: str
    unknown: list[str]
    """Sources; the first request has unusual bytes."""
    valueless: str
    huge: str
    letters: dict[str, Record]

    def position(self, source: str) -> str:
        letter = self.letters[source]
        return f"{letter.partition}/{letter.offset}"


UNUSUAL_VALUE = b"\x7a\x01x"
"""A field that ``Future`` does not have."""


def to_nowhere(system: System) -> tuple[str, list[str]]:
    """Request three timers for a topic that does not exist; returns its name and their sources."""
    nowhere = f"nowhere-{uuid.uuid4().hex[:8]}"
    due_s = due_in(1)
    publisher = system.publisher()
    first = publisher.send_raw(b"0%d" % due_s, future.encode(nowhere, "k-0", b"\xff") + UNUSUAL_VALUE, HEADERS, 1)
    others = publisher.send([Request(nowhere, due_s, f"k-{i}", b"v", partition=i) for i in (2, 3)])
    return nowhere, [first, *(other.source for other in others)]


@pytest.fixture(scope="module")
def sent(running: System) -> Sent:
    nowhere, unknown = to_nowhere(running)
    due_s = due_in(1)
    publisher = running.publisher(message_max_bytes=1_100_000)
    valueless = publisher.send_raw(b"%d" % due_s, None, HEADERS, 0)
    huge = publisher.send_raw(b"%d" % due_s, None, [("pad", b"p" * 1_065_300)], 2)
    return Sent(nowhere, unknown, valueless, huge, await_letters(running, {*unknown, valueless, huge}))


@pytest.fixture
def run(running: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command line on the system's broker: exit code, stdout, stderr."""
    running.use(monkeypatch)

    def command(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["dead-letters", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def test_a_list_by_topic_and_code(sent: Sent, run: Run) -> None:
    code, out, err = run("list", "--topic", sent.nowhere, "--code", "topic-unknown", "--since", "1h")
    assert code == 0, err
    assert err.endswith("3 dead letters: 3 topic-unknown\n")
    header, *rows = out.splitlines()
    assert header.split() == ["WRITTEN", "CODE", "POSITION", "SOURCE", "TOPIC", "DUE", "RETRIED", "AS"]
    assert {row.split()[3] for row in rows} == set(sent.unknown)
    for row in rows:
        _, code_shown, position, source, topic, _, retried = row.split()
        assert (code_shown, topic, retried) == ("topic-unknown", sent.nowhere, "-")
        assert position == sent.position(source)


def test_a_list_as_json_with_a_limit_and_an_end(sent: Sent, run: Run) -> None:
    code, out, err = run("list", "-t", sent.nowhere, "-n", "1", "-o", "json")
    assert code == 0
    assert err.endswith("3 dead letters: 3 topic-unknown, the newest 1 shown (--limit 0 shows all)\n")
    (row,) = map(json.loads, out.splitlines())
    letter = sent.letters[row["source"]]
    assert (row["topic"], row["code"], row["truncated"]) == (sent.nowhere, "topic-unknown", False)
    assert row["message"] == f"callback topic {sent.nowhere!r} does not exist"
    assert row["due_s"] == int(letter.key or b"")
    assert row["retried_as"] is None
    assert run("list", "-t", sent.nowhere, "--until", "2001-01-01T00:00:00Z")[1:] == ("", "0 dead letters\n")


def test_one_is_shown_whole_by_source_or_position(sent: Sent, run: Run) -> None:
    source = sent.unknown[0]
    letter = sent.letters[source]
    assert letter.value is not None and letter.key is not None
    code, by_source, _ = run("show", source)
    assert code == 0
    assert run("show", sent.position(source)) == (0, by_source, "")
    for said in ("topic-unknown", f"{sent.nowhere!r} does not exist", source, letter.key.decode(), "trace", "forged"):
        assert said in by_source
    assert f"request value, {len(letter.value)} bytes" in by_source
    assert letter.value.hex(" ")[:47] in by_source, "no text, so hexadecimal"
    shown = json.loads(run("show", source, "-o", "json")[1])["request"]
    assert base64.b64decode(shown["value"]["base64"]) == letter.value
    assert shown["key"] == letter.key.decode()
    assert shown["headers"] == [
        ["trace", "1"],
        ["timer-id", "forged"],
        ["trace", None],
        ["other", {"base64": base64.b64encode(b"\x00\xff").decode()}],
    ]


def test_a_truncated_dead_letter_is_shown_as_truncated(sent: Sent, run: Run) -> None:
    letter = sent.letters[sent.huge]
    assert (letter.key, letter.value, len(letter.headers)) == (None, None, 3), "the case is not the one meant"
    code, out, _ = run("show", sent.huge)
    assert code == 0
    assert "request     not here" in out
    assert json.loads(run("show", sent.huge, "-o", "json")[1])["truncated"] is True


def test_a_dead_letter_that_does_not_exist_gives_exit_code_1(running: System, run: Run) -> None:
    for name in (f"{running.request_topic}/0/999999", "0/999999", "99/0"):
        for arguments in (("show", name), ("retry", "--yes", name)):
            code, out, err = run(*arguments)
            assert (code, out) == (1, "")
            assert "no such dead letter" in err and err.count("\n") == 1


def test_a_request_that_would_fail_again_is_not_retried(sent: Sent, run: Run, running: System) -> None:
    code, out, err = run("retry", "--yes", sent.valueless)
    assert (code, out) == (1, "")
    assert "it would be rejected again: the record has no value" in err
    code, out, err = run("retry", "--yes", "--code", "value-missing", "--since", "1h")
    assert (code, out) == (0, "")
    assert "bound to be rejected again" in err
    # With --force it is published unchanged, and becomes a dead letter again.
    code, out, _ = run("retry", "--yes", "--force", sent.valueless)
    assert code == 0
    again = out.split()[-1]
    letter = await_letters(running, {again})[again]
    assert (letter.text("timer-error"), letter.value) == ("value-missing", None)
    assert letter.headers[: len(HEADERS)] == HEADERS


def test_a_truncated_dead_letter_is_retried_from_its_source(sent: Sent, run: Run, running: System) -> None:
    code, out, err = run("retry", "--yes", "--force", sent.huge)
    assert code == 0, err
    again = out.split()[-1]
    records = {f"{r.topic}/{r.partition}/{r.offset}": r for r in running.reader(running.request_topic).rest()}
    original, published = records[sent.huge], records[again]
    assert (published.key, published.value, published.headers) == (original.key, original.value, original.headers)
    assert published.partition == original.partition


def test_a_retry_asks_first_and_publishes_the_unchanged_request_once(
    run: Run, running: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere, unknown = to_nowhere(running)
    letters = await_letters(running, set(unknown))
    selection = ("--code", "topic-unknown", "--topic", nowhere)
    code, out, err = run("retry", *selection, "--dry-run")
    assert (code, out) == (0, "")
    assert err == "3 requests to publish again, 3 of them overdue: they fire at once\n"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    code, out, err = run("retry", *selection)
    assert (code, out.strip()) == (1, "")  # click asks with a space of its own
    assert "Publish 3 requests again? [y/N]" in err
    assert err.endswith("nothing was published again\n")

    running.create_topic(nowhere, 1)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    code, out, err = run("retry", *selection)
    assert code == 0, err
    assert err.endswith("3 requests published again\n")
    timer_ids = {}
    for line in out.splitlines():
        _, code_shown, source, _, timer_id = line.split()
        assert code_shown == "topic-unknown"
        timer_ids[source] = timer_id
        assert source.split("/")[:2] == timer_id.split("/")[:2], "on the partition that it came from"
    assert set(timer_ids) == set(unknown)

    reader = running.reader(nowhere)
    fired = {record.timer_id: record for record in reader.take(3)}
    assert set(fired) == set(timer_ids.values())
    first = fired[timer_ids[unknown[0]]]
    assert (first.key, first.value) == (b"k-0", b"\xff")
    assert first.headers[:3] == [("trace", b"1"), ("trace", None), ("other", b"\x00\xff")]
    requests = {f"{r.topic}/{r.partition}/{r.offset}": r for r in running.reader(running.request_topic).rest()}
    for source, timer_id in timer_ids.items():
        was, now = requests[source], requests[timer_id]
        assert (now.key, now.value, now.headers) == (was.key, was.value, was.headers)

    # All commands know from then on that it was retried.
    code, out, err = run("retry", *selection)
    assert (code, out) == (0, "")
    assert err == "0 requests to publish again\n3 left out: retried before\n"
    code, out, err = run("retry", unknown[0])
    assert (code, out) == (1, "")
    assert f"it was published again before, as {timer_ids[unknown[0]]}" in err
    rows = [json.loads(line) for line in run("list", *selection, "-o", "json")[1].splitlines()]
    assert {row["source"]: row["retried_as"] for row in rows} == timer_ids
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    code, out, err = run("retry", "--force", f"{letters[unknown[1]].partition}/{letters[unknown[1]].offset}")
    assert code == 0, err
    (twice,) = reader.take(1)
    assert twice.timer_id == out.split()[-1]
    running.wait_past(twice.due_s)
    assert reader.rest() == []


def test_a_second_retry_stops_the_first(sent: Sent, running: System) -> None:
    from timers.offline.dead_letters.letters import LetterFilter, LetterLog

    before = len(running.reader(running.request_topic).rest())
    first = Retrier(running.settings)
    Retrier(running.settings)
    with LetterLog(running.settings) as log:
        wanted = LetterFilter(names={sent.valueless})
        (letter,) = log.read(wanted, log.spans(wanted))
        with pytest.raises(NameTakenError, match=r"another `timers dead-letters retry` of .* has begun since"):
            first.publish([(letter, letter.request)])
    assert len(running.reader(running.request_topic).rest()) == before


def test_a_retry_after_an_interruption_and_a_kill_publishes_no_request_twice(system: System) -> None:
    """Also shows that thousands are no trouble. No worker runs: what counts stands in the request topic."""
    count = 6000
    system.create_own_topics()
    letters = Publisher(system.address, system.settings.dead_letter_topic)
    for number in range(count):
        rejected = Rejected(
            0, "topic-unknown", "it does not exist", b"%d" % number, future.encode("nowhere", "", b""), HEADERS
        )
        letter = dead_letter.encode(rejected, f"{system.request_topic}/{number % 4}/{number}", 10_000)
        letters.queue_raw(letter.key, letter.value, letter.headers, number % 4)
    letters.flush()

    def start() -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TIMERS_")}
        return subprocess.Popen(
            [sys.executable, "-m", "timers.cli.main", "dead-letters", "retry", "--all", "--yes"],
            env={**clean, **system.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        with start() as process:
            assert process.stdout is not None
            assert "->" in process.stdout.readline()
            process.send_signal(number)
            process.communicate(timeout=DEADLINE_S)
            assert process.returncode == code
    with start() as process:
        out, err = process.communicate(timeout=2 * DEADLINE_S)
    assert process.returncode == 0, err
    last = len(out.splitlines())
    assert 0 < last < count, "the case is not the one meant: the others had published all, or nothing"
    assert f"{count - last:,} left out: retried before" in err
    records = system.reader(system.request_topic).rest()
    assert sorted(int(record.key or b"") for record in records) == list(range(count))
    assert all(record.partition == int(record.key or b"") % 4 and record.headers == HEADERS for record in records)


def test_a_record_that_is_no_dead_letter_is_counted(
    system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system.create_own_topics()
    system.use(monkeypatch)
    topic = system.settings.dead_letter_topic
    Publisher(system.address, topic).send_raw(b"key", b"value", [("timer-error", b"x")], 0)
    for words in (["list"], ["retry", "--all", "--dry-run"]):
        assert main(["dead-letters", *words]) == 0
        assert f"records of {topic} that are no dead letters, and were left out: 1\n" in capsys.readouterr().err
