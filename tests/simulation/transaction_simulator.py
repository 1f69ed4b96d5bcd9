"""Runs the producer of a machine against simulated brokers, over a network that loses and holds back requests.

The product's own code makes the requests, from the choice of the version to the end of a transaction. Simulated are the
transaction coordinator, the leaders of partitions, and the time: the event loop does not wait. A request may be lost,
it may be done without an answer, and it may arrive later, also in a later transaction. A second owner takes over at
times, also in the middle of a rollback, brokers refuse records, the group's coordinator takes no offsets for a while,
and the cluster changes ``transaction.version``.

A run checks that each value is committed once in each partition that it was meant for, that offsets are committed in
the transaction of their value, all that were acknowledged, that the loser of a takeover is told so, and that without
faults nothing is opened anew.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from aiokafka import TopicPartition
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import InvalidTxnState, KafkaError, ProducerFenced, RequestTimedOutError, UnknownError
from aiokafka.producer.transaction_manager import TransactionManager, TransactionState
from aiokafka.protocol.types import Int64

from timers.core.ports import BatchesRefused, DeliveryFailed, Lost, Unanswered
from timers.kafka.aiokafka_internals import broker_answers, produce
from timers.kafka.aiokafka_internals.broker_answers import TRANSACTION_VERSION, BrokerAnswers
from timers.kafka.aiokafka_internals.refusals import RecordsRefused
from timers.kafka.aiokafka_internals.requests import EPOCH_TAG, FINALIZED, FINALIZED_TAG, NO_TAGS
from timers.machines.firing.producer import TransactionalProducer
from timers.process.config.settings import Settings
from timers.process.config.variables import AUTO
from timers.process.partition_metrics import PartitionMetrics

Place = tuple[str, int]

OWN: Place = ("requests", 0)
"""Partition of the machine: each transaction writes its value there, as progress."""
TARGETS: tuple[Place, ...] = (("a", 0), ("a", 1), ("b", 0))
GROUP: Place = ("group", 0)
BROKERS = OWNERS = 2
HAPPENS = (
    *("committed", "reopened", "fenced", "refused", "versions", "attempts"),
    *("offsets", "between", "during", "without offsets"),
)
"""What a run counts."""
MOST_ATTEMPTS = 20
"""Attempts for each value, in the mean of a run."""
MOST_EPOCHS = 6
"""Epochs of an id, in place of Kafka's 32,767."""

TAKES_NONE_S = 60.0
"""For so long the group's coordinator answers and takes no offsets, at times."""
MOST_TRIES = 3
"""Times that an owner tries to commit offsets meanwhile: its pauses are 10, 20 and 40 s."""

OK, LOADING, OUT_OF_ORDER, FENCED_EPOCH, BAD_STATE, BAD_ID, BUSY, REFUSED, FENCED = 0, 14, 45, 47, 48, 49, 51, 87, 90
UNKNOWN = -1


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop that leaps to the time of its next task."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def leap(timeout: float | None) -> Any:
            assert timeout is not None, "all tasks wait for each other"
            self._now_s += max(0.0, timeout)
            return select(0)

        self._selector.select = leap  # type: ignore[attr-defined]

    def time(self) -> float:
        """Seconds since its start."""
        return self._now_s


class SimBatch:
    """A batch of one record.

    Args:
        value: of the record; None: the brokers refuse it.
    """

    def __init__(self, value: int | None) -> None:
        self.value = value
        self._state: tuple[int, ...] = (-1, -1, -1)

    def record_count(self) -> int:
        return 1

    def _set_producer_state(self, *state: int) -> None:
        self._state = state

    def _build(self) -> tuple[int | None, tuple[int, ...]]:
        return self.value, self._state


