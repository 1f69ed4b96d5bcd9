"""In how many round trips an opening reads its progress, and what happens while leaders do not answer."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, GroupCoordinatorNotAvailableError, NotLeaderForPartitionError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka import KafkaException

from tests.harness.constants import Constants
from tests.harness.round_trips import RoundTrips
from timers.core.progress import LOG_CUT, Progress
from timers.errors import LogMismatch
from timers.kafka import progress_log
from timers.kafka.aiokafka_internals.leader_client import RawFetch
from timers.kafka.progress_log import ProgressLog
from timers.kafka.topics import Cluster
from timers.process.config.settings import Settings
from timers.wire import progress as progress_record

TP, FAR = ("timer-request", 0), ("timer-request", 4)
TOPIC_ID = b"0123456789abcdef"
SETTINGS = Settings()
FOUND = Progress(7, (900, 3))


def record(progress: Progress, tp: tuple[str, int] = TP, topic_id: bytes = TOPIC_ID) -> bytes:
    """A batch of the progress topic, outside of a transaction."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10**6)
    value = progress_record.encode(progress, topic_id, progress_record.machine_name(SETTINGS.app_id, *tp))
    builder.append(0, 1, progress_record.encode_key(*tp), value, [])
    return bytes(builder.build())


def copy_of(progress: Progress, topic_id: bytes = TOPIC_ID) -> tuple[int, str]:
    """What the group has of a progress."""
    return progress.next_offset, progress_record.encode_witness(progress, topic_id)


class SimLeaders:
    """Leaders whose answers to all that was asked come together, one round trip later.

    Attributes:
        fails: how many questions are answered with an error.
        round_trips: of their answers.
        group: what the group has, or the error of its coordinator.
        progress: the record of the progress topic, or None, at each question for its end; the last one stays.
        request_ends: of the request log, at each question; the last one stays.
        elsewhere: partition of the progress topic -> its batch, in place of ``progress``.
    """

    def __init__(self, *_: object) -> None:
        self.fails = 0
        self.group: tuple[int, str] | Exception = copy_of(FOUND)
        self.progress: list[Progress | None] = [FOUND]
        self.request_ends = [(3, 9)]
        self.elsewhere: dict[int, bytes] = {}
        self.round_trips = RoundTrips()

    async def connect(self, topics: object) -> None: ...

    async def close(self) -> None: ...

    def leader_of(self, topic: str, partition: int) -> int:
        return 7

    async def _answer(self) -> None:
        await self.round_trips.wait()
        if self.fails:
            self.fails -= 1
            raise NotLeaderForPartitionError

    async def ends(self, leader: int, tp: tuple[str, int]) -> tuple[int, int]:
        await self._answer()
        if tp[0] != SETTINGS.progress_topic:
            return self.request_ends.pop(0) if len(self.request_ends) > 1 else self.request_ends[0]
        if self.elsewhere:
            return 0, int(tp[1] in self.elsewhere)
        self._shown = self.progress.pop(0) if len(self.progress) > 1 else self.progress[0]
        return 0, int(self._shown is not None)

    async def fetch(self, leader: int, tp: tuple[str, int], offset: int) -> RawFetch:
        await self._answer()
        if self.elsewhere:
            return RawFetch(0, 1, self.elsewhere[tp[1]])
        return RawFetch(0, 1, b"" if self._shown is None else record(self._shown))

    async def committed(self, group: str, tp: tuple[str, int]) -> tuple[int, str]:
        await self._answer()
        if isinstance(self.group, Exception):
            raise self.group
        return self.group


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch, constants: Constants) -> SimLeaders:
    found = SimLeaders()
    monkeypatch.setattr(progress_log, "LeaderClient", lambda *_: found)
    constants(progress_log, SETTLED_S=0.1)
    return found


@pytest.fixture
def log(leaders: SimLeaders) -> Iterator[ProgressLog]:
    cluster = Cluster("c", {TP[0]: TOPIC_ID}, {TP[0]: 1, SETTINGS.progress_topic: 1})
    made = ProgressLog(SETTINGS, cluster, timeout_s=60.0)
    yield made
    made.close()


def test_an_opening_waits_for_two_round_trips(log: ProgressLog, leaders: SimLeaders) -> None:
    """The ends of both logs and the group are asked at once."""
    records, progress, ends = log.read_one(TP)
    assert (set(records), progress, ends) == ({TP}, FOUND, (3, 9))
    assert leaders.round_trips.count == 2


@pytest.mark.parametrize(("after_fence", "expected"), [(True, (3, 9)), (False, (3, 12))])
def test_an_owner_that_is_not_fenced_has_gone_on(
    log: ProgressLog, leaders: SimLeaders, after_fence: bool, expected: tuple[int, int]
) -> None:
    """If the end of its log was asked for before its progress was read, the log would seem to have lost its end."""
    leaders.request_ends = [(3, 9), (3, 12)]
    assert log.read_one(TP, after_fence=after_fence)[2] == expected


@pytest.mark.parametrize("has_progress", [True, False])
@pytest.mark.parametrize("after_fence", [True, False])
def test_a_copy_that_says_more_is_compared_again(
    log: ProgressLog, leaders: SimLeaders, constants: Constants, after_fence: bool, has_progress: bool
) -> None:
    """A transaction ends in the group's partition, and a moment later in that of the progress."""
    before = Progress(6, (800, 3)) if has_progress else None
    leaders.progress = [before, before, FOUND]
    constants(progress_log, SETTLED_S=60.0)
    assert log.read_one(TP, after_fence=after_fence)[1] == FOUND


