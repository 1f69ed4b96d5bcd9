#!/usr/bin/env bash
# Faust's processing_guarantee="exactly_once" has an effect only in an app that a Faust worker runs.
#
# One would expect the same isolation level for one app, however it is started. An app that its program starts by app.start()
# reads with isolation_level="read_uncommitted" and commits without transactions, and nothing says so. Of a log with 200
# committed and 100 aborted records it got all 300; in a worker the 200.
#
# Seen with faust-streaming 0.15.3 on Python 3.11. Prints: "read_uncommitted read_committed" (outside of a worker, in one).
# What it means for us: docs/other-clients.md says how a receiver must be started.
# Needs the package index, and no broker.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'faust-streaming==0.15.3' 'aiokafka==0.14.0'
cd "$target"
seen=$("$target/venv/bin/python" - <<'PROGRAM'
import asyncio
from unittest import mock

import faust
from faust.transport.drivers import aiokafka as driver


async def level(in_worker):
    app = faust.App("x", broker="kafka://127.0.0.1:1", processing_guarantee="exactly_once")
    app.in_worker = in_worker  # Worker.on_start sets it
    with mock.patch.object(driver.aiokafka, "AIOKafkaConsumer") as made:
        thread = driver.AIOKafkaConsumerThread(app.consumer, loop=asyncio.get_running_loop())
        thread._create_worker_consumer(app.transport)
    return made.call_args.kwargs["isolation_level"]


print(asyncio.run(level(False)), asyncio.run(level(True)))
PROGRAM
)
expected="read_uncommitted read_committed"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
