"""The roads of a timer and of a message: which files a reader needs to follow them, and how often one comes back.

A road is the calls that enter a file of ``timers`` from another one. A call that enters a file again is a *return*;
that a function ends, or that a generator goes on, is none. There are two kinds.

**Walked**: the parts of a native timer's road that run in one thread, from the machine's queue to the write of the
store, and from a tick to the commit. They are run, and each call is noted. CONTRIBUTING draws both. What the harness
puts in the place of brokers (the producer, and what is known of topics) is not part of them. Calls of compiled code are
not seen, so the writer of callbacks is the one in Python, and the sums are left out.

**Written**: whole roads, over all threads and processes: :data:`WORKER`, :data:`SPARK` and :data:`QUEUE`. They are
compared with the source: each function must exist, and its caller, which stands above it one step to the left, must
name it. They leave out metrics, logs, what is done on an error, and what only looks up a value.

To add a step, write a line below its caller, two spaces more to the right: the file below ``timers``, and the name of
the function as in a traceback, with its classes and without ``<locals>``.

* With ``by NAME`` at the end the caller names something else: the queue in which it puts a value, the attribute that
  holds the function, the class that it makes.
* A line without indentation is another thread or process, which goes on with what the lines above have left. No caller
  is looked for.
* A step in the file of its caller does not count. It is written if the steps below it are called there.

Then write the new numbers of files and returns into :data:`WRITTEN`. They may grow only for something that users get:
each reader reads more.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from inspect import CO_GENERATOR
from pathlib import Path
from textwrap import indent
from types import FrameType
from typing import Any, NamedTuple

import pytest

import timers
from tests.harness.compiled import PYTHON, forms
from tests.harness.discarding import DiscardingProducer, UsableTopics, discarding
from timers.core.limits import Limits
from timers.core.lineage import Batch
from timers.core.loop import Loop
from timers.core.progress import Progress
from timers.core.timer import Fetched, Tick
from timers.kafka.aiokafka_internals import callback_batch
from timers.kafka.request_formats import NATIVE
from timers.machines.firing.policy import Policy
from timers.machines.partition import PartitionSpec
from timers.machines.store.database import Database
from timers.machines.store.memory_limit import RocksMemory
from timers.machines.store.rocks import RocksStore
from timers.wire import future
from timers.wire.formats import RequestRecord

PRODUCT = Path(timers.__file__).parent
SUMS = PRODUCT / "core" / "sums.py"
CONTRIBUTING = (PRODUCT.parent / "CONTRIBUTING.md").read_text()

WRITER = forms(callback_batch)[PYTHON]

DUE_S = 1_800_000_000
REQUESTS = ("requests", 0)


class Step(NamedTuple):
    """A call that enters a file from another one."""

    depth: int
    """Number of files on the way to it."""
    file: str
    """Below ``timers``."""
    function: str

    def __str__(self) -> str:
        return f"{'  ' * self.depth + self.file:<52}{self.function}"


class Walk:
    """Records the road of a call."""

    def __init__(self) -> None:
        self.road: list[Step] = []
        self._frames: list[FrameType] = []
        self._depths: dict[int, int] = {}

    def go(self, call: Callable[[], object], until: Callable[..., object]) -> list[Step]:
        """Returns the road to the function ``until``, which must be called."""
        self._until: Any = until
        self._arrived = False
        sys.setprofile(self._note)
        try:
            call()
        finally:
            sys.setprofile(None)
        assert self._arrived, f"{until} was not called"
        return self.road

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or self._arrived or any(each is frame for each in self._frames):
            return
        self._frames.append(frame)  # so that no other frame gets its id
        file = self._file(frame)
        if file is not None:
            caller = frame.f_back
            while caller is not None and self._file(caller) is None:
                caller = caller.f_back
            is_known = frame.f_code.co_flags & CO_GENERATOR and any(step.file == file for step in self.road)
            if caller is None or self._file(caller) != file:
                depth = 0 if caller is None else self._depths[id(caller)] + 1
                if not is_known:  # a generator that begins was made before
                    self.road.append(Step(depth, file, frame.f_code.co_qualname))
            else:
                depth = self._depths[id(caller)]
            self._depths[id(frame)] = depth
        self._arrived = frame.f_code is self._until.__code__

    @staticmethod
    def _file(frame: FrameType) -> str | None:
        path = Path(frame.f_code.co_filename)
        return str(path.relative_to(PRODUCT)) if path.is_relative_to(PRODUCT) and path != SUMS else None


def returns(road: list[Step]) -> int:
    """Number of calls that enter a file again."""
    return len(road) - len({step.file for step in road})


def request(offset: int) -> Fetched:
    record = RequestRecord(offset, b"%d" % DUE_S, future.encode("target", "key", b"value"), [], DUE_S * 1000 - 5000)
    return Fetched(offset, offset + 1, [record], passed=[(0, Batch(offset, offset, 1, 1))])


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    """The loop of a machine that has accepted requests, and has fired."""
    store = RocksStore.open(tmp_path / "store", "test", RocksMemory(64 << 20))
    transaction = discarding(UsableTopics({"target": 4}), REQUESTS)
    producer: Any = DiscardingProducer()
    producer.batch, producer.write_callbacks = WRITER.CallbackBatch, WRITER.write_callbacks
    transaction._producer = producer
    policy = Policy(transaction._settings, transaction._topics, transaction)
    spec = PartitionSpec(REQUESTS, NATIVE, Limits(20_000, 16 << 20, 1_000_000, partitions=1))
    loop = Loop(spec.machine(Progress(), store, policy))
    loop.add_tick(Tick((DUE_S - 10) * 1000))
    loop.step()
    loop.add_fetch(request(0))
    loop.step()
    assert loop.machine.pending == 1
    yield loop
    store.close()


def accept(loop: Loop) -> list[Step]:
    loop.add_fetch(request(1))
    return Walk().go(loop.step, Database.write)


def fire(loop: Loop) -> list[Step]:
    loop.add_tick(Tick(DUE_S * 1000))
    return Walk().go(loop.step, DiscardingProducer.transact)


ROADS = {"accept": (accept, 9, 3), "fire": (fire, 10, 4)}
"""Name -> (what walks it, how many files it may have, how many returns)."""


@pytest.mark.parametrize("name", ROADS)
def test_a_road_is_short(name: str, loop: Loop) -> None:
    walk, files, most_returns = ROADS[name]
    road = walk(loop)
    assert len({step.file for step in road}) <= files, "\n".join(map(str, road))
    assert returns(road) <= most_returns, "\n".join(map(str, road))


@pytest.mark.parametrize("name", ROADS)
def test_contributing_draws_each_road(name: str, loop: Loop) -> None:
    drawn = re.search(rf"^```text\n# {name}\n(.*?)^```", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    road = [str(step) for step in ROADS[name][0](loop)]
    assert drawn is not None and drawn[1].splitlines() == road, "\n".join(road)


def test_a_call_that_enters_a_file_again_is_a_return() -> None:
    road = [Step(0, "a", "f"), Step(1, "b", "g"), Step(2, "a", "h"), Step(1, "c", "i"), Step(1, "b", "k")]
    assert returns(road) == 2


# ---- written roads ---------------------------------------------------------------------------------------------------

FIRING = """
core/loop.py                                        Loop.step
  core/machine.py                                   Machine.observe
    core/timer.py                                   latest_tick
  core/machine.py                                   Machine.fire_chunk
    machines/store/rocks.py                         RocksStore.scan
      machines/store/rocks.py                       RocksStore._scan
    machines/firing/transaction.py                  Transaction.begin
      machines/firing/producer.py                   TransactionalProducer.await_quota
      machines/firing/topics.py                     Targets.refresh
    core/machine.py                                 Machine._commit
      machines/firing/policy.py                     Policy.commit
        machines/firing/policy.py                   Policy.decide
          machines/firing/policy.py                 Policy._fire
            machines/firing/policy.py               Policy._deliver
              core/sums.py                          are_for
              machines/firing/policy.py             Policy._deliver_to
                machines/firing/policy.py           Policy._route
                  machines/firing/topics.py         Targets.route
        machines/firing/transaction.py              Transaction.commit
          machines/firing/transaction.py            Transaction.send
            core/counters.py                        TransactionCounters.fire
            kafka/aiokafka_internals/callback_batch.py write_callbacks
          wire/progress.py                          encode
          machines/firing/producer.py               TransactionalProducer.transact
            kafka/aiokafka_internals/callback_batch.py CallbackBatch.seal
            process/threads.py                      LoopThread.submit
            machines/firing/producer.py             TransactionalProducer._transact
              kafka/aiokafka_internals/produce.py   transact
                kafka/aiokafka_internals/produce.py check_leaders
                  kafka/aiokafka_internals/broker_answers.py BrokerAnswers.absent
                kafka/aiokafka_internals/produce.py deliver_in_time
                  kafka/aiokafka_internals/produce.py deliver
                kafka/aiokafka_internals/produce.py commit
          machines/firing/topics.py                 Targets.note_worked
      core/counters.py                              Counters.count_committed
    machines/store/rocks.py                         RocksStore.delete
      machines/store/rocks.py                       RocksStore._write
        machines/store/database.py                  Database.write