@dataclass
class SimPartition:
    """The log of a partition, and what its leader knows of producers."""

    committed: list[int] = field(default_factory=list)
    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Producer id -> its epoch, and the next sequence number."""
    open: dict[int, list[int]] = field(default_factory=dict)
    """Producer id -> the values of its open transaction."""

    def append(self, value: int, id: int, epoch: int, first: int, add: Callable[[], int]) -> int:
        """Append a batch; ``add`` asks the coordinator, if no transaction is open here. Returns an error code."""
        known_epoch, next_number = self.known.get(id, (epoch, 0))
        if epoch < known_epoch:
            return FENCED_EPOCH
        if epoch > known_epoch:
            next_number = 0
        is_open = id in self.open and epoch == known_epoch
        if not is_open and (code := add()):
            return code
        if first < next_number:
            return OK  # it is there
        if first > next_number:
            return OUT_OF_ORDER
        self.open.setdefault(id, []).append(value)
        self.known[id] = epoch, first + 1
        return OK

    def end(self, id: int, epoch: int, *, committed: bool, restarts: bool) -> None:
        """Write a marker."""
        values = self.open.pop(id, [])
        if committed:
            self.committed += values
        _, number = self.known.get(id, (epoch, 0))
        self.known[id] = epoch, 0 if restarts else number


class SimCluster:
    """The transaction coordinator of one transactional id, and the partitions.

    Attributes:
        version: of transactions, as the cluster has finalized it.
        features: how often that has changed.
        joined: a sentence for each partition whose records were appended between the end of a transaction and its
            marker, which belong to no transaction.
    """

    def __init__(self, random: Random, version: int) -> None:
        self.partitions = {place: SimPartition() for place in (OWN, *TARGETS, GROUP)}
        self.version, self.features = version, 0
        self._random = random
        self._next_id = 1
        self._id, self._epoch, self._last = 0, -1, (-1, -1)
        self._state, self._committed = "empty", False
        self._is_fencing = False
        """An opening has marked the open transaction, and does not abort it yet: a commit fails with an exception."""
        self._added: set[Place] = set()
        self.joined: list[str] = []
        self.offsets: list[int] = []
        """Offsets that were committed in a transaction, in this order."""
        self.no_offsets_until_s = -1.0
        """Until then the group's coordinator takes none."""

    def open(self) -> tuple[int, int, int]:
        """Returns an error code, id and epoch."""
        if self._state == "prepared" or self._is_fencing:
            return BUSY, -1, -1
        if self._state == "ongoing":
            self._is_fencing = True
            asyncio.get_running_loop().call_later(self._random.choice([0.0, 0.001, 0.02]), self._fence)
            return BUSY, -1, -1
        self._raise_epoch()
        self._state, self._last = "empty", (-1, -1)
        return OK, self._id, self._epoch

    def _fence(self) -> None:
        self._is_fencing = False
        if self._state != "ongoing":
            return  # its producer has rolled it back meanwhile
        id, epoch = self._id, self._epoch
        if self.version == 2:
            self._last = id, epoch
        self._raise_epoch()
        self._prepare(id, epoch + 1, committed=False, restarts=True)

    def add(self, id: int, epoch: int, places: set[Place]) -> int:
        if id != self._id:
            return BAD_ID
        if epoch != self._epoch:
            return FENCED
        if self._state == "prepared" or self._is_fencing:
            return BUSY
        if self._state != "ongoing":
            self._state, self._added = "ongoing", set()
        self._added |= places
        return OK

    def add_offset(self, id: int, epoch: int, offset: int) -> int:
        if asyncio.get_running_loop().time() < self.no_offsets_until_s:
            return LOADING
        code = self.add(id, epoch, {GROUP})
        if code == OK and offset not in (sent := self.partitions[GROUP].open.setdefault(id, [])):
            sent.append(offset)
        return code

    def verify(self, id: int, epoch: int, place: Place) -> int:
        is_added = (id, epoch, self._state) == (self._id, self._epoch, "ongoing") and place in self._added
        return OK if is_added else BAD_STATE

    def end(self, id: int, epoch: int, *, committed: bool, version: int) -> tuple[int, int, int]:
        """Returns an error code, id and epoch."""
        if version == 2 and (id, epoch) == self._last and self._state in ("prepared", "complete"):
            code = BAD_STATE if committed != self._committed else BUSY if self._state == "prepared" else OK
            return code, self._id, self._epoch
        if id != self._id:
            return BAD_ID, -1, -1
        if epoch != self._epoch:
            return FENCED, -1, -1
        if self._state == "prepared":
            return BUSY, -1, -1
        if self._is_fencing and committed:
            return UNKNOWN, -1, -1
        if self._state != "ongoing":
            again = version == 1 and self._state == "complete" and committed == self._committed
            return OK if again else BAD_STATE, self._id, self._epoch
        marker = id, epoch + (version == 2)
        if version == 2:
            self._last = id, epoch
            self._raise_epoch()
        self._prepare(*marker, committed=committed, restarts=version == 2)
        return OK, self._id, self._epoch

    @property
    def has_new_id_next(self) -> bool:
        """Whether the next opening gets another id."""
        return self._epoch + 1 >= MOST_EPOCHS

    def _raise_epoch(self) -> None:
        self._epoch += 1
        if self._epoch >= MOST_EPOCHS:
            self._id, self._epoch, self._next_id = self._next_id, 0, self._next_id + 1

    def _prepare(self, id: int, epoch: int, *, committed: bool, restarts: bool) -> None:
        self._state, self._committed, places = "prepared", committed, self._added
        held = {place: [*self.partitions[place].open.get(id, ())] for place in places}

        def complete() -> None:
            if committed and (offsets := self.partitions[GROUP].open.get(id, [])) and GROUP in places:
                self.offsets += offsets
                if offsets != (values := self.partitions[OWN].open.get(id, [])):
                    self.joined.append(f"{GROUP}: {offsets} in a transaction of {values}")
            for place in places:
                if (found := self.partitions[place].open.get(id, [])) != held[place]:
                    self.joined.append(f"{place}: {found} in place of {held[place]}")
                self.partitions[place].end(id, epoch, committed=committed, restarts=restarts)
            self._state = "complete"

        asyncio.get_running_loop().call_later(self._random.choice([0.0, 0.001, 0.2]), complete)


