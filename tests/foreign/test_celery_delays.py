"""Where Celery's tasks with a delay wait, as docs/coming-from-celery.md says. Debian: rabbitmq-server, redis-server."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.foreign.clients import BUILD, HERE
from tests.harness.command_line import need
from tests.harness.process import ROOT, Process, clean_environment
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.cli.broker.embedded import free_port
from timers.cli.broker.process import is_port_free

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

REQUIREMENTS = HERE / "celery" / "requirements.txt"
RABBIT_PROGRAMS = Path("/usr/lib/rabbitmq/bin")
"""Where Debian has RabbitMQ's own programs. Those on the path run as the system's user only, with the system's data."""

TOPIC_EXCHANGE = {"task_default_queue_type": "quorum", "task_default_exchange_type": "topic"}
DIRECT_EXCHANGE = {"task_default_queue_type": "quorum"}

LOOKS_S = 100
"""kombu looks every 10 s for tasks that nobody has acknowledged, but at Redis in each tenth of these looks only."""

LEVELS = 28
"""Queues in which tasks wait: of 1 s, 2 s, ..., 2^27 s."""


@pytest.fixture(scope="module")
def python() -> Path:
    """A Python that has Celery."""
    environment = BUILD / "celery"
    if not environment.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS)]
    subprocess.run(pip, check=True, timeout=600)
    return environment / "bin" / "python"


def output(command: list[str], environment: dict[str, str]) -> str:
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


class Rabbit(NamedTuple):
    """A RabbitMQ that runs."""

    url: str
    environment: dict[str, str]

    def control(self, *arguments: str) -> str:
        return output([str(RABBIT_PROGRAMS / "rabbitmqctl"), "--quiet", *arguments], self.environment)

    def waiting(self) -> dict[str, int]:
        """Queue -> messages, of the queues for delays."""
        listed = json.loads(self.control("list_queues", "name", "messages", "--formatter", "json"))
        return {each["name"]: each["messages"] for each in listed if each["name"].startswith("celery_delayed_")}


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    for tool in ("rabbitmq-server", "epmd"):
        need(tool)
    directory, port, names_port = tmp_path_factory.mktemp("rabbit"), free_port(), str(free_port())
    environment = clean_environment(
        HOME=str(directory),
        ERL_EPMD_PORT=names_port,
        ERL_EPMD_ADDRESS="127.0.0.1",
        RABBITMQ_NODENAME="timers@localhost",
        RABBITMQ_NODE_IP_ADDRESS="127.0.0.1",
        RABBITMQ_NODE_PORT=str(port),
        RABBITMQ_DIST_PORT=str(free_port()),
        RABBITMQ_MNESIA_BASE=str(directory / "data"),
        RABBITMQ_LOG_BASE=str(directory / "logs"),
        RABBITMQ_ENABLED_PLUGINS_FILE=str(directory / "plugins"),
        RABBITMQ_CONF_ENV_FILE="/dev/null",
        RABBITMQ_CONFIG_FILE=str(directory / "none"),
    )
    # The server would start this daemon itself, and leave it behind.
    names = Process("epmd", ["epmd", "-port", names_port], environment, directory, directory / "epmd.log")
    program = str(RABBIT_PROGRAMS / "rabbitmq-server")
    server = Process("RabbitMQ", [program], environment, directory, directory / "rabbit.log")
    try:
        names.start()
        wait_until(lambda: not is_port_free(int(names_port)), "epmd takes connections")
        server.start().wait_for("completed with", 2 * DEADLINE_S)
        yield Rabbit(f"amqp://guest:guest@127.0.0.1:{port}//", environment)
    finally:
        server.clean_up()
        names.clean_up()


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    port = str(free_port())
    command = [need("redis-server"), "--port", port, "--bind", "127.0.0.1", "--save", ""]
    server = Process("Redis", command, clean_environment(), tmp_path, tmp_path / "redis.log")
    try:
        server.start().wait_for("Ready to accept connections")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.clean_up()