"""

WORKER = f"""
worker/ticks.py                                     TopicFollower._read
  worker/ticks.py                                   TickReader.handle
    worker/ticks.py                                 TickJudge.counts
      process/clock.py                              Clock.read
      core/clock_guard.py                           ClockGuard.counts
    worker/ticks.py                                 register.join by _deliver
      worker/machines/pool.py                       Pool.tick
        worker/machines/runner.py                   Runner.tick
          worker/machines/runner.py                 Runner._take by _inbox
            core/loop.py                            Loop.add_tick
            core/machine.py                         Machine.oldest_due_s
              machines/store/rocks.py               RocksStore.oldest_due_s
worker/machines/runner.py                           Runner._run
{indent(FIRING.strip(), "  ")}
"""
"""A due row of a timer without an id, from the tick on its topic to the commit and the deletion of the row."""

SPARK = f"""
spark/engine/query.py                               start.run
  spark/jvm.py                                      planned_offsets
  spark/engine/query.py                             ReadLogs.through
    process/threads.py                              LoopThread.submit by _submit
  spark/engine/query.py                             ReadLogs.log_ends
  machines/firing/breaker.py                        CircuitBreaker.circuits
  spark/engine/questions.py                         Questions.told
  spark/engine/bucket.py                            Told.encode
