"""Deleted topics that the worker may not create, and ones that come back unusable. Broker tests have more."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import KafkaError, KafkaException

from tests.harness.constants import Constants
from timers.core.timer import TopicPartition
from timers.errors import AccessError
from timers.kafka import topics
from timers.kafka.own_topics import RED, WARNING, WrongConfig, own_topics
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.worker.consumer import log_watch as module
from timers.worker.consumer.log_watch import LogWatch
from timers.worker.machines import lineage_watch
from timers.worker.machines.lineage_watch import LineageWatch


async def test_other_topics_go_on_while_a_topic_that_it_may_not_create_is_missing(
    monkeypatch: pytest.MonkeyPatch, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(brokers="127.0.0.1:1")
    names = [topic.name for topic in own_topics(settings)]
    whole = Cluster("c", dict.fromkeys(names, b"1"), dict.fromkeys(names, 1))
    seen = [whole.without([settings.verdict_topic])]
    refused, renewed = asyncio.Event(), asyncio.Event()
    loop, clients = asyncio.get_running_loop(), list[object]()
    released = asyncio.Queue[TopicPartition]()

    def ensure(settings: Settings, *, user_topics: bool, asking: tuple[Any, Any]) -> Cluster:
        clients.append(asking[0])
        if len(clients) == 3:
            loop.call_soon_threadsafe(refused.set)
        raise AccessError("lacks Create")

    async def renew(cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None:
        for each in suspended:
            await released.put(each)
        if cluster.topic_ids == dict.fromkeys(names, b"2"):
            renewed.set()

    waited_s: list[float] = []

    def look(_admin: Any, _settings: Settings, _known: Cluster, timeout_s: float, **_: bool) -> Cluster:
        waited_s.append(timeout_s)
        if len(waited_s) < 3:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return seen[-1]

    constants(module, GRACE_S=-1.0, RETRY_S=0.01, PAUSE_S=0.01, FIRST_REFUSED_S=0.01, LAST_REFUSED_S=0.04)
    monkeypatch.setattr(topics, "existing_topics", look)
    monkeypatch.setattr(topics, "ensure", ensure)
    monkeypatch.setattr(topics, "config_problems", lambda *_: {})
    watch = LogWatch(settings, whole, renew)
    async with watch:
        watch._requested.set()
        async with asyncio.timeout(30):
            await refused.wait()
            assert watch.refusal == "lacks Create" and watch.missing == [settings.verdict_topic]
            watch.suspend((settings.request_topic, 3), out_of_range=False)
            assert await released.get() == (settings.request_topic, 3)
            seen.append(Cluster("c", dict.fromkeys(names, b"2"), dict.fromkeys(names, 1)))
            await renewed.wait()
            assert not watch.refusal
    assert waited_s[:3] == [3.0, 6.0, 12.0] and {*waited_s[3:]} == {3.0}, "a slow cluster gets more time"
    assert caplog.text.count("no broker answers") == caplog.text.count("lacks Create") == 1, "each reason is said once"
    assert len({id(client) for client in clients}) == 1, "one that was refused lives for long"


async def test_a_worker_with_unknown_topics_is_not_ready(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> None:
    settings = Settings(brokers="127.0.0.1:1")
    names = [topic.name for topic in own_topics(settings)]
    whole = Cluster("c", dict.fromkeys(names, b"1"), dict.fromkeys(names, 1))
    is_silent = True

    def look(*_: Any, **__: Any) -> Cluster:
        if is_silent:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return whole

    async def renew(cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None: ...

    constants(module, WATCH_S=0.01, RETRY_S=0.01, PAUSE_S=0.01, BLIND_S=0.1)
    monkeypatch.setattr(topics, "existing_topics", look)
    monkeypatch.setattr(topics, "config_problems", lambda *_: {})
    watch = LogWatch(settings, whole, renew)
    assert not watch.failed
    async with watch:
        await until(lambda: "no broker answers at 127.0.0.1:1" in watch.failed)
        is_silent = False
        await until(lambda: not watch.failed)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_only_topics_that_came_back_are_checked_and_unusable_ones_are_left_out(
    monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    settings = Settings(brokers="127.0.0.1:1")
    names = [topic.name for topic in own_topics(settings)]
    topic = settings.request_topic
    before = Cluster("c", dict.fromkeys(names, b"1"), dict.fromkeys(names, 1))
    after = Cluster("c", {**before.topic_ids, topic: b"2"}, before.partitions)
    wrong, checked, renewed = {topic: "wrong"}, [], asyncio.Queue[Cluster]()

    def config_problems(_admin: Any, _settings: Settings, names: set[str]) -> dict[str, str]:
        checked.append(names)
        return dict(wrong)

    async def renew(cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None:
        await renewed.put(cluster)

    constants(module, RETRY_S=0.01)
    monkeypatch.setattr(topics, "existing_topics", lambda *_, **__: after)
    monkeypatch.setattr(topics, "config_problems", config_problems)
    watch = LogWatch(settings, before, renew)
    async with watch:
        watch._requested.set()
        async with asyncio.timeout(30):
            assert await renewed.get() == after.without([topic])
            assert watch.problems == {topic: "wrong"} and watch.missing == []
            wrong.clear()
            assert await renewed.get() == after
        assert [*watch.made_anew] == [topic]
        assert f"topic {topic!r} was deleted and made anew: the timers that waited" in watch.made_anew[topic]
        constants(module, SHOWN_S=0.0)
        assert not watch.made_anew, "after a while it is not shown any more"
        assert watch.problems == {} and set(map(frozenset, checked)) == {frozenset({topic})}


async def test_a_topic_without_timers_that_is_made_anew_is_said_and_not_red(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it was missing for so short a time that nobody saw it."""
    settings = Settings(brokers="127.0.0.1:1")
    names = [topic.name for topic in own_topics(settings)]
    before = Cluster("c", dict.fromkeys(names, b"1"), dict.fromkeys(names, 1))
    after = Cluster("c", {**before.topic_ids, settings.verdict_topic: b"2"}, before.partitions)
    renewed = asyncio.Queue[Cluster]()

    async def renew(cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None:
        await renewed.put(cluster)

    monkeypatch.setattr(topics, "existing_topics", lambda *_, **__: after)
    monkeypatch.setattr(topics, "config_problems", lambda *_: {})
    watch = LogWatch(settings, before, renew)
    async with watch:
        watch._requested.set()
        async with asyncio.timeout(30):
            assert await renewed.get() == after
    assert watch.made_anew == {}
    assert caplog.text.count(f"topic {settings.verdict_topic} was deleted and made anew") == 1


async def test_configurations_are_compared_again_and_a_right_that_is_lost_is_said_once(
    monkeypatch: pytest.MonkeyPatch, constants: Constants, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(brokers="127.0.0.1:1")
    names = [topic.name for topic in own_topics(settings)]
    cluster = Cluster("c", dict.fromkeys(names, b"1"), dict.fromkeys(names, 1))
    wrong = WrongConfig(settings.request_topic, "cleanup.policy", "compact", RED, "it is compacted")
    answers = [
        replace(cluster, wrong_configs=(wrong,)),
        replace(cluster, wrong_configs=(wrong,), unseen=frozenset({settings.request_topic})),
    ]
    looks = asyncio.Queue[bool]()
    loop = asyncio.get_running_loop()

    def look(_admin: Any, _settings: Settings, _known: Cluster, _s: float, *, with_configs: bool, **_: bool) -> Cluster:
        loop.call_soon_threadsafe(looks.put_nowait, with_configs)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    renewed: list[Cluster] = []

    async def renew(cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None:
        renewed.append(cluster)

    constants(module, WATCH_S=0.01, PAUSE_S=0.01)
    monkeypatch.setattr(topics, "existing_topics", look)
    watch = LogWatch(settings, cluster, renew)
    assert not watch.cluster.wrong_configs
    async with watch:
        async with asyncio.timeout(30):
            assert [await looks.get() for _ in range(5)] == [True] * 5
    assert watch.cluster.wrong_configs == (wrong,)
    assert [each.compacted for each in renewed] == [{settings.request_topic: "it is compacted"}] * 2, "two changes"
    assert caplog.text.count("it is compacted") == 1
    assert caplog.text.count(f"topic {settings.request_topic}: the right to Describe") == 1


async def test_the_log_of_transactions_is_looked_at_each_hour_and_while_something_is_wrong_with_it(
    monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    """It changes hardly ever. What a command has mended is seen soon."""
    cluster, looks = Cluster("c", {}, {}), list[tuple[bool, bool]]()

    def look(*_: Any, with_configs: bool, with_transactions: bool) -> Cluster:
        looks.append((with_configs, with_transactions))
        return cluster

    async def renew(*_: Any) -> None: ...

    constants(module, WATCH_S=0.0)
    monkeypatch.setattr(topics, "existing_topics", look)
    watch, now_s = LogWatch(Settings(brokers="127.0.0.1:1"), cluster, renew), monotonic()
    weak = WrongConfig("__transaction_state", "min.insync.replicas", "1", WARNING, "it is weak")
    for after_s, wrong in ((10, ()), (20, (weak,)), (30, ()), (3630, ()), (3640, ())):
        monkeypatch.setattr(module, "monotonic", lambda after_s=after_s: now_s + after_s)
        watch.cluster = replace(cluster, wrong_configs=wrong)
        await watch._existing()
    assert looks == [(True, False), (True, True), (True, False), (True, True), (True, False)]


async def test_a_topic_of_users_that_is_missing_keeps_no_refusal_that_is_over(
    monkeypatch: pytest.MonkeyPatch, constants: Constants
) -> None:
    settings = Settings(brokers="127.0.0.1:1", schedule_topics=("plans",))
    names = [topic.name for topic in own_topics(settings)]
    whole = Cluster("c", dict.fromkeys(names, b"1"), dict.fromkeys(names, 1))
    seen, refusals = [whole.without([settings.verdict_topic, "plans"])], list[str]()

    def ensure(settings: Settings, *, user_topics: bool, asking: tuple[Any, Any]) -> Cluster:
        if not refusals:
            refusals.append("lacks Create")
            raise AccessError("lacks Create")
        refusals.append(watch.refusal)
        seen.append(whole.without(["plans"]))
        return whole

    async def renew(cluster: Cluster, suspended: Mapping[TopicPartition, bool]) -> None: ...

    constants(module, GRACE_S=-1.0, RETRY_S=0.01, PAUSE_S=0.01, FIRST_REFUSED_S=0.01)
    monkeypatch.setattr(topics, "existing_topics", lambda *_, **__: seen[-1])
    monkeypatch.setattr(topics, "ensure", ensure)
    monkeypatch.setattr(topics, "config_problems", lambda *_: {})
    watch = LogWatch(settings, whole, renew)
    async with watch:
        watch._requested.set()
        await until(lambda: watch.missing == ["plans"] and not watch.refusal)
    assert refusals == ["lacks Create", "lacks Create"]


# ---- leaders of the progress topic -----------------------------------------------------------------------------------


PLACE = ("app-progress", 0)


class SimLeaders:
    """Leaders of the progress topic. Each broker has one connection until it restarts."""

    def __init__(self) -> None:
        self.leader = 1
        self.connections: dict[int, object] = {1: object(), 2: object()}
        self.looks = 0
        self.silent = False

    async def by_leader(self, tps: Any) -> dict[int, Any]:
        return {self.leader: list(tps)}

    async def last_stable_offsets(self, leader: int, tps: Any) -> None:
        self.looks += 1
        if self.silent:
            raise KafkaConnectionError

    def connection_to(self, leader: int) -> object:
        return self.connections[leader]

    async def close(self) -> None: ...


async def nothing_parted(*_: Any, **__: Any) -> dict[Any, Any]:
    return {}


@pytest.mark.parametrize(
    "change",
    [
        lambda leaders: leaders.connections.update({1: object()}),
        lambda leaders: setattr(leaders, "leader", 2),
    ],
    ids=["restarted", "another"],
)
async def test_all_machines_commit_once_after_a_leader_of_the_progress_topic_has_changed(
    change: Callable[[SimLeaders], object], constants: Constants
) -> None:
    constants(lineage_watch, CHECK_S=0.001)
    leaders, commits = SimLeaders(), []
    lineages: Any = SimpleNamespace(client=leaders, parted=nothing_parted)
    runner: Any = SimpleNamespace(
        machine=SimpleNamespace(lineages=()), commit_soon=lambda: commits.append(leaders.looks)
    )
    watch = LineageWatch(lineages, lambda: {("requests", 0): runner}, (), lambda: [PLACE], lambda *_: None)

    async def look_on() -> None:
        seen = leaders.looks
        while leaders.looks < seen + 2:
            await asyncio.sleep(0.001)

    await look_on()
    assert commits == [], "nothing has changed"
    leaders.silent = True
    await look_on()
    leaders.silent = False
    change(leaders)
    await look_on()
    await look_on()
    await watch.close()
    assert len(commits) == 1
