"""``-o json`` of all commands, and what they say when no broker answers."""

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import click
import pytest
from confluent_kafka import Producer

from tests.harness.command_walk import NOT_WALKED, WALKS
from tests.harness.constants import Constants
from timers import cli as cli_package
from timers.cli import output, reach, timers
from timers.cli import topics as topic_commands
from timers.cli.broker.embedded import free_port
from timers.cli.main import cli, main
from timers.cli.output import Output
from timers.client import TimersClient
from timers.core.fired import NOISY, PAUSE, Hold, Moment
from timers.core.keys import NOTHING_FIRED
from timers.core.operation import CANCELLED, TOO_LATE, Verdict
from timers.core.printable import printable
from timers.errors import SettingsError, TimersError
from timers.kafka import topic_admin
from timers.offline import fired
from timers.offline.fired import CallbackRecord, PastFirings
from timers.process.config.settings import Settings
from timers.wire import query
from timers.wire import verdict as verdict_record
from timers.wire.topics import REQUEST

NO_DATA = {
    "console": "serves HTTP; its options print lines for the file of users",
    "worker": "runs Faust, whose log is not data: TIMERS_LOG_FORMAT=json",
    "spark engine": "as the worker",
    "queue run": "runs a handler, whose output is its own",
    "outbox run": "runs until a signal, and prints its log only",
}
"""Commands without data on stdout."""


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


def test_every_command_that_prints_data_can_print_json() -> None:
    found = dict(commands(cli))
    assert len(found) > 20
    for name, command in found.items():
        options = {text for parameter in command.params for text in parameter.opts}
        assert ("-o" in options) == (name not in NO_DATA), name


def test_the_page_of_commands_names_those_with_exit_codes_of_their_own() -> None:
    """A script that treats 3 as it means for another command would be wrong."""
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    (said,) = re.findall(r"^(.*) have more exit codes, which their `--help` lists", page, re.MULTILINE)
    of_all = {0, 1, 2, 6, 130}  # the table of the page
    found = set()
    for name, command in commands(cli):
        texts = [command.help or "", *(each.help or "" for each in command.params if isinstance(each, click.Option))]
        parts = [part for text in texts for part in re.findall(r"[Ee]xit codes?(?:.|\n(?!\n))*", text)]
        if {int(code) for part in parts for code in re.findall(r"\b\d+\b", part)} - of_all:
            found.add(name)
    assert set(re.findall("`([a-z ]+)`", said)) == found and "doctor" in found


def test_an_output_prints_fields_or_lines(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"id": "ä\n\ud800", "due": None}
    Output().show(fields, "one", "two")
    assert capsys.readouterr().out == "one\ntwo\n"
    Output(as_json=True).show(fields, "one", "two")
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == fields


