"""Orders that expire unless they are paid: a Faust app that schedules timers and receives their callbacks.

    orders ──► [ follow ] ── arm, schedule ──► timer-request ──► timers worker ──► order-timeouts ──► [ expire ]
                   └──────── paid in time: cancel                                         token still held? ┘
                   └───────────────────────────────► order-results ◄──────────────────────────────────────┘

Run it beside a worker, and place an order (examples/README.md):

    python -m examples.orders worker -l info
"""

import os

import faust
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from timers.client import AsyncTimersClient, MappingTokens, Timeouts
from timers.process.config.settings import Settings

PAY_WITHIN_S = float(os.environ.get("PAY_WITHIN_S", "900"))
PARTITIONS = 4

brokers = Settings.load().brokers
app = faust.App(
    "orders-example",
    broker=[f"kafka://{address}" for address in brokers.split(",")],
    store="memory://",
    topic_partitions=PARTITIONS,
    stream_wait_empty=False,
    # Faust reads with isolation.level=read_committed only then; else it gets callbacks that were taken back, too.
    processing_guarantee="exactly_once",
    web_port=int(os.environ.get("ORDERS_WEB_PORT", "6068")),  # 6066 is the worker's, 6067 the console's
)


class Order(faust.Record):
    """What happens to an order; the record's key is its id."""

    state: str  # "placed" or "paid"


# Callbacks come with the order's id as their key, so they land on the partition of that order's other events: `follow`
# and `expire` see the same part of the table.
orders = app.topic("orders", key_type=str, value_type=Order)
timeouts_topic = app.topic("order-timeouts", key_type=str, value_serializer="raw")
results = app.topic("order-results", key_type=str, value_serializer="raw")

tokens = app.Table("order-tokens", key_type=str, value_type=str, partitions=PARTITIONS)
timeouts = Timeouts(MappingTokens(tokens))
client = AsyncTimersClient(brokers)


@app.agent(orders)
async def follow(stream):  # type: ignore[no-untyped-def]
    """Schedule a timer for each order; cancel it when the order is paid."""
    async for order_id, order in stream.items():
        if order.state == "placed":
            # First remember, then schedule. Should Kafka deliver "placed" twice, the second timer counts.
            token = timeouts.arm(order_id)
            await client.schedule("order-timeouts", order_id, b"", delay=PAY_WITHIN_S, token=token)
        elif order.state == "paid" and timeouts.cancel(order_id):  # False: it has expired, or this is a redelivery
            await results.send(key=order_id, value=b"paid")


@app.agent(timeouts_topic)
async def expire(stream):  # type: ignore[no-untyped-def]
    """Expire an order when its timer fires, if its token is still held: not paid, and not expired already."""
    async for event in stream.events():
        if timeouts.accept(event.key, event):
            await results.send(key=event.key, value=b"expired")


@app.on_before_shutdown.connect
async def close_client(app, **kwargs):  # type: ignore[no-untyped-def]
    """Let requests that are on their way arrive."""
    await client.close()


def create_topics() -> None:
    """Create the topics before the app joins its group: a topic that is created later has no owner for a while."""
    admin = AdminClient({"bootstrap.servers": brokers})
    names = ("orders", "order-timeouts", "order-results")
    for created in admin.create_topics([NewTopic(name, num_partitions=PARTITIONS) for name in names]).values():
        try:
            created.result(30)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise


if __name__ == "__main__":
    create_topics()
    app.main()