spark/engine/bucket.py                              TimerProcessor.handleInputRows
  spark/engine/bucket.py                            Arrivals.unpack
  spark/engine/bucket.py                            BucketState.decode
    wire/progress.py                                decode
  spark/engine/machines.py                          Openings.of by partitions
    machines/firing/topics.py                       Targets.adopt
      machines/firing/breaker.py                    CircuitBreaker.merge
  spark/engine/bucket.py                            Bucket.__init__
  process/clock.py                                  Clock.read
  spark/engine/bucket.py                            Bucket.counted
    core/clock_guard.py                             ClockGuard.counts
  spark/engine/bucket.py                            Bucket.process
    core/timer.py                                   latest_tick
    spark/engine/bucket.py                          Bucket._runs
      spark/engine/bucket.py                        Bucket._has_work
        spark/engine/machines.py                    Known.has_work
      spark/engine/machines.py                      MachineRun.__init__ by _run
    spark/engine/machines.py                        Openings.run
      spark/engine/machines.py                      MachineRun.go
        spark/engine/machines.py                    Openings.open
          machines/opener.py                        open_machine
            spark/engine/machines.py                _Port.fence
              spark/engine/machines.py              Openings.renew
                spark/engine/machines.py            Openings.outbox
                  machines/machine_parts.py         Parts.producer
                  machines/machine_parts.py         Parts.outbox
                machines/firing/producer.py         TransactionalProducer.renew
                  process/threads.py                LoopThread.submit
                  machines/firing/producer.py       TransactionalProducer._renew
                    kafka/aiokafka_internals/produce.py open_again
              spark/engine/machines.py              ProducerOpening.is_followed_by
              spark/engine/machines.py              Known.of_store
            machines/opener.py                      open_known
              machines/store/opening.py             Stores.open
                machines/store/opening.py           Stores._opened
                  machines/store/rocks.py           RocksStore.open
                    machines/store/database.py      Database.reopen
              core/store_validity.py                catch_up
                machines/store/rocks.py             RocksStore.drop_through
              spark/engine/machines.py              _Port.machine
                machines/machine_parts.py           Parts.machine
                  machines/partition.py             spec_of
                  machines/partition.py             PartitionSpec.machine
                    core/machine.py                 Machine.__init__
                  machines/machine_parts.py         Parts.bind
                    kafka/progress_rules.py         progress_partition
                    machines/firing/transaction.py  Transaction.bind
          spark/engine/machines.py                  Openings._opened
            core/loop.py                            Loop.__init__
        spark/engine/machines.py                    MachineRun._work
          core/loop.py                              Loop.add_tick
{indent(FIRING.strip(), "          ")}
          core/machine.py                           Machine.commit_progress
          machines/firing/transaction.py            Transaction.tell_group
          spark/engine/questions.py                 Snapshots.answer
        spark/engine/machines.py                    MachineRun._known
        spark/engine/machines.py                    Openings._opened.close by closing
          machines/firing/transaction.py            Transaction.release_compute_lock
          machines/store/opening.py                 close_store
            machines/store/rocks.py                 RocksStore.close
              machines/store/database.py            Database.close
  spark/engine/bucket.py                            BucketState.encode
    wire/progress.py                                encode
