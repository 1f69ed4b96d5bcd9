"""The command line: output, error sentences and exit codes, with librdkafka's mock cluster."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.harness.command_line import Run
from timers.cli.run import faust_command, last_error
from timers.errors import TimersError
from timers.kafka import topic_admin
from timers.process.config.settings import Settings
from timers.wire.topics import REQUEST


@pytest.fixture(scope="module")
def cluster() -> Iterator[Producer]:
    host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    for topic in (REQUEST, "orders"):
        host.list_topics(topic, timeout=10)  # the mock cluster creates what is asked for
    yield host
    del host


@pytest.fixture(autouse=True)
def environment(cluster: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = next(iter(cluster.list_topics(timeout=10).brokers.values()))
    monkeypatch.setenv("TIMERS_BROKERS", f"{address.host}:{address.port}")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


# --- all commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_all_commands_and_a_first_example(run: Run, option: str) -> None:
    code, out, _ = run(option)
    assert code == 0
    for word in (
        "schedule",
        "watch",
        "dead-letters",
        "run",
        "worker",
        "broker",
        "settings",
        "TIMERS_BROKERS",
        "130 Ctrl-C",
    ):
        assert word in out


@pytest.mark.parametrize(
    "command", ["schedule", "cancel", "watch", "dead-letters", "run", "worker", "broker", "settings"]
)
def test_every_command_has_help(run: Run, command: str) -> None:
    code, out, _ = run(command, "-h")
    assert code == 0
    assert out.startswith(f"Usage: timers {command}")


def test_help_loads_no_heavy_library() -> None:
    heavy = "confluent_kafka faust aiokafka rocksdict jgo google.protobuf"
    show = f"print([name for name in '{heavy}'.split() if name in sys.modules])"
    code = f"import sys; from timers.cli.main import main; main(['-h']); {show}"
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert out.stdout.splitlines()[-1] == "[]"


def test_version(run: Run) -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert re.fullmatch(r"timers \d+\.\d+\S*\n", out)


SCHEDULE = ["schedule", "--topic", "orders", "--key", "o-1"]
REFUSED: list[tuple[list[str], list[tuple[list[str], str]]]] = [
    (
        [],
        [
            (["shedule"], "No such command 'shedule': did you mean 'schedule'?"),
            (["queue", "redrives"], "No such command 'redrives': did you mean 'redrive'?"),
            (["targets", "puase", "mails"], "No such command 'puase': did you mean 'pause'?"),
            (["dead-letters", "retyr"], "No such command 'retyr': did you mean 'retry'?"),
            (["spark", "audits", "--all"], "No such command 'audits': did you mean 'audit'?"),
            (["xyz"], "No such command 'xyz'"),
        ],
    ),
    (
        SCHEDULE,
        [
            (["--value", "x"], "give one of --in DURATION, --at TIME"),
            (["--value", "x", "--in", "5s", "--at", "5"], "give one of --in DURATION, --at TIME"),
            (["--in", "5s"], "give one of --value TEXT, --file PATH and - (standard input)"),
            (["--in", "5s", "--value", "x", "-"], "give one of --value TEXT, --file PATH and - (standard input)"),
            (["--in", "5s", "--value", "x", "--header", "novalue"], "--header 'novalue' is not NAME=VALUE"),
            (["--in", "5s", "--value", "x", "--header", "timer-id=1"], "timer-* belongs to the engine"),
            (["--in", "5", "--value", "x"], "'5' is not a duration (did you mean 5s?)"),
            (["--at", "1735689600123", "--value", "x"], "did you mean 1735689601?"),
            (["--at", "900", "--value", ""], "did you mean --in 900s?"),
        ],
    ),
    (["queue", "send", "jobs"], [(["--at", "900", "--value", ""], "did you mean --in 900s?")]),
    (["queue", "send", "queue.a-returns", "--create-topic"], [(["--value", ""], "'queue.a-returns' is internal")]),
    (
        ["schedule", "--topic", "queue.a-returns", "--create-topic"],
        [(["--in=1s", "--value="], "a-returns' is internal")],
    ),
    (
        ["watch"],
        [
            ([], "say which: TOPIC, or --since"),
            (["--from-beginning"], "say which: TOPIC, or --since"),
            (["orders", "--from-beginning", "--since", "1h"], "--from-beginning goes with TOPIC, and without --since"),
            (["--since", "yesterday"], "'yesterday' is not a time"),
        ],
    ),
    (
        ["dead-letters"],
        [
            (["retry"], "say which, in one way: NAME..., or options such as --code and --topic, or --all"),
            (["retry", "2/17", "--all"], "say which, in one way"),
            (["retry", "2/17", "--since", "1h"], "say which, in one way"),
            (["retry", "--all"], "without a terminal this command cannot ask: add --yes, or --dry-run to see"),
            (["retry", "seventeen"], "'seventeen' is neither a position nor a source of a dead letter"),
            (["list", "--code", "nonsense"], "'nonsense' is not one of 'key-missing'"),
            (["list", "--since", "yesterday"], "'yesterday' is not a time"),
            (["list", "--since", "5x"], "'5x' is not a time"),
            (["show"], "Missing argument 'NAME'"),
        ],
    ),
    (
        ["topics", "create"],
        [
            ([], "say which: the names of topics, or --engine"),
            (["--engine", "orders"], "say which: the names of topics, or --engine"),
            (["--engine", "--compacted"], "say which: the names of topics, or --engine"),
            (["a b"], "'a b' is not a legal topic name"),
            (["orders", "timer-request"], "is a topic of the engine (TIMERS_REQUEST_TOPIC): start a worker"),
            (["queue.jobs-returns"], "is internal, as all names of the form 'queue.*-returns' are"),
            (["x-progress"], "is internal, as all names of the form '*-progress' are"),
        ],
    ),
    (
        ["acls"],
        [
            ([], "say whose they are: --principal User:NAME"),
            (["--principal", "User:a", "--callback-topic", "a b"], "'a b' is not a legal topic name"),
            (["--principal", "ada"], "'ada' is not TYPE:NAME, such as User:timers"),
            (["--principal", "User:a", "--for", "queue"], "'queue' is not one of"),
        ],
    ),
]
"""Command -> arguments that it refuses, and a part of its sentence."""


@pytest.mark.parametrize(
    ("args", "said"), [([*command, *args], said) for command, each in REFUSED for args, said in each]
)
def test_a_refusal_exits_with_2_and_a_sentence(run: Run, args: list[str], said: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(
    "args", [["nonsense"], ["schedule"], ["watch"], ["settings", "--nonsense"], ["watch", "a b"], ["run", "-t", "a b"]]
)
def test_wrong_usage_exits_with_2(run: Run, args: list[str]) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert "Error: " in err


def test_a_wrong_setting_exits_with_2(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERS_WEB_PORT", "eighty")
    sentence = "timers: TIMERS_WEB_PORT='eighty' is not a whole number between 1 and 65535 (try 6066)\n"
    for args in (["settings"], ["worker"], ["watch", "orders"], ["run"]):
        assert run(*args) == (2, "", sentence)


def test_a_closed_output_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "timers.cli.main", "settings"]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_shows_values_and_sources(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERS_PARTITIONS", "12")
    _, out, _ = run("settings")
    assert "TIMERS_PARTITIONS=12   (environment)" in out
    assert "TIMERS_APP_ID=timers   (default)" in out
    _, out, _ = run("settings", "-o", "json")
    rows = {row["variable"]: row for row in map(json.loads, out.splitlines())}
    assert (rows["TIMERS_PARTITIONS"]["value"], rows["TIMERS_PARTITIONS"]["source"]) == ("12", "environment")
    assert all(row["why"] for row in rows.values())


# --- schedule --------------------------------------------------------------------------------------------------------


def test_schedule_prints_the_due_time_and_the_id(run: Run) -> None:
    code, out, err = run(*SCHEDULE, "--at", "2100-01-01T00:00:00Z", "--value", "x", "-H", "a=b=c")
    assert (code, err) == (0, "")
    due, timer_id = out.splitlines()
    assert due.startswith("due 2100-01-01T00:00:00Z (4102444800, in ")
    assert re.fullmatch(r"timer-request/\d/\d+", timer_id)


def test_schedule_accepts_a_delay_and_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(b"\xff\x00")
    before = time.time()
    code, out, _ = run(*SCHEDULE, "--in", "1h30m", "--file", "value")
    assert code == 0
    due_s = int(re.findall(r"\((\d+),", out)[0])
    assert before + 5400 <= due_s <= time.time() + 5401


def test_schedule_without_a_key_asks_for_a_callback_without_a_key(run: Run) -> None:
    code, out, _ = run("schedule", "--topic", "orders", "--in", "1d", "--value", "x")
    assert code == 0
    topic, partition, offset = out.split()[-1].split("/")
    consumer = Consumer({"bootstrap.servers": os.environ["TIMERS_BROKERS"], "group.id": "test"})
    consumer.assign([TopicPartition(topic, int(partition), int(offset))])
    message = consumer.poll(10)
    consumer.close()
    assert message is not None and message.headers() == [("timer-key", None)]


def test_schedule_sends_the_bytes_of_its_arguments(run: Run) -> None:
    """Whatever the locale says, and also if they are not UTF-8."""
    sent = [os.fsdecode(each) for each in ("ü".encode(), b"k\xff", b"a=\xfe\xfd")]
    code, out, err = run("schedule", "-t", "orders", "--in", "1d", "-v", sent[0], "-k", sent[1], "-H", sent[2])
    assert (code, err) == (0, "")
    topic, partition, offset = out.split()[-1].split("/")
    consumer = Consumer({"bootstrap.servers": os.environ["TIMERS_BROKERS"], "group.id": "test"})
    consumer.assign([TopicPartition(topic, int(partition), int(offset))])
    message = consumer.poll(10)
    consumer.close()
    assert message is not None and message.headers() == [("a", b"\xfe\xfd"), ("timer-key", b"k\xff")]
    assert "ü".encode() in (message.value() or b"")


def test_schedule_accepts_a_past_time_with_a_warning(run: Run) -> None:
    code, out, _ = run(*SCHEDULE, "--at", "1000000005", "--value", "")
    assert code == 0
    assert "due 2001-09-09T01:46:45Z (1000000005, in the past: it fires at once)" in out


def test_schedule_warns_of_a_topic_that_does_not_exist(run: Run) -> None:
    code, out, err = run("schedule", "--topic", "nowhere", "--key", "", "--value", "", "--in", "1d")
    assert code == 0
    assert out.splitlines()[-1].startswith("timer-request/")
    assert "topic 'nowhere' does not exist" in err
    assert "--create-topic" in err


def test_schedule_prints_the_id_though_the_topic_may_not_be_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> list[str]:
        raise TimersError("topic 'orders' cannot be described: Topic authorization failed")

    monkeypatch.setattr(topic_admin, "missing", denied)
    code, out, err = run("schedule", "--topic", "orders", "--key", "", "--value", "", "--in", "1d")
    assert code == 0
    assert out.splitlines()[-1].startswith("timer-request/")
    assert "not checked whether the callback topics exist: topic 'orders' cannot be described" in err


def test_a_missing_request_topic_exits_with_1_and_advice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERS_REQUEST_TOPIC", "no-such-topic")
    code, _, err = run(*SCHEDULE, "--in", "5s", "--value", "x")
    assert code == 1
    assert re.fullmatch(
        r"timers: topic 'no-such-topic' does not exist at \S+: start a worker \(or the engine on Spark\).*\n",
        err,
    )


# --- watch -----------------------------------------------------------------------------------------------------------


def test_watch_prints_a_line_for_each_record(run: Run, cluster: Producer) -> None:
    headers = [("timer-due", b"1800000000"), ("timer-id", b"timer-request/0/1")]
    for key in ("o-1", "o-2"):
        cluster.produce("watched", b"v", key, headers=[*headers], timestamp=1_800_000_000_007)
    cluster.produce("watched", b"v", "plain")
    assert cluster.flush(10) == 0
    code, out, err = run("watch", "watched", "--from-beginning", "--count", "3")
    assert (code, err) == (0, "")
    lines = sorted(out.splitlines())
    shown = "due=1800000000 lag_ms=7 at=2027-01-15T08:00:00.007Z value=v"
    assert lines[:2] == [f"fired topic=watched key={key} {shown}" for key in ("o-1", "o-2")]
    assert lines[2].startswith("record topic=watched key=plain partition=")
    _, out, _ = run("watch", "watched", "--from-beginning", "--count", "3", "-o", "json")
    assert {json.loads(line)["key"] for line in out.splitlines()} == {"o-1", "o-2", "plain"}


# --- dead letters (broker tests cover their effects) -----------------------------------------------------------------


def test_a_missing_dead_letter_topic_exits_with_1_and_advice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERS_DEAD_LETTER_TOPIC", "no-such-dead-letters")
    code, _, err = run("dead-letters", "list")
    assert code == 1
    assert "topic 'no-such-dead-letters' does not exist at" in err and "has a worker run there" in err


# --- acls (tests/broker/test_provision.py creates some) ---------------------------------------------------------------


def test_acls_prints_a_command_for_each_resource(run: Run) -> None:
    code, out, _ = run("acls", "--principal", "User:ada", "--for", "engine", "--callback-topic", "orders")
    lines = out.splitlines()
    assert code == 0 and all(
        line.startswith("kafka-acls.sh --bootstrap-server ") and "--add --allow-principal User:ada --" in line
        for line in lines
    )
    said = {line.split(" User:ada ")[1] for line in lines}
    assert "--group timers-engine --operation Read --operation Describe" in said
    assert "--topic orders --operation Write --operation DescribeConfigs" in said
    assert "--transactional-id timers- --resource-pattern-type prefixed --operation Write" in said
    resources = [line.split(" --operation")[0] for line in said]
    assert len(set(resources)) == len(resources)


def test_acls_with_output_json(run: Run) -> None:
    code, out, _ = run("acls", "--principal", "User:ada", "--for", "console", "-o", "json")
    first = json.loads(out.splitlines()[0])
    assert code == 0 and first == {
        "principal": "User:ada",
        "resource": "topic",
        "name": "timer-request",
        "prefixed": False,
        "operations": ["Read", "Write", "DescribeConfigs"],
    }


def test_a_console_may_create_the_callback_topics_that_are_named(run: Run) -> None:
    _, out, _ = run("acls", "--principal", "User:ada", "--for", "console", "--callback-topic", "orders")
    assert "--topic orders --operation Read --operation Create" in {
        line.split(" User:ada ")[1] for line in out.splitlines()
    }


def test_the_acls_of_a_relay(run: Run) -> None:
    code, out, _ = run("acls", "--principal", "User:ada", "--for", "relay", "--callback-topic", "orders")
    assert code == 0 and [line.split(" User:ada ")[1] for line in out.splitlines()] == [
        "--topic timer-request-by-id --operation Read --operation Write --operation DescribeConfigs",
        "--topic orders --operation Describe",
    ]


# --- worker ----------------------------------------------------------------------------------------------------------


def test_the_worker_command_runs_faust() -> None:
    settings = Settings.load({"TIMERS_WEB_PORT": "7001"})
    faust = [sys.executable, "-m", "timers.worker", "-A", "timers.app", "worker"]
    assert faust_command((), settings) == [*faust, "-l", "info", "--web-port", "7001"]
    json_log = faust_command((), Settings.load({"TIMERS_LOG_FORMAT": "json"}))
    assert json_log.index("--quiet") < json_log.index("worker"), "an option of Faust, not of its worker"
    given = ("--loglevel=debug", "-p", "7002", "--without-web")
    assert faust_command(given, settings) == [*faust, *given]


def test_a_taken_port_is_reported_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("TIMERS_WEB_PORT", str(port))
        for command in ("worker", "run"):
            code, _, err = run(command)
            assert code == 2
            assert err.startswith(f"timers: TIMERS_WEB_PORT={port} cannot be listened on")


@pytest.mark.parametrize(
    ("log", "expected_text"),
    [
        ("", "nothing"),
        ("| banner |\n+-----+\n", "| banner |"),
        ("[2026] [1] [INFO] going\nTraceback (most recent call last):\nImportError: no\n", "ImportError: no"),
        ("timers: TIMERS_X is wrong\n", "TIMERS_X is wrong"),
        (
            "[2026] [1] [ERROR] [^Worker]: port in use \nTraceback\n[2026] [1] [INFO] [^Worker]: Stopping\n",
            "port in use",
        ),
    ],
)
def test_the_command_reports_why_the_worker_ended(log: str, expected_text: str) -> None:
    assert last_error(log) == expected_text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--range", "timer-request:5"], "is not TOPIC/PARTITION:FROM-TO"),
        (["--conf", "executor.memory=4g"], "is not a setting of Spark: write spark.NAME=VALUE"),
        (["--grace", "soon"], "is not a duration"),
    ],
)
def test_options_of_an_audit_are_checked_before_spark_starts(arguments: list[str], expected: str, run: Run) -> None:
    code, _, err = run("spark", "audit", *arguments)
    assert code == 2 and expected in err