def test_a_table_has_a_head_only_as_text_and_only_with_rows(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [({"a": 1}, ("1", "x")), ({"a": 2}, ("two", "y"))]
    Output().table(("A", "B"), (4, 0), rows)
    assert capsys.readouterr().out == "A     B\n1     x\ntwo   y\n"
    Output(as_json=True).table(("A", "B"), (4, 0), rows)
    assert capsys.readouterr().out == '{"a": 1}\n{"a": 2}\n'
    Output().table(("A", "B"), (4, 0), [])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("option", [["-o", "json"], ["--output=json"]])
def test_settings_as_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    assert main(["settings", *option]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["variable"] for row in rows} >= {"TIMERS_BROKERS", "TIMERS_APP_ID"}


def test_the_embedded_broker_shows_its_state_as_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["broker", "status", "-o", "json"]) == 3
    state = json.loads(capsys.readouterr().out)
    assert (state["running"], state["address"], state["pid"]) == (False, None, None)
    assert main(["broker", "stop", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": False}


# --- text of others ---------------------------------------------------------------------------------------------------

UNSAFE = "a\x1b]0;t\x07\u202eb\nc\x9b\udcff"
"""What an id, a key, a topic or a payload of somebody else may hold."""


def assert_safe(text: str) -> None:
    for line in text.split("\n"):
        assert printable(line) == line, line


def test_only_one_module_of_the_commands_prints() -> None:
    """So what it prints is safe: no command has to think of it."""
    folder = Path(cli_package.__file__).parent
    printing = re.compile(r"click\.(echo|secho|confirm|style)\b|\bprint\(|\bsys\.(stdout|stderr)\.write\b")
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if printing.search(path.read_text(encoding="utf-8"))
    }
    # make lock runs jars.py: it is no command.
    assert found == {"output.py", "broker/jars.py"}


def test_text_of_others_is_safe_in_each_way_to_print(capsys: pytest.CaptureFixture[str]) -> None:
    text = Output()
    text.show({}, UNSAFE, UNSAFE, fg="green")
    text.table(("A", "B"), (4, 0), [({}, (UNSAFE, "x"))])
    output.say(UNSAFE)
    output.say_failure(UNSAFE)
    output.say_usage(click.UsageError(UNSAFE))
    Output(as_json=True).show({"id": UNSAFE})
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 5
    assert json.loads(captured.out.splitlines()[-1]) == {"id": UNSAFE}
    assert_safe(captured.out)
    assert_safe(captured.err)
    assert r"a\x1b]0;t\x07\u202eb\nc\x9b\xff" in captured.out and r"timers: a\x1b]0;t" in captured.err


def test_each_command_is_walked_over_records_with_such_text_or_says_why_not() -> None:
    """``tests/broker/test_printed_text.py`` calls them. A new command needs a walk."""
    assert not WALKS.keys() & NOT_WALKED.keys()
    assert WALKS.keys() | NOT_WALKED.keys() == dict(commands(cli)).keys()


def test_a_character_that_the_terminal_lacks_is_escaped() -> None:
    code = "import sys; from timers.cli.output import Output; from timers.cli.main import main; main(['--version'])"
    out = subprocess.run(
        [sys.executable, "-c", f"{code}; Output().show({{}}, 'Gr\\u00fc\\u00dfe \\u2713')"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert out.stdout.splitlines()[-1] == b"Gr\xfc\xdfe \\u2713"


STARTING = {"worker", "console", "broker start", "broker stop", "broker reset", "spark jars"}
"""Commands that replace this process, serve until a signal, or change the broker of the project."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, _ in commands(cli) if name not in STARTING])
def test_text_of_others_is_safe_in_each_argument_of_each_command(
    no_broker: str, capsys: pytest.CaptureFixture[str], name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIMERS_WEB_PORT", str(free_port()))
    command = dict(commands(cli))[name]
    arguments = [UNSAFE for each in command.params if isinstance(each, click.Argument) and each.name != "source"]
    tried = [arguments, [UNSAFE, UNSAFE, UNSAFE], [f"--{UNSAFE}"]]
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag:
            tried.append([*arguments, option.opts[0], UNSAFE])
    for given in tried:
        assert main([*name.split(), *given]) != 0 or name in ("settings", "formats", "broker status")
        out, err = capsys.readouterr()
        assert_safe(out)
        assert_safe(err)
    assert main([f"{name}{UNSAFE}"]) == 2
    assert_safe(capsys.readouterr().err)


# --- a missing broker -------------------------------------------------------------------------------------------------


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> Iterator[str]:
    """An address of this machine that refuses connections."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("TIMERS_BROKERS", address)
        monkeypatch.setenv("TIMERS_ID_TOPIC", "by-id")
        constants(reach, WAIT_S=0.3)
        yield address


SCHEDULE = ["schedule", "--topic", "orders", "--value", "", "--in", "1d"]


@pytest.mark.parametrize(
    "command",
    [
        SCHEDULE,
        [*SCHEDULE, "--create-topic"],
        ["cancel", "order-17"],
        ["watch", "orders"],
        ["topics", "create", "orders"],
        ["run"],
        ["levels"],
        ["clock"],
        ["snapshots"],
        ["log", "verify"],
        ["dead-letters", "list"],
        ["dead-letters", "show", "0/1"],
        ["dead-letters", "retry", "--all", "--yes"],
        ["list"],
        ["get", "order-17"],
        ["queue", "stat", "jobs"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_missing_broker_is_one_sentence(
    no_broker: str,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIMERS_WEB_PORT", str(free_port()))  # a worker may run on this machine
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(rf"^timers: no broker answers at {no_broker} \(.+\): is it running", err, re.M)


def test_a_broker_that_starts_meanwhile_is_found(constants: Constants) -> None:
    constants(reach, WAIT_S=60.0)
    with socket.socket() as broker:
        broker.bind(("127.0.0.1", 0))
        starting = threading.Timer(0.3, broker.listen)
        starting.start()
        reach.check_brokers(Settings.load({"TIMERS_BROKERS": f"127.0.0.1:{broker.getsockname()[1]}"}))
        starting.join()


def test_one_of_several_brokers_is_enough(no_broker: str, constants: Constants) -> None:
    host = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(host.list_topics(REQUEST, timeout=10).brokers.values()))
    constants(reach, WAIT_S=30.0)
    reach.check_brokers(Settings.load({"TIMERS_BROKERS": f"{no_broker},{broker.host}:{broker.port}"}))


@pytest.mark.parametrize("address", ["no-such-host.invalid:9092", "[::1]:1"])
def test_a_wrong_address_is_said(no_broker: str, address: str) -> None:
    with pytest.raises(TimersError, match=r"^no broker answers at .*is TIMERS_BROKERS right\?"):
        reach.check_brokers(Settings.load({"TIMERS_BROKERS": address}))


# --- which brokers and which worker -----------------------------------------------------------------------------------


def worker(app: str, cluster: str) -> ThreadingHTTPServer:
    """A worker that lists one timer, with text that is not safe. Close it at the end."""
    timer = {
        "id": UNSAFE,
        "due": 1,
        "due_at": "2030",
        "topic": UNSAFE,
        "key": UNSAFE,
        "value_bytes": 1,
        "source": "r/0/1",
    }

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = {
                "app": app,
                "cluster": cluster,
                "timers": [{**timer, "state": "pending"}],
                "missing": [],
                "next": None,
            }
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    return server


@pytest.fixture
def own_cluster(monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of the cluster at TIMERS_BROKERS."""
    monkeypatch.setattr(reach, "check_brokers", lambda _: None)
    monkeypatch.setattr(topic_admin, "cluster_id", lambda _: "own-cluster")
    return "own-cluster"


@pytest.mark.parametrize("command", [["list"], ["get", "order-17"], ["list", "-o", "json"]])
@pytest.mark.parametrize(("app", "is_own"), [("timers", False), ("other", True)])
def test_nothing_of_a_worker_of_another_cluster_or_app_is_shown(
    own_cluster: str,
    command: list[str],
    app: str,
    is_own: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with worker(app, own_cluster if is_own else "other-cluster") as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("TIMERS_WORKER_URL", url)
        assert main(command) == 1
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert f"{url} is of app '{app}'" in err and "own-cluster, which is at" in err
        server.shutdown()


@pytest.mark.parametrize("command", [["list"], ["get", "order-17"]])
def test_a_worker_of_the_own_cluster_is_asked(
    own_cluster: str, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker("timers", own_cluster) as server:
        monkeypatch.setenv("TIMERS_WORKER_URL", f"http://127.0.0.1:{server.server_address[1]}")
        assert main(command) == 0
        shown = capsys.readouterr()
        assert r"a\x1b]0;t\x07\u202eb\nc\x9b\xff" in shown.out
        assert_safe(shown.out)
        assert_safe(shown.err)
        server.shutdown()


@pytest.mark.parametrize("command", [["list"], ["get", "order-17"]])
def test_a_worker_that_is_named_is_asked_without_brokers_and_says_its_cluster(
    no_broker: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with worker("other", "other-cluster") as server:
        assert main([*command, "--worker", f"http://127.0.0.1:{server.server_address[1]}"]) == 0
        out, err = capsys.readouterr()
        assert "order" in out or "2030" in out
        assert "is of app 'other' and cluster other-cluster" in err
        server.shutdown()
    assert main([*command, "--worker", "nonsense"]) == 2
    assert "--worker='nonsense' is not http://host:port" in capsys.readouterr().err


def test_without_a_setting_a_command_takes_only_the_broker_of_its_project(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    monkeypatch.delenv("TIMERS_BROKERS", raising=False)
    constants(reach, WAIT_S=0.1)
    monkeypatch.chdir(tmp_path)
    begin = "brokers: 127.0.0.1:9092, because TIMERS_BROKERS is not set, and"
    main(["list"])
    assert capsys.readouterr().err.count(f"{begin} this folder, and each one above it, has no broker\n") == 1
    (tmp_path / ".timers" / "broker").mkdir(parents=True)
    main(["list"])
    assert f"{begin} the project in {tmp_path} has no broker\n" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as broker:
        port = broker.getsockname()[1]
        address = f"127.0.0.1:{port}"
        (tmp_path / ".timers" / "broker" / "port").write_text(f"{port}\n")
        for command in (["list"], ["worker"], ["doctor"], ["console"]):
            assert main(command) == 2  # the project's broker has ended: who listens there is a stranger
            said = capsys.readouterr().err
            assert f"the broker of the project in {tmp_path}, which was at {address}, does not run" in said
        with pytest.raises(SettingsError, match="does not run"):
            TimersClient()
        with pytest.raises(SettingsError, match="does not run"):
            Settings.load()  # as faust -A timers.app does
        TimersClient(brokers=address).close()
        assert main(["settings"]) == main(["formats"]) == main(["doctor", "--plan", "1/s"]) == 0, "they ask no broker"
        (tmp_path / ".timers" / "broker" / "address").write_text(address)
        reach.check_brokers(Settings.load({}))
        assert capsys.readouterr().err == ""
    monkeypatch.setenv("TIMERS_BROKERS", address)
    main(["list"])
    assert "because TIMERS_BROKERS" not in capsys.readouterr().err


def test_the_brokers_may_be_named_by_an_option_of_each_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    constants(reach, WAIT_S=0.1)
    for former in ("127.0.0.1:1", None):
        monkeypatch.delenv("TIMERS_BROKERS", raising=False) if former is None else monkeypatch.setenv(
            "TIMERS_BROKERS", former
        )
        for command in (["list"], ["queue", "list"], ["topics", "create", "orders"], ["targets", "list"]):
            assert main([*command, "--bootstrap-server", "127.0.0.1:2,127.0.0.1:3"]) == 1
            assert "no broker answers at 127.0.0.1:2,127.0.0.1:3" in capsys.readouterr().err
            assert os.environ.get("TIMERS_BROKERS") == former, "only for this command"
    assert main(["list", "--bootstrap-server", " "]) == 2
    assert "it is empty" in capsys.readouterr().err
    assert main(["list", "--bootstrap-server", "nonsense"]) == 2
    assert "TIMERS_BROKERS='nonsense'" in capsys.readouterr().err


def test_each_command_is_below_one_heading_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    shown = [line.split()[0] for line in said.splitlines() if re.match(r"  [a-z-]+  ", line)]
    assert sorted(shown) == sorted(cli.list_commands(click.Context(cli)))


class BusyReader:
    """A reader of a topic on which there is always one more record."""

    def assign_partitions(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield "a callback"


@pytest.mark.parametrize(("count", "code"), [(None, 0), (10**9, 1)])
def test_a_watch_of_a_busy_topic_ends_after_its_timeout(
    count: int | None, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CallbackRecord, "of", lambda message: CallbackRecord("orders", 0, 1, 5, b"k", b"v", []))
    reader: Any = BusyReader()
    assert topic_commands._follow(reader, "orders", "b:9092", count, 0.01, Output()) == code
    assert "came in time" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "code"), [(None, 0), (1, 0), (2, 1)])
def test_a_look_back_that_finds_fewer_says_so_by_its_exit_code(
    count: int | None, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = PastFirings([CallbackRecord("orders", 0, 1, 5, b"k", b"v", [])], {})
    monkeypatch.setattr(fired, "read_past_firings", lambda *_, **__: found)
    assert topic_commands._look_back(Settings(), 0, count, 1.0, Output()) == code
    assert capsys.readouterr().out.count("\n") == 1


class QuietReader:
    """A reader of a topic to which one callback came, and then none."""

    def __init__(self, exists: bool, messages: Sequence[Any]) -> None:
        self.exists, self.messages = exists, messages

    def assign_partitions(self) -> bool:
        return self.exists

    def __iter__(self) -> Iterator[Any]:
        yield from self.messages
        while True:
            yield None


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 1), (None, 0)])
def test_a_watch_ends_after_its_timeout(
    count: int | None, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CallbackRecord, "of", lambda message: CallbackRecord("orders", 0, 1, 5, b"k", b"v", []))
    reader: Any = QuietReader(True, ["a callback"])
    assert topic_commands._follow(reader, "orders", "b:9092", count, 0.01, Output()) == code
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    assert said.err == ("" if count == 1 else "1 record came in time\n")
    with pytest.raises(TimersError, match="topic 'orders' does not exist at b:9092"):
        topic_commands._follow(cast(Any, QuietReader(False, [])), "orders", "b:9092", count, 0.0, Output())


def test_a_second_demo_in_a_project_says_that_one_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".timers").mkdir()
    with (tmp_path / ".timers" / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print("4711", file=lock, flush=True)
        assert main(["run"]) == 1
    assert f"`timers run` runs already in the project in {tmp_path} (process 4711)" in capsys.readouterr().err


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["timers", "sche"], {"schedule"}),
        (["timers", "spark", ""], {"engine", "audit", "history", "import", "hold", "pending", "promote", "jars"}),
        (["timers", "broker", "sta"], {"start", "status"}),
        (["timers", "schedule", "--from-"], {"--from-file"}),
        (["timers", "settings", "-o", "j"], {"json"}),
    ],
)
def test_a_shell_completes_commands_and_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], expected: set[str]
) -> None:
    monkeypatch.setenv("_TIMERS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        main([])
    assert {each.rpartition(",")[2] for each in capsys.readouterr().out.split()} == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_lines_load_the_completion(shell: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    variable = f"_TIMERS_COMPLETE={shell}_source"
    assert variable in page
    command = [sys.executable, "-c", "import sys; from timers.cli.main import main; sys.exit(main([]))"]
    environment = {**os.environ, "_TIMERS_COMPLETE": f"{shell}_source"}
    script = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "_TIMERS_COMPLETE" in script.stdout


@pytest.mark.parametrize(
    ("reason", "said"), [(PAUSE, "held by pause 7 since"), (NOISY, "held by many due timers of its topic since")]
)
def test_a_look_up_says_that_a_timer_is_held(reason: str, said: str) -> None:
    hold = Hold("mails", reason, 7, Moment(0, NOTHING_FIRED, 0), 1_700_000_000)
    row = (3, "mails", "k", b"v", None, None)
    timer = query.describe(row, 1_700_000_009, "timer-request", 0, hold, moved=False, with_value=False)
    sentence = timers._sentence({**timer, "state": query.PENDING})
    assert said in sentence
    assert "2023-11-14T22:13:20Z" in sentence


def test_a_verdict_says_that_a_timer_was_held() -> None:
    told = verdict_record.decode(
        verdict_record.encode(Verdict(b"a", 3, CANCELLED, 1_700_000_009, held=(PAUSE, 7, 1_700_000_000)), str)
    )
    assert told.fields()["held"] == {"reason": "pause", "number": 7, "since": 1_700_000_000}
    assert timers.sentence(told).endswith(", was held by pause 7 since 2023-11-14T22:13:20Z")
    late = told._replace(verdict=TOO_LATE, version="timer-request-by-id/0/1")
    assert "held by pause 7 since 2023-11-14T22:13:20Z: a change without a condition counts" in timers.sentence(late)
    with pytest.raises(ValueError, match="not a verdict"):
        verdict_record.decode(b'{"id": "a", "verdict": "cancelled", "due": 1, "held": "pause"}')
