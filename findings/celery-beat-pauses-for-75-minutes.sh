#!/usr/bin/env bash
# Celery's crontab("*/15") has a pause of 75 minutes in the night when clocks are set back.
#
# One would expect a run each 15 minutes, since no quarter of an hour is missing in that night: 02:00 to 02:45 come twice. After
# 02:45 of the first time (00:45 UTC in Berlin) the schedule waits for 03:00 (02:00 UTC).
#
# Seen with celery 5.7.0 and tzdata 2026.6 on Python 3.11, asked each 15 s of 31 October 2027, as beat does.
# Prints: "runs at 00:30 00:45 02:00 02:15 UTC", those between 00:30 and 02:15.
# What it means for us: docs/coming-from-celery.md says what changes for such a rule: it fires each 15 minutes of elapsed time.
# Needs the package index, and no broker.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'celery==5.7.0' 'tzdata==2026.6'
seen=$(PYTHONTZPATH='' "$target/venv/bin/python" - <<'PROGRAM'
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import crontab

BERLIN = ZoneInfo("Europe/Berlin")
app = Celery()
app.conf.timezone = "Europe/Berlin"
now = datetime(2027, 10, 31, 0, 15, tzinfo=UTC)
schedule = crontab("*/15", nowfun=lambda: now.astimezone(BERLIN), app=app)
last, runs = now.astimezone(BERLIN), []
while now < datetime(2027, 10, 31, 2, 15, tzinfo=UTC):
    now += timedelta(seconds=15)
    if schedule.is_due(last).is_due:
        last = now.astimezone(BERLIN)
        runs.append(f"{now:%H:%M}")
print("runs at", *runs, "UTC")
PROGRAM
)
expected="runs at 00:30 00:45 02:00 02:15 UTC"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
