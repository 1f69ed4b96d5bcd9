"""The worker creates its topics, corrects their settings, and refuses topics that would lose timers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from tests.harness.scrape import health
from tests.harness.system import PARTITIONS, System, soon
from tests.harness.waiting import DEADLINE_S, wait_until
from tests.harness.worker import Worker
from timers.cli.main import main

pytestmark = pytest.mark.broker


def config_of(system: System, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, str] = {}

    def answered() -> bool:
        try:
            entries = system.admin.describe_configs([resource])[resource].result(DEADLINE_S)
        except KafkaException as error:  # the broker may learn of a new topic after it is created
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return False
        found.update({name: entry.value for name, entry in entries.items()})
        return True

    wait_until(answered, f"the configuration of {topic}")
    return found


def test_the_worker_makes_its_topics_as_timers_need_them(running: System) -> None:
    settings = running.settings
    expected = {
        settings.request_topic: ("delete", "LogAppendTime", "-1", "-1"),
        settings.retry_topic: ("delete", "LogAppendTime", "-1", "-1"),
        settings.oscillator_topic: ("delete", "LogAppendTime", "3600000", "-1"),
        settings.dead_letter_topic: ("delete", "LogAppendTime", "-1", "-1"),
    }
    names = ("cleanup.policy", "message.timestamp.type", "retention.ms", "retention.bytes")
    for topic, values in expected.items():
        config = config_of(running, topic)
        assert tuple(config[name] for name in names) == values, topic
    assert config_of(running, settings.progress_topic)["cleanup.policy"] == "compact"
    found = running.admin.list_topics(timeout=DEADLINE_S).topics
    assert all(len(found[topic].partitions) == PARTITIONS for topic in (*expected, settings.progress_topic))


@pytest.mark.parametrize("policy", ["compact", pytest.param("compact,delete", marks=pytest.mark.long)])
def test_a_request_topic_that_compacts_is_refused_in_one_sentence(system: System, policy: str) -> None:
    system.create_topic(system.request_topic, PARTITIONS, cleanup_policy=policy)
    worker = system.worker().start()
    assert worker.exit_code() == 1
    said = [line for line in worker.log.splitlines() if line.startswith("timers: ")]
    assert len(said) == 1
    assert f"topic {system.request_topic!r} has cleanup.policy={policy}" in said[0]
    assert "--add-config cleanup.policy=delete" in said[0]


def test_the_command_creates_topics_for_callbacks_and_schedules(
    broker_address: str, system: System, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIMERS_BROKERS", broker_address)
    callbacks, schedules = f"{system.settings.app_id}-callbacks", f"{system.settings.app_id}-schedules"
    assert main(["topics", "create", schedules, "--compacted", "-p", "3", "-o", "json"]) == 0
    created = {"topic": schedules, "created": True, "partitions": 3, "cleanup_policy": "compact"}
    assert json.loads(capsys.readouterr().out) == created
    assert main(["topics", "create", callbacks, schedules, "-p", "2", "-o", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == {"topic": callbacks, "created": True, "partitions": 2, "cleanup_policy": "delete"}
    assert rows[1] == {**created, "created": False}, "it stays as it was"
    assert config_of(system, schedules)["message.timestamp.type"] == "CreateTime"
    assert config_of(system, callbacks)["message.timestamp.type"] == "LogAppendTime"


@pytest.fixture(scope="module")
def mended(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[System, Worker]]:
    """A worker on existing topics with producers' timestamps and a week of retention."""
    system = System(broker_address, tmp_path_factory.mktemp("mended"))
    week = {"message_timestamp_type": "CreateTime", "retention_ms": "604800000", "retention_bytes": "1000000000"}
    system.create_topic(system.request_topic, 2, **week)
    for topic in (system.settings.oscillator_topic, system.settings.dead_letter_topic):
        system.create_topic(topic, 1, message_timestamp_type="CreateTime")
    try:
        yield system, system.worker().start().ready()
    finally:
        system.close()


def test_existing_topics_get_the_brokers_time_and_a_log_line(mended: tuple[System, Worker]) -> None:
    system, worker = mended
    settings = system.settings
    for topic in (system.request_topic, settings.oscillator_topic, settings.dead_letter_topic):
        assert config_of(system, topic)["message.timestamp.type"] == "LogAppendTime"
        assert f"set message.timestamp.type=LogAppendTime on topic {topic}" in worker.log


def test_a_warning_about_retention_has_the_command_that_corrects_it(mended: tuple[System, Worker]) -> None:
    system, worker = mended
    for name, value in (("retention.ms", "604800000"), ("retention.bytes", "1000000000")):
        warning = next(line for line in worker.log.splitlines() if f"{name}={value}" in line)
        assert "ERROR" in warning and system.request_topic in warning
        assert f"--entity-name {system.request_topic} --add-config {name}=-1" in warning
        assert f"--bootstrap-server {system.address}" in warning
    assert config_of(system, system.request_topic)["retention.ms"] == "604800000", "warned of, not changed"


def with_red(worker: Worker, names: set[str]) -> dict[str, Any]:
    """The page of partitions when these are red, and no others."""

    def page() -> dict[str, Any] | None:
        _, body = health(worker.port, "partitions")
        return body if {*body["red"]} == names else None

    return wait_until(page, "these are red")


def test_a_topic_that_is_changed_under_a_running_worker_is_red_until_it_is_right(system: System) -> None:
    """Its timers fire meanwhile."""
    worker = system.worker(quick=True).start().ready()
    requests, retries = system.request_topic, system.settings.retry_topic
    body = wait_until(lambda: (page := with_red(worker, set()))["notes"] and page, "the first comparison")
    assert "all rests on one copy" in body["notes"][0]
    for topic, name, wrong, right, red in (
        (requests, "cleanup.policy", "compact", "delete", {requests}),
        (system.settings.progress_topic, "cleanup.policy", "delete", "compact", {requests, retries}),
        (retries, "retention.ms", "1000000", "-1", {retries}),
    ):
        system.configure(topic, **{name.replace(".", "_"): wrong})
        names = {f"{each}/{number}" for each in red for number in range(PARTITIONS)}
        body = with_red(worker, names)
        assert {*body["lossy"]} == names
        (sentence,) = {*body["red"].values()}
        assert f"topic {topic!r} has {name}={wrong}, " in sentence and f"--add-config {name}={right}" in sentence
        assert worker.log.count(sentence) == 1
        system.fired(system.send(*soon(system.target(), 20)))
        system.configure(topic, **{name.replace(".", "_"): right})
        wait_until(lambda: health(worker.port, "partitions")[0] == 200, "it is right again")


def test_timers_fire_on_topics_with_other_partition_counts(mended: tuple[System, Worker]) -> None:
    system, _ = mended
    requests = soon(system.target(), 50)
    for index, request in enumerate(requests):
        request.partition = index % 2
    records = system.send(*requests)
    reader = system.reader(requests[0].target)
    assert {record.timer_id for record in reader.take(50)} == {request.source for request in records}
