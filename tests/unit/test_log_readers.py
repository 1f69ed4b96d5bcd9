"""Which groups may read a topic: what a broker says, and what it does not say."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    GroupLoadInProgressError,
    IncompatibleBrokerVersion,
    NotCoordinatorForGroupError,
)
from aiokafka.protocol.admin import ListGroupsRequest

from timers.kafka.aiokafka_internals import log_readers, sessions
from timers.kafka.aiokafka_internals.log_readers import GROUPS_A_REQUEST, UNSTABLE_OFFSET_COMMIT, ReadingGroup
from timers.kafka.aiokafka_internals.other_groups import (
    GROUP_ID_NOT_FOUND,
    DescribeShareGroupOffsets,
    FetchOffsetsOfGroups,
    ListAllGroups,
)
from timers.machines.log_trimmer import LogTrimmer, Refused
from timers.process.config.settings import Settings

TOPIC = "requests"


def said(group: str, *offsets: int, code: int = 0, place_code: int = 0, topic: str = TOPIC) -> dict[str, Any]:
    places = [{"partition": p, "offset": each, "error_code": place_code} for p, each in enumerate(offsets)]
    return {"group": group, "error_code": code, "topics": [{"topic": topic, "partitions": places}]}


class SimBroker:
    """A broker with groups, as an aiokafka client asks it."""

    def __init__(
        self, groups: dict[str, str], answers: dict[str, dict[str, Any]], lacks: tuple[type, ...] = ()
    ) -> None:
        self._groups, self._answers, self._lacks = groups, answers, lacks
        self.asked: list[list[str]] = []
        self.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=3)])

    async def bootstrap(self) -> None: ...

    async def close(self) -> None: ...

    async def send(self, broker: int, request: Any) -> Any:
        assert broker == 3
        if isinstance(request, self._lacks):
            raise IncompatibleBrokerVersion
        if isinstance(request, ListAllGroups):
            return SimpleNamespace(
                error_code=0, groups=[(id, "", "Empty", kind, {}) for id, kind in self._groups.items()]
            )
        if isinstance(request, ListGroupsRequest):
            return SimpleNamespace(error_code=0, groups=[(id, "consumer") for id in self._groups])
        assert isinstance(request, FetchOffsetsOfGroups | DescribeShareGroupOffsets)
        groups = [each[0] for each in request.fields[0]]
        self.asked.append(groups)
        return SimpleNamespace(
            to_object=lambda: {"groups": [self._answers.get(each, said(each, -1)) for each in groups]}
        )


def readers(monkeypatch: pytest.MonkeyPatch, broker: SimBroker) -> list[ReadingGroup]:
    monkeypatch.setattr(sessions, "AIOKafkaClient", lambda **_: broker)
    return asyncio.run(
        log_readers.log_readers({"bootstrap_servers": ["b:1"]}, TOPIC, 2, {"app", "left-out"}, lambda: None)
    )


def test_groups_with_an_offset_are_found_whatever_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "billing": said("billing", -1, 5),
        "streams-app": said("streams-app", 0),
        "shared": said("shared", -1),
        "shared-elsewhere": said("shared-elsewhere", 7, topic="other"),
        "in a transaction": said("in a transaction", -1, place_code=UNSTABLE_OFFSET_COMMIT),
        "gone": said("gone", code=GROUP_ID_NOT_FOUND),
        "app": said("app", 5),
        "left-out": said("left-out", 5),
    }
    kinds = {"streams-app": "Streams", "shared": "Share", "shared-elsewhere": "Share", "billing": "Consumer"}
    broker = SimBroker({name: kinds.get(name, "Classic") for name in (*answers, "idle")}, answers)
    found = readers(monkeypatch, broker)
    assert sorted(each.group for each in found if not each.unasked) == [
        "billing",
        "in a transaction",
        "shared",
        "streams-app",
    ]
    assert len(found) == 4
    assert not {"app", "left-out"} & {group for groups in broker.asked for group in groups}


@pytest.mark.parametrize(
    ("kind", "answer", "lacks", "why"),
    [
        ("Consumer", said("a", code=GroupAuthorizationFailedError.errno), (), "GROUP_AUTHORIZATION_FAILED"),
        ("Share", {"group": "a", "error_code": GroupAuthorizationFailedError.errno, "topics": []}, (), "GROUP_AUTH"),
        ("Streams", said("a", -1, place_code=-1), (), "UNKNOWN"),
        ("Share", {}, (DescribeShareGroupOffsets,), "IncompatibleBrokerVersion"),
        ("Tomorrow", {}, (), "groups of this kind are not known"),
    ],
)
def test_a_group_that_cannot_be_asked_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: str, answer: dict[str, Any], lacks: tuple[type, ...], why: str
) -> None:
    (found,) = readers(monkeypatch, SimBroker({"a": kind}, {"a": answer}, lacks))
    assert found.group == "a" and why in found.unasked


@pytest.mark.parametrize("error", [NotCoordinatorForGroupError, GroupLoadInProgressError])
def test_a_group_that_moves_is_asked_again_later(monkeypatch: pytest.MonkeyPatch, error: type[Any]) -> None:
    with pytest.raises(error):
        readers(monkeypatch, SimBroker({"a": "Classic"}, {"a": said("a", code=error.errno)}))


def test_a_broker_that_knows_no_kinds_lists_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SimBroker({"a": "", "b": ""}, {"b": said("b", 1)}, (ListAllGroups,))
    assert readers(monkeypatch, broker) == [ReadingGroup("b", "classic", offsets=((0, 1),))]


def test_many_groups_are_asked_in_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SimBroker({f"g{index}": "Classic" for index in range(2 * GROUPS_A_REQUEST + 1)}, {})
    assert readers(monkeypatch, broker) == []
    assert [len(groups) for groups in broker.asked] == [GROUPS_A_REQUEST, GROUPS_A_REQUEST, 1]


def trimmer(leaders: dict[int, int] | None) -> LogTrimmer:
    """A trimmer of a cluster whose topic of groups has these leaders; None: there is no such topic."""
    groups = {} if leaders is None else {"__consumer_offsets": leaders}
    listed = {
        name: SimpleNamespace(partitions={each: SimpleNamespace(id=each, leader=by) for each, by in found.items()})
        for name, found in groups.items()
    }
    found = LogTrimmer.__new__(LogTrimmer)
    found._settings = Settings.load({"TIMERS_BROKERS": "127.0.0.1:1"})
    found._admin = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics=listed))  # type: ignore[assignment]
    return found


def test_groups_that_no_broker_lists_stop_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "AIOKafkaClient", lambda **_: SimBroker({}, {}))
    assert list(trimmer(None).other_readers(TOPIC, 2, lambda: None)) == []
    assert list(trimmer({0: 1, 1: 3}).other_readers(TOPIC, 2, lambda: None)) == []
    with pytest.raises(Refused, match=r"^partitions \[1\] of __consumer_offsets have no leader"):
        list(trimmer({0: 1, 1: -1}).other_readers(TOPIC, 2, lambda: None))


def test_the_history_of_the_app_is_known_by_how_far_it_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    group = f"{Settings.load({'TIMERS_BROKERS': '127.0.0.1:1'}).app_id}-history"
    answers = {group: said(group, 7, -1), "others-history": said("others-history", 1)}
    broker = SimBroker(dict.fromkeys(answers, "Classic"), answers)
    monkeypatch.setattr(sessions, "AIOKafkaClient", lambda **_: broker)
    asked = trimmer(None)
    assert list(asked.other_readers(TOPIC, 2, lambda: None)) == ["group 'others-history'"]
    assert asked.read_by_history == {0: 7}


def test_groups_that_cannot_be_listed_are_a_reason_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an error that ends the look in silence: the metric and the alert must say that nothing is deleted."""
    broker = SimBroker({"a": "Classic"}, {"a": said("a", code=GroupLoadInProgressError.errno)})
    monkeypatch.setattr(sessions, "AIOKafkaClient", lambda **_: broker)
    with pytest.raises(Refused, match=r"^the groups that may read it cannot be listed"):
        list(trimmer(None).other_readers(TOPIC, 2, lambda: None))