spark/engine/query.py                               start.run
  machines/firing/topics.py                         Targets.merge
  spark/engine/questions.py                         Questions.note
  spark/engine/query.py                             run.done
"""
"""The same row in a micro-batch, from the offsets that Spark has planned to what the buckets say. The bucket knows the
machine's progress, and its store is on the disk of the executor."""

QUEUE = """
queue/driver.py                                     Driver._work
  queue/member.py                                   Member.work
    queue/settling.py                               NewPartitions.work
      queue/settling.py                             NewPartitions._load
        queue/transport.py                          Transport.load
          queue/transport.py                        Transport.committed
          queue/transport.py                        Transport.bounds
        queue/settling.py                           NewPartitions._loaded
          queue/metadata.py                         loaded_from
            queue/metadata.py                       saved_by
              queue/metadata.py                     decode
        queue/settling.py                           NewPartitions._own
          queue/ledger.py                           Ledger.__init__
          queue/settling.py                         Settler.assign
          queue/transport.py                        Transport.start
  queue/transport.py                                Transport.poll
  queue/driver.py                                   Driver._read
    queue/member.py                                 Member.read
      queue/records.py                              identity
      queue/records.py                              size_of
      queue/ledger.py                               Ledger.read
      queue/ledger.py                               Ledger.pass_record
queue/queue.py                                      Queue._work
  queue/queue.py                                    Queue.receive_to_run
    queue/queue.py                                  Queue._receive
      queue/driver.py                               Driver.receive
        queue/member.py                             Member.take
          queue/ledger.py                           Ledger.take
          queue/delivery.py                         Delivery.__post_init__ by make
  queue/running.py                                  handle
    queue/running.py                                call
    queue/running.py                                finish
      queue/message.py                              Message.ack
        queue/driver.py                             Driver.ack
          queue/delivery.py                         Delivery.acknowledge
            queue/ledger.py                         Ledger.settle
queue/driver.py                                     Driver._work
  queue/member.py                                   Member.due_round
    queue/member.py                                 Member.wants_commit
      queue/ledger.py                               wants_commit
    queue/member.py                                 Member.round
      queue/settling.py                             Settler.commit
        queue/settling.py                           Settler.plan
          queue/ledger.py                           plan_starts
          queue/ledger.py                           Ledger.saved
          queue/metadata.py                         encode
        queue/settling.py                           Settler._execute
          queue/settling.py                         Settler.succeed
            queue/settling.py                       Settler._allow
              queue/ledger.py                       Ledger.commit
                queue/ledger.py                     Ledger.finish
                queue/starts.py                     Starts.allow
  queue/driver.py                                   Driver._begin_round
    queue/driver.py                                 Driver._go_on
      queue/driver.py                               Driver._begin
        queue/transport.py                          Transport.begin_commit
        queue/driver.py                             Driver._serve by _calls
          queue/driver.py                           Driver._do
            queue/driver.py                         Driver.ask_leaders by command
              queue/transactions.py                 Transactions.ask_leaders
                queue/transactions.py               AnsweringPlaces.ask_leaders
            queue/driver.py                         Driver.execute by command
              queue/transactions.py                 Transactions.execute
                queue/transactions.py               Transactions._execute
                  queue/transactions.py             Transactions._write
                    queue/records.py                encode_copy
                    queue/transactions.py           Transactions._write_job
                      queue/transactions.py         due_key
"""
"""A message, from the loading of its partition's ledger to the handler, and to the commit that settles it."""