class Celery:
    """An app with one task, and its worker."""

    def __init__(self, python: Path, directory: Path, broker: str, configuration: dict[str, Any]) -> None:
        self._python = str(python)
        self._runs = directory / "runs"
        variables = {"BROKER": broker, "CONFIGURATION": json.dumps(configuration), "RUNS": str(self._runs)}
        self._environment = clean_environment(**{**variables, "PYTHONPATH": str(HERE / "celery")})
        command = [self._python, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "-l", "info"]
        self.worker = Process("Celery", command, self._environment, directory, directory / "celery.log")

    def send(self, name: str, countdown_s: int) -> None:
        code = f"import tasks; tasks.note.apply_async(({name!r},), countdown={countdown_s})"
        output([self._python, "-c", code], self._environment)

    def in_memory(self) -> list[str]:
        """Names of the tasks that wait in the worker."""
        asked = [self._python, "-m", "celery", "-A", "tasks", "inspect", "scheduled", "--json"]
        (tasks,) = json.loads(output(asked, self._environment)).values()
        return [each["request"]["args"][0] for each in tasks]

    def runs(self) -> list[str]:
        """The name of each task, as often as it has run."""
        return self._runs.read_text().split() if self._runs.exists() else []


@contextmanager
def celery(python: Path, directory: Path, broker: str, configuration: dict[str, Any]) -> Iterator[Celery]:
    app = Celery(python, directory, broker, configuration)
    try:
        app.worker.start().wait_for(r"celery@\S+ ready")
        yield app
    finally:
        app.worker.clean_up()


def test_behind_a_topic_exchange_tasks_wait_in_the_brokers_queues(python: Path, rabbit: Rabbit, tmp_path: Path) -> None:
    with celery(python, tmp_path, rabbit.url, TOPIC_EXCHANGE) as app:
        app.send("soon", 2)
        app.send("hours", 2**13)
        app.send("longest", 2**LEVELS - 1)
        wait_until(lambda: app.runs() == ["soon"], "the first task ran")
        expected = {f"celery_delayed_{level}": int(level in (13, LEVELS - 1)) for level in range(LEVELS)}
        wait_until(lambda: rabbit.waiting() == expected, "the others wait in the broker")
        assert app.in_memory() == []


READ = """
import kombu, sys
channel = kombu.Connection(sys.argv[1]).default_channel
while message := channel.basic_get(sys.argv[2], no_ack=True):
    print(message.delivery_info["routing_key"])
"""


def test_a_delay_that_is_longer_than_all_queues_is_halved(python: Path, rabbit: Rabbit, tmp_path: Path) -> None:
    """Each queue looks at one bit of the routing key, and the key of a longer delay has one more."""
    delay_s = 2**LEVELS + 12
    longest = f"celery_delayed_{LEVELS - 1}"
    with celery(python, tmp_path, rabbit.url, TOPIC_EXCHANGE) as app:
        before = rabbit.waiting()[longest]
        app.send("too long", delay_s)
        wait_until(lambda: rabbit.waiting()[longest] > before, "the task waits in the broker")
    keys = output([str(python), "-c", READ, rabbit.url, longest], rabbit.environment).split()
    bits = "".join(keys[-1].split(".")[:LEVELS])
    assert int(bits, 2) == delay_s // 2


def test_behind_a_direct_exchange_they_wait_in_memory_and_the_worker_warns(
    python: Path, rabbit: Rabbit, tmp_path: Path
) -> None:
    with celery(python, tmp_path, rabbit.url, {**DIRECT_EXCHANGE, "task_default_queue": "direct"}) as app:
        app.send("minutes", 600)
        wait_until(lambda: app.in_memory() == ["minutes"], "the task waits in the worker")
        assert "native delayed delivery do not support direct exchanges" in app.worker.log


def test_with_redis_a_task_whose_delay_exceeds_the_visibility_timeout_runs_again(
    python: Path, redis_url: str, tmp_path: Path
) -> None:
    with celery(python, tmp_path, redis_url, {"broker_transport_options": {"visibility_timeout": 2}}) as app:
        app.send("late", LOOKS_S + 30)
        wait_until(lambda: app.in_memory() == ["late"], "the task waits in the worker")
        wait_until(lambda: app.runs()[:2] == ["late", "late"], "it ran again", LOOKS_S + 30 + DEADLINE_S)


def test_the_page_names_the_versions_that_were_tried(rabbit: Rabbit) -> None:
    pins = dict(re.findall(r"^(\w+)\S*==(\S+)$", REQUIREMENTS.read_text(), re.MULTILINE))
    redis = re.search(r"v=(\S+)", output([need("redis-server"), "--version"], clean_environment()))
    assert redis
    brokers = f"RabbitMQ {rabbit.control('version').strip()} and Redis {redis[1]}"
    tried = f"Celery {pins['celery']}, kombu {pins['kombu']}, {brokers}"
    assert tried in " ".join((ROOT / "docs" / "coming-from-celery.md").read_text().split())
