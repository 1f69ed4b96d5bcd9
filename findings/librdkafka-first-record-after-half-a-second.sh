#!/usr/bin/env bash
# An idempotent producer of librdkafka sends its first record 0.5 s after it was made, also if it has asked for the metadata of the
# topic before. If it asks for metadata a second time, it sends it at once.
#
# One would expect the first record as soon as the brokers are connected, which takes some milliseconds. But the producer needs an id
# first. It asks for the id when metadata arrive, if its connection to a broker of the cluster is open. The first metadata come over the
# connection of bootstrap.servers, before the others are open, and the next attempt is 0.5 s later. Other metadata in between are an
# attempt, too.
#
# Seen with confluent-kafka 2.16.1, against its own cluster of three simulated brokers; seven producers each. With one real
# broker (Kafka 4.2.1) it was a quarter of 40 producers.
# Prints: "metadata once: after half a second, twice: at once".
# What it means for us: the client asks twice (timers/client/publish.py), so its first timer takes 0.1 s and not 0.6 s.
# Needs the package index, and no broker.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'confluent-kafka==2.16.1'
seen=$("$target/venv/bin/python" - <<'PROGRAM'
import statistics
import time

from confluent_kafka import Producer

host = Producer({"test.mock.num.brokers": 3, "log_level": 0})
brokers = [f"{each.host}:{each.port}" for each in host.list_topics("topic", timeout=10).brokers.values()]


def first_record(questions):
    """Median of the seconds from the metadata to the acknowledgement of the first record."""
    taken_s = []
    for _ in range(7):
        producer = Producer({"bootstrap.servers": brokers[0], "enable.idempotence": True})
        for _ in range(questions):
            producer.list_topics("topic", timeout=10)
        began = time.monotonic()
        producer.produce("topic", b"value")
        assert producer.flush(10) == 0
        taken_s.append(time.monotonic() - began)
    return "after half a second" if statistics.median(taken_s) > 0.3 else "at once"


print(f"metadata once: {first_record(1)}, twice: {first_record(2)}")
PROGRAM
)
expected="metadata once: after half a second, twice: at once"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