def test_leaders_that_change_are_asked_again(log: ProgressLog, leaders: SimLeaders) -> None:
    leaders.fails = 3
    assert log.read_one(TP)[1] == FOUND


def test_without_an_answer_in_time_it_says_what_was_asked(log: ProgressLog, leaders: SimLeaders) -> None:
    leaders.fails, log._timeout_s = 10_000, 1.0
    with pytest.raises(KafkaException, match=r"reading the end of timer-request/0: NotLeaderForPartitionError"):
        log.ends(*TP)


def test_a_group_that_has_a_newer_copy_is_believed(log: ProgressLog, leaders: SimLeaders) -> None:
    leaders.group = copy_of(Progress(8, (900, 3)))
    with pytest.raises(LogMismatch, match="lost records, or an older record was written there") as mismatch:
        log.read_one(TP)
    assert "fired after this copy, for 5 s at most, may fire again. To go on with" in str(mismatch.value)


@pytest.mark.parametrize("error", [GroupCoordinatorNotAvailableError(), GroupAuthorizationFailedError()])
def test_a_silent_group_delays_only_new_machines(log: ProgressLog, leaders: SimLeaders, error: Exception) -> None:
    leaders.group = error
    assert log.read_one(TP)[1] == FOUND
    leaders.progress, log._timeout_s = [None], 1.0
    with pytest.raises(KafkaException, match=type(error).__name__):
        log.read_one(TP)


def test_a_group_with_an_offset_stops_a_machine_without_progress(log: ProgressLog, leaders: SimLeaders) -> None:
    _, of_other_topic = copy_of(Progress(7, (900, 3)), b"other")
    leaders.progress, leaders.group = [None], (7, of_other_topic)
    with pytest.raises(LogMismatch, match=r"has no progress in .* committed offset 7"):
        log.read_one(TP)


@pytest.mark.parametrize("copy", [(-1, ""), (7, ""), (7, "of another program")])
def test_an_offset_of_another_program_stops_none(log: ProgressLog, leaders: SimLeaders, copy: tuple[int, str]) -> None:
    leaders.progress, leaders.group = [None], copy
    assert log.read_one(TP)[1] == Progress()


STALE = Progress(5, (700, 3))
CUT = replace(FOUND, next_offset=4).with_setting(LOG_CUT, 1)
HOLE = FOUND.without_time()


@pytest.mark.parametrize(
    ("here", "there", "group", "newest"),
    [
        pytest.param(None, record(FOUND, FAR), FOUND, FOUND, id="there only"),
        pytest.param(record(STALE, FAR), record(FOUND, FAR), FOUND, FOUND, id="here is one that was there before"),
        pytest.param(record(FOUND, FAR), record(STALE, FAR), FOUND, FOUND, id="here"),
        pytest.param(None, record(CUT, FAR), CUT, CUT, id="a log that was cut"),
        pytest.param(record(FOUND, FAR), record(CUT, FAR), CUT, CUT, id="the cut took offsets back"),
        pytest.param(record(FOUND, FAR), record(HOLE, FAR), HOLE, HOLE, id="the hole took the second back"),
        pytest.param(
            record(replace(FOUND, fired_through=(800, 3)), FAR), record(FOUND, FAR), FOUND, FOUND, id="the same offset"
        ),
        pytest.param(record(FOUND, FAR, b"former"), record(STALE, FAR), STALE, STALE, id="here of a former topic"),
        pytest.param(record(STALE, FAR), record(FOUND, FAR, b"former"), STALE, STALE, id="there of a former topic"),
    ],
)
def test_of_the_places_that_a_machine_had_the_newest_progress_counts(
    leaders: SimLeaders, here: bytes | None, there: bytes, group: Progress, newest: Progress
) -> None:
    """Its topic had 2 partitions, then 3, and has 4 now: machine 4 wrote to partition 0, then to 1, and 0 again."""
    cluster = Cluster("c", {FAR[0]: TOPIC_ID}, {FAR[0]: 5, SETTINGS.progress_topic: 4})
    leaders.elsewhere = {1: there} if here is None else {0: here, 1: there}
    leaders.group = copy_of(group)
    with closing(ProgressLog(SETTINGS, cluster, timeout_s=60.0)) as log:
        assert log.read_one(FAR)[1] == newest


@pytest.mark.parametrize("only_some", [False, True])
def test_commands_find_the_progress_of_all_machines_also_where_it_was(leaders: SimLeaders, only_some: bool) -> None:
    """`timers export` of a partition without progress would say that nothing is pending."""
    cluster = Cluster("c", {FAR[0]: TOPIC_ID}, {FAR[0]: 5, SETTINGS.progress_topic: 8})
    leaders.elsewhere = {0: record(STALE, FAR), 1: record(FOUND, FAR)}
    with closing(ProgressLog(SETTINGS, cluster, timeout_s=60.0)) as log:
        found = log.read([FAR], after_fence=False, only_some=only_some)
    assert progress_record.decode(found[FAR], progress_record.ANY_LEVEL, "")[0] == FOUND
