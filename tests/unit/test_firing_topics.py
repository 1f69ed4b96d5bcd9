"""How answers of the brokers about callback topics are used; one real broker does not give these answers."""

import logging
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from aiokafka.errors import (
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownTopicOrPartitionError,
)
from confluent_kafka import KafkaError, KafkaException

from tests.harness.constants import Constants
from tests.harness.sim_admin import SimAdmin
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.core.ports import Unanswered
from timers.kafka import topic_admin
from timers.kafka.aiokafka_internals.refusals import INVALID_RECORD, RecordsRefused, RefusedRecord
from timers.machines.firing import topics as module
from timers.machines.firing.breaker import DeliveryProblem
from timers.machines.firing.topics import Targets
from timers.process.config.settings import Settings


@pytest.fixture(autouse=True)
def patient(constants: Constants, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an answer takes longer, too. No test has brokers."""
    monkeypatch.setattr(module, "asking_admin", SimAdmin)
    constants(module, ANSWER_S=DEADLINE_S, UNKNOWN_TOPIC_RETRY_S=DEADLINE_S)


@pytest.fixture
def targets() -> Targets:
    return Targets(Settings(brokers="localhost:1"), {"timer-request": 4})


@pytest.fixture
def creating() -> Targets:
    """Targets of a worker with ``TIMERS_CREATE_TARGET_TOPICS=1``."""
    return Targets(Settings(brokers="localhost:1", create_target_topics=True), {"timer-request": 4})


def cluster(targets: Targets) -> SimAdmin:
    admin: Any = targets._admin
    return admin  # type: ignore[no-any-return]


def ask(targets: Targets, topic: str, *, retried: bool = False) -> int | DeliveryProblem:
    """The route of a topic, after the brokers have answered."""
    found = targets.route(topic, retried=retried)
    while found is None:  # what was created meanwhile is asked about again
        assert targets.wait([topic], lambda: True)
        found = targets.route(topic, retried=retried)
    return found


def look(targets: Targets) -> None:
    """Ask for all topics, and wait until the answer is used."""
    targets._ask()
    wait_until_used(targets)


def wait_until_used(targets: Targets) -> None:
    wait_until(lambda: not targets._is_asking, "the answer is used")


def test_an_existing_topic_is_usable(targets: Targets) -> None:
    cluster(targets).topics["t"] = [1, 1, 1]
    assert ask(targets, "t") == 3
    assert targets.usable == {"t": 3}


def test_no_timer_waits_for_what_was_asked_before_it_was_due(targets: Targets) -> None:
    cluster(targets).topics["t"] = [1, 1, 1]
    assert targets.expect(["t", "none"]) == [], "not known yet"
    wait_until_used(targets)
    assert targets.expect(["t", "none"]) == ["t"]
    assert targets.route("t", retried=False) == 3
    assert isinstance(targets.route("none", retried=False), DeliveryProblem)


def test_a_topic_that_another_question_has_found_is_asked_about_again(targets: Targets) -> None:
    """It was created after the question about it, and before the next one: so its configuration is not known."""
    cluster(targets).topics["t"] = [1, 1, 1]
    look(targets)
    assert targets.wait(["t"], lambda: True)
    assert targets.route("t", retried=False) == 3


def test_many_unknown_topics_of_a_transaction_cost_at_most_two_metadata_requests(targets: Targets) -> None:
    """The first name does not wait for the others, which are asked for together."""
    admin = cluster(targets)
    admin.may_list.clear()
    names = [f"none-{number}" for number in range(100)]
    assert [targets.route(name, retried=False) for name in names] == [None] * 100
    admin.may_list.set()
    assert targets.wait(names, lambda: True)
    for name in names:
        route = targets.route(name, retried=False)
        assert isinstance(route, DeliveryProblem) and (route.code, route.open_s) == ("topic-unknown", None)
    assert admin.metadata_requests <= 2


def test_no_machine_waits_long_while_brokers_are_silent(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine waits for an answer, for some time; the next one does not wait at all."""
    admin, now_s = cluster(targets), 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now_s)
    admin.topics["old"] = [1]
    assert ask(targets, "old") == 1
    targets.usable.clear()
    admin.may_list.clear()
    admin.topics["new"] = [1]
    assert targets.route("new", retried=False) is None
    polls = iter([True, False])
    assert not targets.wait(["new"], lambda: next(polls)), "told to stop"
    now_s += module.ANSWER_S
    assert not targets.wait(["new"], never_asked)
    assert targets.route("other", retried=False) is None
    assert not targets.wait(["other"], never_asked)
    targets.forget("other")
    targets.refresh()
    assert targets.route("old", retried=False) == 1
    admin.may_list.set()
    wait_until(lambda: targets.route("new", retried=False) == 1, "it is usable")


