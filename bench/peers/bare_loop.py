"""The process of the bare loop: it reads requests and sends their callbacks at once, in transactions.

``python -m bench.peers.bare_loop BROKERS REQUEST_TOPIC TIMERS HEADERS``: it ends when it has sent ``TIMERS`` callbacks.
A callback goes to the partition number of its request, so that batches are full. With ``HEADERS`` 1 callbacks have the
three ``timer-*`` headers, as those of the engine; with 0 they have none, because the fastest call of the client allows
no headers.
"""

import asyncio
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition
from confluent_kafka import Producer

from tests.harness.cluster import client_settings
from timers.v1.future_pb2 import Future
from timers.wire import headers

TRANSACTION_RECORDS = 20_000


def _send(producer: Producer, records: Sequence[Any], with_headers: bool) -> None:
    """Send the callbacks of one batch of requests in one transaction."""
    parse = Future.FromString
    producer.begin_transaction()
    if with_headers:
        produce = producer.produce
        for record in records:
            future = parse(record.value)
            travel = [
                (headers.TIMER_ID, f"{record.topic}/{record.partition}/{record.offset}"),
                (headers.TIMER_DUE, record.key),
                (headers.TIMER_FIRED, b"%013d" % record.timestamp),
            ]
            produce(future.callBackTopic, future.callBack, future.callBackKey, record.partition, headers=travel)
    else:
        futures = [parse(record.value) for record in records]
        messages = [{"key": future.callBackKey, "value": future.callBack} for future in futures]
        target, partition = futures[0].callBackTopic, records[0].partition
        if producer.produce_batch(target, messages, partition=partition) != len(messages):
            raise RuntimeError("the client refused records")
    producer.commit_transaction()


def _producer(brokers: str) -> Producer:
    settings = {
        "transactional.id": f"bare-{uuid.uuid4()}",
        "linger.ms": 5,
        "batch.num.messages": 10_000,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": 10 * TRANSACTION_RECORDS,
    }
    producer = Producer({**client_settings(brokers), **settings})
    producer.init_transactions()
    return producer


async def loop(brokers: str, topic: str, timers: int, with_headers: bool) -> None:
    """Run until ``timers`` callbacks are committed: one transactional producer and one thread for each partition."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=brokers,
        group_id=None,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=4 << 20,
        fetch_max_bytes=16 << 20,
    )
    await consumer.start()
    partitions = Producer(client_settings(brokers)).list_topics(topic, timeout=15).topics[topic].partitions
    places = [TopicPartition(topic, partition) for partition in partitions]
    producers = [await asyncio.to_thread(_producer, brokers) for _ in places]
    consumer.assign(places)
    sent = 0

    async def send_partition(place: TopicPartition, producer: Producer) -> None:
        nonlocal sent
        while sent < timers:
            found = await consumer.getmany(place, timeout_ms=500, max_records=TRANSACTION_RECORDS)
            for records in found.values():
                await asyncio.to_thread(_send, producer, records, with_headers)
                sent += len(records)

    print("ready", flush=True)
    try:
        await asyncio.gather(*map(send_partition, places, producers))
    finally:
        await consumer.stop()
    print(f"sent {sent} with {time.process_time():.3f} CPU s", flush=True)


if __name__ == "__main__":
    asyncio.run(loop(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1"))
