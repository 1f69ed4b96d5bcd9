#!/usr/bin/env bash
# A delay of Celery that waits in RabbitMQ and is longer than 2^28 s (8.5 years) ends after half of its time, without an error.
#
# One would expect the whole delay, or an error. Behind a topic exchange a task waits in queues of 2^27 s, 2^26 s, ..., 1 s: each
# one takes it if its bit of the routing key is 1, and the first bit is of 2^27 s. The key of a longer delay has one bit more, so
# each bit counts half as much.
#
# Seen with kombu 5.7.0 on Python 3.11, by the queues and bindings that it declares; and with RabbitMQ 3.10.8 and Celery 5.7.0.
# Prints: "268435455 s waits 268435455 s" and "268435468 s waits 134217734 s".
# What it means for us: docs/coming-from-celery.md says so. A timer of ours may be due in years.
# Needs the package index, and no broker.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'kombu==5.7.0' 'packaging==26.3'
seen=$("$target/venv/bin/python" - <<'PROGRAM'
import re
from unittest.mock import MagicMock

from kombu.transport import native_delayed_delivery as delays

connection = MagicMock()
connection.channel().prepare_queue_arguments.side_effect = lambda arguments, **_: arguments
delays.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
channel = connection.channel()
waits_ms = {call.kwargs["queue"]: call.kwargs["arguments"]["x-message-ttl"] for call in channel.queue_declare.mock_calls}
bound = {call.kwargs["queue"]: call.kwargs["routing_key"] for call in channel.queue_bind.mock_calls}
assert len(bound) == len(waits_ms) == 28
for delay_s in (2**28 - 1, 2**28 + 12):
    key = delays.calculate_routing_key(delay_s, "celery")
    takes = [
        queue for queue, pattern in bound.items()
        if re.fullmatch(pattern.replace(".", r"\.").replace("*", "[^.]*").replace("#", ".*"), key)
    ]
    print(f"{delay_s} s waits {sum(waits_ms[queue] for queue in takes) // 1000} s")
PROGRAM
)
expected="268435455 s waits 268435455 s
268435468 s waits 134217734 s"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
