#!/usr/bin/env bash
# cronsim, asked on the night when clocks are set back, may answer with an instant that is 45 minutes in the past.
#
# One would expect that the next time of a rule is later than the moment that it is asked for. In Berlin, at 02:15 for the second
# time (01:15 UTC), "30 2 * * *" is answered with 02:30 of the first time (00:30 UTC). Where the clocks of Lord Howe have gone back
# by half an hour, "*/15 3 * * *" leaves out 03:00 and 03:15 if it is asked in the half hour that comes twice.
# So a program that computes the next time after a restart must compare it with the clock.
#
# Seen with cronsim 2.8 and tzdata 2026.6 on Python 3.11. Prints: "-45 min, 03:30" (a next time in the past; the first time at 3).
# What it means for us: timers computes the seconds of a rule by itself (docs/repeating.md#when-clocks-change), and a property says
# that each of them is later than the moment before it.
# Needs the package index.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'cronsim==2.8' 'tzdata==2026.6'
seen=$(PYTHONTZPATH='' "$target/venv/bin/python" - <<'PROGRAM'
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim

asked = datetime(2027, 10, 31, 1, 15, tzinfo=UTC)
answered = next(CronSim("30 2 * * *", asked.astimezone(ZoneInfo("Europe/Berlin"))))
night = datetime(2026, 4, 4, 15, 0, tzinfo=UTC)  # 01:30 for the second time
first = next(CronSim("*/15 3 * * *", night.astimezone(ZoneInfo("Australia/Lord_Howe"))))
print(f"{(answered.timestamp() - asked.timestamp()) / 60:.0f} min, {first:%H:%M}")
PROGRAM
)
expected="-45 min, 03:30"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
