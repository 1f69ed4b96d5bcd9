#!/usr/bin/env bash
# DuckDB, reading two Parquet files as one table, rounds the numbers of the second file to the type of the first, without an error.
#
# Writers choose a type by the values of each file: pyarrow makes 1.25 a decimal with two digits after the point, and 1.125 one with
# three; pandas makes a column with a missing value one of doubles. One would expect a type that holds both, or an
# error: polars and pyarrow refuse these files. DuckDB casts to the type of the first name, so 1.125 becomes 1.13, and 1.5 becomes 2,
# and with the names in the other order nothing is lost. With union_by_name=true it takes a type that holds both.
#
# Seen with DuckDB 2.0.1, polars 2.1.0 and pyarrow 26.0.1 on Python 3.11, for files with 1.25, 1.125 (decimals) and 1, 1.5 (a whole
# number, a double). Prints: "duckdb 1.25 1.13, other order 1.125 1.250, by name 1.250 1.125; polars SchemaError; pyarrow ArrowInvalid",
# and the same for the others: "duckdb 1 2, other order 1.5 1.0, by name 1.0 1.5; ...".
# What it means for us: join files of amounts or due seconds by name before an import (docs/spark.md#import).
# Needs the package index.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'duckdb==2.0.1' 'polars==2.1.0' 'pyarrow==26.0.1'
cd "$target"
seen=$("$target/venv/bin/python" - <<'PROGRAM'
from decimal import Decimal

import duckdb
import polars
from pyarrow import dataset, parquet, table


def of_duckdb(files, **options):
    return " ".join(str(value) for (value,) in duckdb.read_parquet(files, **options).fetchall())


def of_polars(files):
    return " ".join(str(value) for value in polars.read_parquet(files)["value"])


def of_pyarrow(files):
    return " ".join(str(value) for value in dataset.dataset(files).to_table()["value"])


def tried(read, files):
    try:
        return read(files)
    except Exception as error:
        return type(error).__name__


for values in ((Decimal("1.25"), Decimal("1.125")), (1, 1.5)):
    files = ["first.parquet", "second.parquet"]
    for file, value in zip(files, values):
        parquet.write_table(table({"value": [value]}), file)
    print(f"duckdb {of_duckdb(files)}, other order {of_duckdb(files[::-1])}, by name {of_duckdb(files, union_by_name=True)}", end="; ")
    print(f"polars {tried(of_polars, files)}; pyarrow {tried(of_pyarrow, files)}")
PROGRAM
)
expected="duckdb 1.25 1.13, other order 1.125 1.250, by name 1.250 1.125; polars SchemaError; pyarrow ArrowInvalid
duckdb 1 2, other order 1.5 1.0, by name 1.0 1.5; polars SchemaError; pyarrow ArrowInvalid"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