def never_asked() -> NoReturn:
    raise AssertionError


def test_brokers_that_list_no_topics_are_asked_again_until_they_do(
    targets: Targets, monkeypatch: pytest.MonkeyPatch, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic is not missing because they do not answer."""
    caplog.set_level(logging.WARNING)
    constants(module, POLL_S=0.01)
    monkeypatch.setattr(module, "listed", fails_thrice(topic_admin.listed))
    cluster(targets).topics["t"] = [1]
    assert targets.route("t", retried=False) is None
    wait_until(lambda: targets.route("t", retried=False) == 1, "it is usable")
    assert len(caplog.records) == 1


def test_a_topic_is_tried_while_no_broker_describes_it(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now_s)
    monkeypatch.setattr(module, "oldest_ms", fails_thrice(topic_admin.oldest_ms))
    cluster(targets).topics["t"] = [1]
    for _ in range(3):
        assert ask(targets, "t") == 1 and not targets.usable
        now_s += module.AVOIDED_S
    assert ask(targets, "t") == 1 and targets.usable


def fails_thrice(answer: Callable[..., Any]) -> Callable[..., Any]:
    failures = iter([KafkaException(KafkaError(KafkaError._TIMED_OUT)) for _ in range(3)])

    def ask_or_fail(*args: Any) -> Any:
        for failure in failures:
            raise failure
        return answer(*args)

    return ask_or_fail


def test_the_circuit_of_a_topic_without_a_leader_is_open_briefly(targets: Targets) -> None:
    cluster(targets).topics.update(t=[1, -1], other=[1])
    route = ask(targets, "t")
    assert isinstance(route, DeliveryProblem)
    assert route.code == "target-failing" and "no leader" in route.reason
    assert route.open_s is not None and 0 < route.open_s <= module.ELECTION_S
    assert ask(targets, "other") == 1
    assert targets.usable == {"other": 1}


def test_records_of_the_engine_avoid_leaderless_partitions(targets: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    retry, admin = targets._settings.retry_topic, cluster(targets)
    now_s = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now_s)
    admin.topics[retry] = [1, 2, 2]
    look(targets)

    def chosen() -> list[int]:
        return [targets.available(retry, partition) for partition in range(3)]

    assert chosen() == [0, 1, 2]
    assert not any(targets.was_moved(retry, partition) for partition in range(3))
    targets.note_failed({retry: LeaderNotAvailableError(retry, 1), "t": UnknownError()})
    targets.note_silent(Unanswered([(retry, 2), ("t", 0)]), few_records=True)
    assert not targets.circuit_breaker.count, "the brokers may be the cause"
    look(targets)
    assert chosen() == [0, 0, 0], "the metadata still name the dead leader"
    admin.topics[retry] = [1, -1, 2]
    now_s += module.AVOIDED_S
    targets.refresh()
    wait_until_used(targets)
    assert chosen() == [0, 2, 2]
    admin.topics[retry] = [-1, -1, -1]
    now_s += module.AVOIDED_S
    targets.refresh()
    wait_until_used(targets)
    assert chosen() == [0, 1, 2], "all have to wait"
    admin.topics[retry] = [1, 1, 1]
    now_s += module.AVOIDED_S
    targets.refresh()
    wait_until_used(targets)
    assert chosen() == [0, 1, 2]
    assert [targets.was_moved(retry, partition) for partition in range(3)] == [False, True, True]
    now_s += module.MOVED_S
    assert not targets.was_moved(retry, 1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unanswered([("t", 0)]), "does not answer"),
        (RecordsRefused("t", 0, INVALID_RECORD, "", (RefusedRecord(3, "too old"),)), "INVALID_RECORD (too old)"),
    ],
)
def test_a_circuit_is_open_briefly_if_the_cause_may_soon_be_over(targets: Targets, error: Exception, said: str) -> None:
    cluster(targets).topics["t"] = [1]
    targets.open_circuit("t", error)
    route = ask(targets, "t")
    assert isinstance(route, DeliveryProblem)
    assert route.code == "target-failing" and said in route.reason
    assert route.open_s is not None and 0 < route.open_s <= module.ELECTION_S


def test_an_unknown_server_error_is_the_fault_of_the_topic_and_of_no_record(targets: Targets) -> None:
    cluster(targets).topics["t"] = [1]
    targets.note_failed({"t": UnknownError()})
    route = ask(targets, "t")
    assert isinstance(route, DeliveryProblem)
    assert route.code == "target-failing" and route.open_s is not None


def test_a_topic_that_takes_only_new_records_gets_none(targets: Targets) -> None:
    admin = cluster(targets)
    admin.topics.update({name: [1] for name in ("strict", "good", "old-broker", "append-time")})
    admin.configs.update(
        strict={"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "0"},
        good={"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "1000"},
    )
    admin.configs["old-broker"] = {"message.timestamp.type": "CreateTime", "message.timestamp.difference.max.ms": "999"}
    admin.configs["append-time"] = {"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "0"}
    for name in ("strict", "old-broker"):
        route = ask(targets, name)
        assert isinstance(route, DeliveryProblem)
        assert (route.code, route.open_s) == ("message-refused", None) and "INVALID_TIMESTAMP" in route.reason
    assert ask(targets, "good") == ask(targets, "append-time") == 1
    assert admin.config_requests == 1, "all topics are described together"


def test_the_times_that_a_topic_takes_are_looked_up_again_after_a_refusal(targets: Targets) -> None:
    admin = cluster(targets)
    admin.topics["t"] = [1]
    assert ask(targets, "t") == 1
    admin.configs["t"] = {"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "0"}
    assert targets.usable == {"t": 1}
    targets.note_timestamps_refused("t")
    assert targets.usable == {}
    assert isinstance(ask(targets, "t"), DeliveryProblem)


def test_a_topic_whose_configuration_may_not_be_read_is_tried(targets: Targets) -> None:
    admin = cluster(targets)
    admin.topics["t"] = [1]
    admin.denied = True
    assert ask(targets, "t") == 1


def test_a_topic_with_a_known_limit_stays_on_the_fast_path(targets: Targets) -> None:
    admin = cluster(targets)
    admin.topics["t"] = [1]
    admin.limits["t"] = 2000
    assert ask(targets, "t") == 1
    assert targets.learn_limit("t")
    assert targets.usable == {"t": 1}
    assert targets.max_message_bytes == {"t": 2000}
    assert not targets.learn_limit("t"), "the limit is not new: the caller must not repeat the transaction"
    admin.limits["t"] = 3000
    assert targets.limit_now("t") == 3000
    del admin.topics["t"]
    assert targets.limit_now("t") == 3000, "what is known, without an answer"


def test_limits_are_refreshed_at_intervals(targets: Targets) -> None:
    admin = cluster(targets)
    admin.topics["t"] = [1, 1]
    admin.limits["t"] = 2000
    targets.learn_limit("t")
    admin.limits["t"] = 1_048_588
    targets.refresh()
    wait_until_used(targets)
    assert targets.max_message_bytes == {"t": 2000}
    targets._refresh_at = 0.0
    targets.refresh()
    wait_until_used(targets)
    assert targets.max_message_bytes == {"t": 1_048_588}


def test_a_deleted_topic_does_not_stop_the_refresh_of_other_limits(targets: Targets) -> None:
    admin = cluster(targets)
    for name in ("gone", "kept"):
        admin.topics[name] = [1]
        admin.limits[name] = 2000
        targets.learn_limit(name)
    del admin.topics["gone"]
    admin.limits["kept"] = 1_048_588
    targets._refresh_at = 0.0
    targets.refresh()
    wait_until_used(targets)
    assert targets.max_message_bytes == {"kept": 1_048_588}


def test_partition_numbers_are_refreshed_at_intervals(targets: Targets) -> None:
    admin = cluster(targets)
    admin.topics["t"] = [1]
    ask(targets, "t")
    admin.topics["t"] = [1, 1]
    targets._refresh_at = 0.0
    targets.refresh()
    wait_until_used(targets)
    assert targets.usable == {"t": 2}


def test_the_circuit_of_a_topic_that_comes_and_goes_is_opened(targets: Targets) -> None:
    cluster(targets).topics["t"] = [1]
    targets.forget("t")
    assert ask(targets, "t") == 1
    targets.forget("t")
    assert isinstance(ask(targets, "t"), DeliveryProblem)


def test_one_failure_reported_by_several_machines_counts_once(targets: Targets) -> None:
    cluster(targets).topics["t"] = [1]
    ask(targets, "t")
    for _ in range(4):
        targets.forget("t")
    assert ask(targets, "t") == 1


def test_an_unexplained_refusal_opens_the_circuit_of_the_topic(targets: Targets) -> None:
    cluster(targets).topics["t"] = [1]
    ask(targets, "t")
    targets.open_circuit("t", MessageSizeTooLargeError())
    route = ask(targets, "t")
    assert isinstance(route, DeliveryProblem) and route.code == "message-too-large"
    assert targets.usable == {}


@pytest.mark.parametrize("open_format", [False, True])
def test_topics_of_disabled_request_formats_are_ordinary_targets(open_format: bool) -> None:
    settings = Settings(brokers="localhost:1", id_topic="timer-id-request" if open_format else "")
    targets = Targets(settings, {})
    targets.note_failed({settings.verdict_topic: TopicAuthorizationFailedError()})
    assert (settings.verdict_topic in targets.circuit_breaker) is not open_format


def test_no_machine_waits_while_missing_topics_are_created_together(creating: Targets) -> None:
    admin = cluster(creating)
    names = [f"new-{number}" for number in range(200)]
    for name in names:  # the brokers do not answer yet: a call that waited for them would fail
        problem = ask(creating, name)
        assert isinstance(problem, DeliveryProblem) and problem.open_s is not None, "its timers are tried again"
        assert problem.reason.endswith("is being created")
    admin.topics["other"] = [1]
    creating.refresh()
    assert ask(creating, "other") == 1
    admin.may_answer.set()
    wait_until(lambda: set(names) <= creating.counts.keys(), "they are known")  # route() may request one again
    assert all(ask(creating, name, retried=True) == 1 for name in names)
    assert len(admin.created) <= 2, "the first one alone, as it does not wait for others, and all others together"
    assert sorted(name for names in admin.created for name in names) == sorted(names)


def test_the_reason_why_a_topic_cannot_be_created_reaches_its_dead_letter(creating: Targets) -> None:
    admin = cluster(creating)
    admin.refused.add("refused")
    admin.may_answer.set()
    assert isinstance(ask(creating, "refused"), DeliveryProblem)

    def said() -> bool:
        problem = ask(creating, "refused", retried=True)
        return isinstance(problem, DeliveryProblem) and problem.reason.endswith("cannot be created: no such names")

    wait_until(said, "the reason is known")


def test_topics_are_created_after_a_request_without_an_answer(creating: Targets) -> None:
    admin = cluster(creating)
    answer, admin.create_topics = admin.create_topics, raising(KafkaException(KafkaError(KafkaError._TIMED_OUT)))  # type: ignore[method-assign]
    admin.may_answer.set()
    ask(creating, "t")
    wait_until(lambda: not creating._creator._threads._running, "the request fails")
    admin.create_topics = answer  # type: ignore[method-assign]
    ask(creating, "t", retried=True)
    wait_until(lambda: ask(creating, "t", retried=True) == 1, "it is usable")


def test_topics_are_created_after_an_unforeseen_error(creating: Targets, caplog: pytest.LogCaptureFixture) -> None:
    admin = cluster(creating)
    answer, admin.create_topics = admin.create_topics, raising(KeyError())  # type: ignore[method-assign]
    ask(creating, "t")
    wait_until(lambda: "KeyError" in caplog.text, "the error is logged")
    admin.create_topics = answer  # type: ignore[method-assign]
    admin.may_answer.set()
    wait_until(lambda: ask(creating, "t", retried=True) == 1, "it is usable")


def test_a_topic_that_many_timers_wait_for_is_requested_once(creating: Targets) -> None:
    creator = creating._creator
    ask(creating, "first")  # it waits for the brokers
    wait_until(lambda: not creator._wanted, "the request is sent")
    for _ in range(1000):
        creator.request("second")
    assert len(creator._threads._waiting) == 1
    cluster(creating).may_answer.set()
    wait_until(lambda: ask(creating, "second", retried=True) == 1, "it is usable")


def raising(error: Exception) -> Callable[..., NoReturn]:
    def call(*_: object, **__: object) -> NoReturn:
        raise error

    return call


def test_an_own_topic_that_does_not_take_records_is_looked_up_again(targets: Targets) -> None:
    """It was made anew with fewer partitions: else transactions would fail until the next refresh."""
    cluster(targets).topics["timer-verdict"] = [1] * 12
    look(targets)
    assert targets.partitions("timer-verdict") == 12
    cluster(targets).topics["timer-verdict"] = [1] * 4
    targets.note_failed({"timer-verdict": UnknownTopicOrPartitionError("timer-verdict", 7)})
    wait_until_used(targets)
    assert targets.partitions("timer-verdict") == 4
    assert "timer-verdict" not in targets.circuit_breaker


def test_what_a_watch_has_seen_of_own_topics_counts(targets: Targets) -> None:
    cluster(targets).topics |= {"timer-verdict": [1] * 4, "orders": [1]}
    look(targets)
    targets.learn({"timer-verdict": 12, "timer-dead-letter": 3})
    assert (targets.partitions("timer-verdict"), targets.partitions("timer-dead-letter")) == (12, 3)
    assert targets.counts["orders"] == 1, "no own topic"
    targets.learn({"timer-dead-letter": 3})
    assert "timer-verdict" not in targets.counts, "it was deleted"


def test_a_canary_whose_topic_was_deleted_is_no_dead_letter() -> None:
    targets = Targets(Settings(brokers="localhost:1", app_id="app", canary_interval_s=30), {"timer-request": 4})
    problem = ask(targets, "app-canary")
    assert isinstance(problem, DeliveryProblem) and problem.open_s == 0.0
    other = ask(targets, "other-canary")
    assert isinstance(other, DeliveryProblem) and other.open_s is None