WRITTEN = {"worker": (WORKER, 21, 12), "spark": (SPARK, 30, 43), "queue": (QUEUE, 13, 23)}
"""Name -> (the road, its files, its returns). A longer road must be worth it; of a shorter one, write the numbers."""

LINE = re.compile(r"( *)(\S+\.py) +(\S+)(?: by (\S+))?")


class WrittenStep(NamedTuple):
    """A function of a written road."""

    step: Step
    caller: Step | None
    """None: it begins a thread or a process."""
    named: str
    """What the caller must name."""


def read(text: str) -> list[WrittenStep]:
    """The steps of a written road."""
    steps: list[WrittenStep] = []
    above: list[Step] = []
    for line in filter(None, text.splitlines()):
        found = LINE.fullmatch(line)
        assert found is not None, f"not a step: {line!r}"
        spaces, file, function, by = found.groups()
        *classes, name = function.split(".")
        depth = len(spaces) // 2
        assert len(spaces) == 2 * depth and depth <= len(above), f"no caller stands above {line!r}"
        step = Step(depth, file, function)
        named = by or (classes[-1] if name == "__init__" else name)
        steps.append(WrittenStep(step, above[depth - 1] if depth else None, named))
        above[depth:] = [step]
    return steps


def entering(steps: list[WrittenStep]) -> list[Step]:
    """The steps that enter a file: the road as :class:`Walk` notes it."""
    return [step for step, caller, _ in steps if caller is None or caller.file != step.file]


@cache
def definitions(file: str) -> dict[str, ast.AST]:
    """Name of each function and class of a file, as a step has it -> its code."""
    if not (PRODUCT / file).exists():
        return {}
    found: dict[str, ast.AST] = {}
    inside: list[tuple[str, ast.AST]] = [("", ast.parse((PRODUCT / file).read_text()))]
    for outer, node in inside:  # grows while it is read
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.setdefault(outer + each.name, each)
                inside.append((f"{outer}{each.name}.", each))
            elif not isinstance(each, ast.expr):
                inside.append((outer, each))
    return found


def names(code: ast.AST) -> set[str]:
    """The variables and attributes that code reads."""
    loads = [each for each in ast.walk(code) if isinstance(getattr(each, "ctx", None), ast.Load)]
    found = {each.id for each in loads if isinstance(each, ast.Name)}
    return found | {each.attr for each in loads if isinstance(each, ast.Attribute)}


def wrong(steps: list[WrittenStep]) -> list[str]:
    """What the source does not have."""
    found = []
    for step, caller, named in steps:
        if step.function not in definitions(step.file):
            found.append(f"{step.file} has no {step.function}")
        above = None if caller is None else definitions(caller.file).get(caller.function)
        if caller is not None and above is not None and named not in names(above):
            found.append(f"{caller.file}: {caller.function} does not name {named}, for {step.file}: {step.function}")
    return found


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_road_is_that_of_the_source(name: str) -> None:
    assert wrong(read(WRITTEN[name][0])) == []


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_road_does_not_get_longer(name: str) -> None:
    text, files, its_returns = WRITTEN[name]
    road = entering(read(text))
    assert (len({step.file for step in road}), returns(road)) == (files, its_returns)


def test_a_step_that_is_not_in_the_source_is_found() -> None:
    road = """
core/loop.py  Loop.step
  core/machine.py  Machine.fire
  core/machine.py  Machine.accept
    core/timer.py  latest_tick
"""
    assert wrong(read(road)) == [
        "core/machine.py has no Machine.fire",
        "core/loop.py: Loop.step does not name fire, for core/machine.py: Machine.fire",
        "core/machine.py: Machine.accept does not name latest_tick, for core/timer.py: latest_tick",
    ]
    assert wrong(read(f"{road}    wire/no.py  gone by _queue")) == [
        *wrong(read(road)),
        "wire/no.py has no gone",
        "core/machine.py: Machine.accept does not name _queue, for wire/no.py: gone",
    ]
