#!/usr/bin/env bash
# One program, one local time, one name of a zone, two instants: polars, DuckDB and Python's zoneinfo have zone data of their own.
#
# One would expect that 9:00 on 15 January 2027 in Vancouver is one instant in one process. British Columbia keeps summer time from
# 2026 on, and the package tzdata knows it. polars and DuckDB have the zone data inside their own binaries, and no update of tzdata
# or of the system changes them.
#
# Seen with tzdata 2026.6, polars 2.1.0 and DuckDB 1.5.5 on Python 3.11. Prints: "zoneinfo 0, polars 3600, duckdb 3600", seconds
# after the instant of zoneinfo.
# What it means for us: zones come from the package tzdata alone (docs/repeating.md#where-the-rules-of-zones-come-from); files for
# an import should have instants, not local times (docs/spark.md).
# Needs the package index.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'tzdata==2026.6' 'polars==2.1.0' 'duckdb==1.5.5'
seen=$(PYTHONTZPATH='' "$target/venv/bin/python" - <<'PROGRAM'
from datetime import datetime
from zoneinfo import ZoneInfo

import duckdb
import polars

ZONE = "America/Vancouver"
local = datetime(2027, 1, 15, 9)
instant = int(local.replace(tzinfo=ZoneInfo(ZONE)).timestamp())
of_polars = polars.Series([local]).dt.replace_time_zone(ZONE).dt.epoch("s")[0]
of_duckdb = duckdb.execute("SELECT epoch(timezone(?, ?::TIMESTAMP))", [ZONE, local]).fetchone()[0]
print(f"zoneinfo 0, polars {of_polars - instant}, duckdb {of_duckdb - instant:.0f}")
PROGRAM
)
expected="zoneinfo 0, polars 3600, duckdb 3600"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