class Faults(NamedTuple):
    """Shares of the requests."""

    lost: float = 0.0
    unanswered: float = 0.0
    """Done, without an answer."""
    late: float = 0.0
    """Done later, without an answer."""


class SimClient:
    """aiokafka's producer and its client, of one owner of the machine."""

    def __init__(
        self, cluster: SimCluster, random: Random, faults: Faults, rolled_back: Callable[[], Awaitable[None]]
    ) -> None:
        self._brokers, self._random, self._faults, self._rolled_back = cluster, random, faults, rolled_back
        self.client = self
        self.cluster = SimpleNamespace(leader_for_partition=lambda place: hash(place[1]) % BROKERS)
        self._conns = {(node, ConnectionGroup.DEFAULT): self for node in range(BROKERS)}
        self._sender = SimpleNamespace(
            _acks=-1,
            _request_timeout_ms=6000,
            _coordinators={CoordinationType.TRANSACTION: 0, CoordinationType.GROUP: 0},
            _find_coordinator=self._coordinator,
            _coordinator_dead=lambda kind: None,
            sender_task=None,
        )
        self._txn_manager = TransactionManager("app-requests-0", 10_000)

    async def close(self) -> None: ...

    def connected(self) -> bool:
        return True

    def add_topic(self, topic: str) -> None: ...

    async def ready(self, node: int) -> bool:
        return True

    def force_metadata_update(self) -> asyncio.Future[bool]:
        updated = asyncio.get_running_loop().create_future()
        updated.set_result(True)
        return updated

    async def _coordinator(self, kind: Any, key: str) -> int:
        return 0

    async def send(self, node: int, request: Any, group: Any = None) -> Any:
        kind = type(request).__name__
        fate = self._random.random() if kind != "FindCoordinatorRequest" else 1.0
        lost, unanswered, late = self._faults
        await asyncio.sleep(self._random.choice([0.001, 0.003, 0.02]))
        if fate < lost:
            raise RequestTimedOutError(kind)
        if fate < lost + late:
            later_s = self._random.choice([self._random.uniform(0, 0.1), 3.0])
            asyncio.get_running_loop().call_later(later_s, self._handle, kind, request)
            raise RequestTimedOutError(kind)
        answer = self._handle(kind, request)
        if fate < lost + late + unanswered:
            raise RequestTimedOutError(kind)
        return answer

    async def open(self) -> None:
        """Fence all other owners."""
        self._txn_manager = TransactionManager("app-requests-0", 10_000)
        while True:
            await asyncio.sleep(0.001)
            code, *opening = self._brokers.open()
            if code == OK:
                self._txn_manager.set_pid_and_epoch(*opening)
                return

    def _handle(self, kind: str, request: Any) -> Any:
        return getattr(self, f"_{kind}", lambda _: None)(request)

    def _FeaturesRequest(self, request: Any) -> Any:
        named = [(TRANSACTION_VERSION, self._brokers.version, 0, NO_TAGS)]
        features = {EPOCH_TAG: Int64.encode(self._brokers.features), FINALIZED_TAG: FINALIZED.encode(named)}
        return SimpleNamespace(tags=features)

    def _AddPartitionsToTxnRequest(self, request: Any) -> Any:
        places = {(topic, partition) for topic, partitions in request._topics for partition in partitions}
        code = self._brokers.add(request._producer_id, request._producer_epoch, places)
        return SimpleNamespace(errors=[(topic, [(partition, code)]) for topic, partition in places])

    def _ProduceRequest(self, request: Any) -> Any:
        return self._append(request._topics, self._brokers.verify)

    def _ProduceInTransaction(self, request: Any) -> Any:
        return self._append(request.fields[3], lambda id, epoch, place: self._brokers.add(id, epoch, {place}))

    def _append(self, topics: Any, add: Callable[[int, int, Place], int]) -> Any:
        answers = []
        for topic, partitions, *_ in topics:
            for partition, (value, (id, epoch, first)), *_ in partitions:
                place, code = (topic, partition), REFUSED
                if value is not None:
                    code = self._brokers.partitions[place].append(
                        value, id, epoch, first, partial(add, id, epoch, place)
                    )
                answers.append((topic, [(partition, code, -1, -1, -1, [(0, "bad")], None)]))
        return SimpleNamespace(topics=answers, throttle_time_ms=0, API_VERSION=8)

    def _OffsetsInTransaction(self, request: Any) -> Any:
        _, _, id, epoch, *_, topics, _ = request.fields
        ((_, offset, *_),) = topics[0][1]
        return SimpleNamespace(topics=[("requests", [(0, self._brokers.add_offset(id, epoch, offset), {})], {})])

    def _EndTxnRequest(self, request: Any) -> Any:
        ours, committed = (request._producer_id, request._producer_epoch), request._transaction_result
        return SimpleNamespace(error_code=self._brokers.end(*ours, committed=committed, version=1)[0])

    def _EndTransaction(self, request: Any) -> Any:
        _, id, epoch, committed, _ = request.fields
        code, id, epoch = self._brokers.end(id, epoch, committed=committed, version=2)
        return SimpleNamespace(error_code=code, producer_id=id, producer_epoch=epoch)

    # ---- what aiokafka's sender does in version 1 ------------------------------------------------------------------

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> Any:
        if batch.value is not None:
            raise RequestTimedOutError(topic)
        refused = asyncio.get_running_loop().create_future()
        refused.set_exception(RecordsRefused(topic, partition, REFUSED, "bad", ()))
        return refused

    async def send_offsets_to_transaction(self, offsets: Any, group: str) -> None:
        ((_, named),) = offsets.items()
        id, epoch = self._txn_manager._pid_and_epoch
        while code := self._brokers.add_offset(id, epoch, named.offset):
            if code not in (LOADING, BUSY):
                raise ProducerFenced if code == FENCED else InvalidTxnState
            await asyncio.sleep(0.1)

    async def abort_transaction(self) -> None:
        manager = self._txn_manager
        if self._brokers.end(*manager._pid_and_epoch, committed=False, version=1)[0] == FENCED:
            raise ProducerFenced
        manager._transition_to(TransactionState.ABORTING_TRANSACTION)
        manager.complete_transaction()
        await self._rolled_back()


