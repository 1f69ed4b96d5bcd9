"""A plain Faust app: one agent, one event at a time, one table with its changelog, on RocksDB.

Run by ``faust_table.py`` as a Faust worker. It only stores timers, its slowest part: the table sends one
changelog record for each timer.
"""

import os

import faust

app = faust.App(
    os.environ["BENCH_APP_ID"],
    broker=f"kafka://{os.environ['BENCH_BROKERS']}",
    store="rocksdb://",
    datadir=os.environ["BENCH_DATA_DIR"],
    topic_partitions=int(os.environ["BENCH_PARTITIONS"]),
    topic_replication_factor=1,
    web_enabled=False,
    consumer_auto_offset_reset="earliest",
)
requests = app.topic(
    os.environ["BENCH_REQUEST_TOPIC"], key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
)
pending = app.Table("pending", key_type=bytes, value_type=bytes, options={"driver": "rocksdict"})


@app.agent(requests)  # type: ignore[untyped-decorator, unused-ignore]
async def keep(stream: faust.StreamT[bytes]) -> None:
    """Store each request by due second, partition and offset."""
    async for event in stream.events():
        message = event.message
        pending[b"%b/%d/%d" % (message.key or b"", message.partition, message.offset)] = event.value
