"""A worker that notes when the steps of each transaction begin and end. For :mod:`bench.second` only.

``BENCH_STEPS`` names the file to which it writes a line of JSON for each step: ``[machine, step, begin, end]``, in
epoch seconds. ``machine`` is its transactional id. A tick has none; its begin is its append time.
"""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any

from aiokafka.client import AIOKafkaClient

from timers.core.timer import Tick
from timers.machines.firing.producer import TransactionalProducer
from timers.machines.firing.transaction import Transaction
from timers.wire.topics import transactional_id
from timers.worker.machines.pool import Pool

REQUESTS = {
    "FindCoordinatorRequest": "leaders",
    "AddPartitionsToTxnRequest": "add partitions",
    "ProduceRequest": "produce",
    "AddOffsetsToTxnRequest": "add offsets",
    "TxnOffsetCommitRequest": "commit offsets",
    "EndTxnRequest": "end",
    "ProduceInTransaction": "produce",
    "OffsetsInTransaction": "commit offsets",
    "EndTransaction": "end",
}
"""Request -> its step."""

_app_id, _worker_id = os.environ["TIMERS_APP_ID"], os.environ["TIMERS_WORKER_ID"]
_file = Path(os.environ["BENCH_STEPS"]).open("w", buffering=1)  # noqa: SIM115  # until the process ends


def note(machine: str, step: str, begin: float, end: float) -> None:
    """Write a step. Any thread: a line is one call."""
    _file.write(json.dumps([machine, step, begin, end]) + "\n")


def _tick(method: Callable[..., None], pool: Pool, tick: Tick) -> None:
    note("", "tick", tick.append_ms / 1000, time())
    method(pool, tick)


def _begin(method: Callable[..., None], transaction: Transaction, tick: Tick) -> None:
    begin = time()
    method(transaction, tick)
    note(transactional_id(_app_id, *transaction.machine), "turn", begin, time())


def _transact(method: Callable[..., bool], producer: TransactionalProducer, *arguments: Any) -> bool:
    begin = time()
    try:
        return method(producer, *arguments)
    finally:
        note(producer._transactional_id, "transaction", begin, time())


async def _send(method: Callable[..., Any], client: AIOKafkaClient, node: int, request: Any, **options: Any) -> Any:
    begin = time()
    try:
        return await method(client, node, request, **options)
    finally:
        step = REQUESTS.get(type(request).__name__)
        if step is not None:
            note(client._client_id.removeprefix(f"{_worker_id}-"), step, begin, time())


def _replace(owner: type, name: str, around: Callable[..., Any]) -> None:
    method = getattr(owner, name)

    @functools.wraps(method)
    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        return around(method, self, *arguments, **options)

    setattr(owner, name, noted)


_replace(Pool, "tick", _tick)
_replace(Transaction, "begin", _begin)
_replace(TransactionalProducer, "transact", _transact)
_replace(AIOKafkaClient, "send", _send)

from timers.app import app as app  # noqa: E402
