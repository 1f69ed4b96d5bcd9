#!/usr/bin/env bash
# If all numbers of a column in a Parquet file are equal, DuckDB and deltalake find rows with NaN by "price = 1", and deltalake's
# delete("price = 1") deletes them.
#
# Writers leave NaN out of the smallest and the largest value of a file, as the format asks; so 1.0 and NaN have 1.0 as both, and no
# nulls. The format says that such a file may still hold NaN. One would expect the rows that a program finds without these
# values, as with polars and pyarrow. DuckDB and deltalake conclude that each row fulfils the condition, and do not look at rows any
# more: "price < 2" finds NaN as well. With two different numbers in the file all is right, so a test with more rows does not show it.
#
# Seen with DuckDB 2.0.1, deltalake 1.6.6, polars 2.1.0 and pyarrow 26.0.1 on Python 3.11, for the prices 1.0 and NaN.
# Prints: "found: DuckDB 2, deltalake 2, polars 1, pyarrow 1. deleted: 2 of 2", rows of "price = 1".
# What it means for us: our tables have whole seconds only; docs/cold-tier.md says how to look for a timer in them.
# Needs the package index.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'duckdb==2.0.1' 'deltalake==1.6.6' 'polars==2.1.0' \
    'pyarrow==26.0.1'
cd "$target"
seen=$("$target/venv/bin/python" - <<'PROGRAM'
import duckdb
import polars
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyarrow import parquet, table

rows = table({"price": [1.0, float("nan")]})
parquet.write_table(rows, "prices.parquet")
write_deltalake("table", rows)
found = {
    "DuckDB": len(duckdb.sql("SELECT * FROM 'prices.parquet' WHERE price = 1").fetchall()),
    "deltalake": QueryBuilder().register("prices", DeltaTable("table")).execute("SELECT * FROM prices WHERE price = 1").read_all().num_rows,
    "polars": polars.scan_parquet("prices.parquet").filter(polars.col("price") == 1).collect().height,
    "pyarrow": parquet.read_table("prices.parquet", filters=[("price", "=", 1.0)]).num_rows,
}
deleted = DeltaTable("table").delete("price = 1")["num_deleted_rows"]
print(f"found: {', '.join(f'{name} {count}' for name, count in found.items())}. deleted: {deleted} of {rows.num_rows}")
PROGRAM
)
expected="found: DuckDB 2, deltalake 2, polars 1, pyarrow 1. deleted: 2 of 2"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