class Owner(TransactionalProducer):
    """The producer of one owner of the machine; the product's, except that it opens a simulated client."""

    def __init__(self, cluster: SimCluster, random: Random, faults: Faults, answers: BrokerAnswers) -> None:
        self._new_client = partial(SimClient, cluster, random, faults, self._after_rollback)
        self.between: Callable[[], Awaitable[None]] | None = None
        """Runs in a rollback of version 1, between the end of the transaction and the opening."""
        self._settings = Settings(transaction_version=AUTO)
        self._machine, self._transactional_id = OWN, "app-requests-0"
        self._loop: Any = SimpleNamespace(answers=answers)
        self._metrics = PartitionMetrics()
        self._producer: Any = None
        self._road, self.held_from = produce.VERSION_ONE, set()

    async def _after_rollback(self) -> None:
        if self.between is not None:
            await self.between()

    async def _open(self) -> None:
        client: Any = self._new_client()
        await client.open()
        await self._choose_road(client)
        self._producer = client


class TransactionSimulator:
    """One run.

    Args:
        seed: decides all.
        faults: of the network; None: the seed decides.
        version: the first one of the cluster; None: the seed decides.

    Attributes:
        counts: what happened.
    """

    def __init__(self, seed: int, faults: Faults | None = None, version: int | None = None) -> None:
        self._random = random = Random(seed)
        drawn = Faults(*(random.choice([0.0, 0.05, 0.1]) for _ in Faults()))
        self._faults = drawn if faults is None else faults
        self._changes = version is None
        self._cluster = SimCluster(random, version or random.choice([1, 2]))
        self._meant: dict[Place, list[int]] = {place: [] for place in (OWN, *TARGETS)}
        self.counts = dict.fromkeys(HAPPENS, 0)
        self._error: BaseException | None = None
        """The last one of an owner."""
        self._acknowledged: list[int] = []
        """Offsets of transactions whose commit was answered."""

    def run(self, values: int = 30) -> None:
        """Commit so many values. Raises AssertionError if a promise is broken."""
        loop = SimLoop()
        try:
            with pytest.MonkeyPatch.context() as patch:
                for module in (broker_answers, produce):  # else a slow machine would have another run
                    patch.setattr(module, "monotonic", loop.time)
                loop.run_until_complete(self._commit_all(values))
        finally:
            loop.close()

    async def _commit_all(self, values: int) -> None:
        owners = [self._owner() for _ in range(OWNERS)]
        place, value = 0, 0
        await owners[place]._open()
        while value < values:
            self.counts["attempts"] += 1
            assert self.counts["attempts"] < MOST_ATTEMPTS * values, "no value is committed any more"
            if self._changes and self._random.random() < 0.2:
                await self._change_version(owners)
            if self._random.random() < 0.02 and not self.counts["without offsets"]:
                self.counts["without offsets"] += 1
                self._cluster.no_offsets_until_s = asyncio.get_running_loop().time() + TAKES_NONE_S
            if self._random.random() < 0.15:
                place = await self._take_over(owners, place, value)
                value = self._next()
                continue
            owners[place].between = partial(self._come_between, owners[1 - place], range(value, values))
            if await self._try_to_commit(owners[place], value, self._plan(value)):
                value += 1
            else:
                await owners[place]._open()
                value = self._next()
        await owners[place]._open()  # all markers are written
        assert not self._cluster.joined, "records after the end of their transaction"
        for at, meant in self._meant.items():
            found = self._cluster.partitions[at].committed
            assert sorted(found) == meant, f"{at}: {found} in place of {meant}"
        assert set(self._acknowledged) <= {*self._cluster.offsets}, "offsets of an answered commit are missing"
        self.counts["committed"], self.counts["offsets"] = value, len(self._cluster.offsets)

    def _owner(self) -> Owner:
        return Owner(self._cluster, self._random, self._faults, BrokerAnswers())

    def _next(self) -> int:
        """The first value that is not committed, by the progress. A new owner asks it after its opening."""
        return len(self._cluster.partitions[OWN].committed)

    def _plan(self, value: int) -> list[Place]:
        """Partitions of a value: the same ones in each attempt."""
        random = Random(f"{value}")
        places = [OWN, *random.sample(TARGETS, random.randint(1, len(TARGETS)))]
        for place in places:
            if value not in self._meant[place]:
                self._meant[place].append(value)
        return places

    async def _change_version(self, owners: list[Owner]) -> None:
        """The cluster changes the version. Owners learn it at once, as after a ping."""
        self._cluster.version, self._cluster.features = 3 - self._cluster.version, self._cluster.features + 1
        self.counts["versions"] += 1
        for owner in owners:
            owner._loop.answers._features = self._cluster.features, self._cluster.version

    async def _take_over(self, owners: list[Owner], place: int, value: int) -> int:
        """Another owner opens the machine, at times in the middle of a transaction; the former one must not commit any
        more."""
        if self._random.random() < 0.7:
            await self._come_during(owners[place], owners[1 - place], value)
        else:
            await owners[1 - place]._open()
        before = {at: [*each.committed] for at, each in self._cluster.partitions.items()}
        if owners[place]._producer._txn_manager.state == TransactionState.READY:
            self.counts["fenced"] += 1
            assert not await self._try_to_commit(owners[place], value, [OWN]), "the former owner has committed"
        assert before == {at: each.committed for at, each in self._cluster.partitions.items()}
        return 1 - place

    async def _come_during(self, former: Owner, other: Owner, value: int) -> None:
        """Without faults, the owner of a transaction that an opening ends is told of the fence, and of nothing else."""
        committing = asyncio.create_task(self._try_to_commit(former, value, self._plan(value), may_refuse=False))
        await asyncio.sleep(self._random.uniform(0.0, 0.05))
        id, _ = produce.opening(former._producer)
        await other._open()
        if await committing:
            return
        self.counts["fenced"] += 1
        self.counts["during"] += 1
        is_told = not isinstance(self._error, (InvalidTxnState, UnknownError))
        assert is_told or self._faults != Faults() or self._changes or produce.opening(other._producer)[0] != id, (
            f"the loser learned {self._error!r}"
        )

    async def _come_between(self, other: Owner, following: range) -> None:
        """At times another owner opens the machine while a rollback of version 1 is going on, and may commit values."""
        if self._random.random() < 0.5:
            self.counts["fenced"] += self._cluster.has_new_id_next
            return
        self.counts["fenced"] += 1
        self.counts["between"] += 1
        await other._open()
        for value in following[: self._random.randint(0, 2)]:
            if not await self._try_to_commit(other, value, self._plan(value), may_refuse=False):
                return

    async def _try_to_commit(self, owner: Owner, value: int, places: list[Place], *, may_refuse: bool = True) -> bool:
        """Returns whether it has committed a value; if not, the machine must be opened anew."""
        is_bad = may_refuse and self._random.random() < 0.05
        for bad in (True, False) if is_bad else (False,):
            batches: Mapping[Place, Any] = {place: [SimBatch(value)] for place in places}
            if bad:
                batches[places[-1]].append(SimBatch(None))
            offsets: Any = {}
            if self._random.random() < 0.3:
                offsets = {TopicPartition(*OWN): SimpleNamespace(offset=value, metadata="")}
            try:
                with_offsets = await owner._transact(batches, offsets)  # type: ignore[arg-type]
                assert not bad, "a refused record was committed"
                self._acknowledged += [each.offset for each in offsets.values() if with_offsets]
            except BatchesRefused:
                assert bad, "nothing was refused"
                self.counts["refused"] += 1
            except (KafkaError, Lost, DeliveryFailed, Unanswered, TimeoutError, AssertionError) as error:
                if type(error) is AssertionError and "committed" in str(error):
                    raise
                self.counts["reopened"] += 1
                self._error = error
                return False
        return True


class AllTransactions:
    """The runs of a seed: each version, and changes between them, with the faults of the seed and without faults.

    Attributes:
        counts: what happened.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Do all runs. Raises AssertionError if a promise is broken."""
        for version in (1, 2, None):
            for faults in (None, Faults()):
                simulator = TransactionSimulator(self._seed, faults, version)
                simulator.run()
                if faults is not None and version is not None:
                    without_reason = simulator.counts["reopened"] - simulator.counts["fenced"]
                    most = OWNERS * MOST_TRIES * simulator.counts["without offsets"]
                    assert 0 <= without_reason <= most, "opened anew without a reason"
                self.counts += Counter(simulator.counts)
