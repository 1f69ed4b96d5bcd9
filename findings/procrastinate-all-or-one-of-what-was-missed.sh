#!/usr/bin/env bash
# procrastinate, back after three hours, defers one job of a periodic task if its worker was started anew, and all of them if it was
# only suspended.
#
# Its setting max_delay (600 s by default) is the age above which a periodic task is outdated, and ignored. One would expect the
# same jobs after the same pause. The age is compared only at the first look of a process, which takes the newest time alone. A
# process that goes on, because its machine slept or was moved, takes each time since its last look, however old.
#
# Seen with procrastinate 3.10.0 and its connector in memory, on Python 3.11; a rule of each 5 minutes, asked at 12:00 and at 15:00.
# Prints: "started anew: 1, suspended: 36", jobs that are deferred at 15:00.
# What it means for us: what is sent of missed occurrences is a part of each timer (docs/repeating.md#what-is-missed).
# Needs the package index, and no database.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'procrastinate==3.10.0' 'croniter==7.0.0'
cd "$target"
cat >program.py <<'PROGRAM'
import asyncio

from procrastinate import App
from procrastinate.periodic import PeriodicDeferrer
from procrastinate.testing import InMemoryConnector

NOON_S = 1893499200  # 1 January 2030, UTC


async def deferred(is_started_anew):
    """Jobs that are deferred three hours after the last look."""
    connector = InMemoryConnector()
    app = App(connector=connector)

    @app.periodic(cron="*/5 * * * *")
    @app.task(name="task")
    def task(timestamp):
        pass

    deferrer = PeriodicDeferrer(app.periodic_registry)
    await deferrer.defer_jobs(deferrer.get_previous_tasks(at=NOON_S + 1))
    assert len(connector.jobs) == 1
    if is_started_anew:
        deferrer = PeriodicDeferrer(app.periodic_registry)
    await deferrer.defer_jobs(deferrer.get_previous_tasks(at=NOON_S + 3 * 3600 + 1))
    return len(connector.jobs) - 1


print(f"started anew: {asyncio.run(deferred(True))}, suspended: {asyncio.run(deferred(False))}")
PROGRAM
seen=$("$target/venv/bin/python" program.py 2>log) || { cat log >&2; exit 1; }
expected="started anew: 1, suspended: 36"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
