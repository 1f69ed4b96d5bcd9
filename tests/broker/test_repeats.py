"""Timers that repeat: each occurrence comes once, also with kills, lost disks and pauses [I37]."""

import asyncio
import json
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from tests.harness.command_line import command
from tests.harness.ids import Ids, running_ids
from tests.harness.records import Record
from tests.harness.waiting import DEADLINE_S, wait_until
from timers.client import AsyncTimersClient, Repeat, TimersClient, VerdictMessage
from timers.wire import headers as h

pytestmark = pytest.mark.broker

TIMERS = 120
"""They repeat every 1 to 3 s."""


@pytest.fixture
def ids(broker_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ids]:
    with running_ids(broker_address, tmp_path_factory.mktemp("repeating")) as ids:
        yield ids


def nominal_s(record: Record) -> int:
    return int(record.text(h.TIMER_NOMINAL))


def test_each_occurrence_comes_once_while_workers_are_killed_and_lose_their_disks(ids: Ids) -> None:
    (worker,) = ids.system.workers
    begun_s = int(time.time())
    every = {f"every-{number}": number % 3 + 1 for number in range(TIMERS)}
    for id, seconds in every.items():
        catch_up = ("latest", "all", "none")[seconds - 1]
        rule = f"every={seconds}; from={begun_s}; catch-up={catch_up}"
        ids.send(id.encode(), b"payload", [(h.TIMER_TOPIC, ids.target.encode()), (h.TIMER_REPEAT, rule.encode())])
    ids.flush()
    assert Counter(each.verdict for each in ids.told(TIMERS)) == {"set": TIMERS}
    records = ids.fired.take(5 * TIMERS)
    worker.kill()
    worker.start().ready()
    records += ids.fired.take(TIMERS)
    worker.kill()
    shutil.rmtree(worker.data_dir)
    time.sleep(12)  # longer than what is not late
    worker.start().ready()
    records += ids.fired.take(TIMERS)
    worker.kill()
    worker.start().ready()
    records += ids.fired.take(TIMERS)
    for id in every:
        ids.cancel(id)
    ids.flush()
    told: list[str] = []
    skipped: list[tuple[str, int, int, int]] = []

    def all_are_told() -> bool:
        for record in ids.verdicts.rest():
            fields = json.loads(record.value or b"")
            if "verdict" in fields:
                told.append(fields["verdict"])
            else:
                skipped.append((fields["id"], fields["first"], fields["last"], fields["missed"]))
        return len(told) >= TIMERS

    wait_until(all_are_told, "all cancels are told", DEADLINE_S)
    assert Counter(told) == {"cancelled": TIMERS}
    ids.wait_past(int(time.time()) + 4)
    records += ids.fired.rest()
    assert max(Counter(record.text(h.TIMER_SOURCE) for record in records).values()) == 1
    sent: defaultdict[str, list[int]] = defaultdict(list)
    for record in records:
        assert record.value == b"payload"
        assert record.due_s == nominal_s(record)
        assert record.lag_ms >= 0
        sent[record.timer_id].append(nominal_s(record))
    assert skipped, "the worker was down for longer than what is not late"
    for id, seconds in every.items():
        gaps = [range(first, last + 1, seconds) for name, first, last, number in skipped if name == id and number]
        seen = sorted([*sent[id], *(second for gap in gaps for second in gap)])
        assert seen == [*range(seen[0], seen[-1] + 1, seconds)], f"{id}: each once, sent or missed"
        assert (seen[0] - begun_s) % seconds == 0
        assert 0 <= seen[0] - begun_s <= DEADLINE_S


def test_all_senders_set_the_same_timer(
    ids: Ids, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a deploy that sets it again changes nothing."""
    ids.system.use(monkeypatch)
    id, rule = "report", Repeat.every(1, from_=1_795_000_000)
    arguments = (ids.target, "key", b"daily")
    with TimersClient() as client:
        first = client.update(id, *arguments, headers={"trace": "1"}, repeat=rule)
        again = client.update(id, *arguments, headers={"trace": "1"}, repeat=rule)
        assert (first.verdict, again.verdict, again.version) == ("set", "unchanged", first.version)
        kept = client.schedule(*arguments, id=id, repeat=rule, if_absent=True)
        assert (kept.verdict, kept.version) == ("exists", first.version)
    record = ids.fired.take(1)[0]
    assert (record.key, record.value, record.text("trace")) == (b"key", b"daily", "1")
    assert record.text(h.TIMER_VERSION) == first.version

    async def change() -> VerdictMessage:
        async with AsyncTimersClient() as client:
            return await client.update(id, *arguments, repeat=Repeat.every(2), if_source=first.version)

    assert asyncio.run(change()).verdict == "replaced"
    rule_of_line = "--cron", "* * * * *", "--zone", "Europe/Paris", "--spread", "50s"
    done = command(capsys, "schedule", "--id", id, "--topic", ids.target, "--value", "x", *rule_of_line, "-o", "json")
    shown = json.loads(done.out)
    assert (shown["id"], shown["due"] % 60) == (id, Repeat.every(60, spread=50).share_s(id.encode()))
    with TimersClient() as client:
        assert client.cancel(id).verdict == "cancelled"
