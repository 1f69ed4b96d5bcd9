#!/usr/bin/env bash
# deltalake's DeltaTable.count() counts rows that deletion vectors have deleted.
#
# One would expect the number of rows that a query finds, or an error: to_pyarrow_table() of the same table refuses with a sentence,
# because its reader does not know deletion vectors. count() adds the numbers of rows in the log, as they were written. SQL in the
# same package, and polars, leave deleted rows out.
# Spark writes deletion vectors if a table has delta.enableDeletionVectors. The program below writes one, as Delta's protocol says,
# for 4 of 10 rows: a bitmap in the log itself.
#
# Seen with deltalake 1.6.6 and polars 2.1.0 on Python 3.11. Prints: "count() 10, SQL 6, polars 6, to_pyarrow_table() DeltaProtocolError".
# What it means for us: a check that a timer is erased must use SQL (docs/cold-tier.md); rows of Spark show the same there.
# Needs the package index.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'deltalake==1.6.6' 'polars==2.1.0' 'pyarrow==26.0.1' \
    'pyroaring==1.2.0'
cd "$target"
cat >program.py <<'PROGRAM'
import json
import struct
from pathlib import Path

import polars
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyroaring import BitMap64

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"  # of Z85

write_deltalake("table", polars.DataFrame({"id": range(10)}).to_arrow())
log = Path("table/_delta_log")
written = {}
for line in (log / f"{0:020}.json").read_text().splitlines():
    written |= json.loads(line)
deleted = struct.pack("<i", 1681511377) + BitMap64(range(4)).serialize()
words = struct.iter_unpack(">I", deleted + bytes(-len(deleted) % 4))
text = "".join(DIGITS[word // 85**power % 85] for (word,) in words for power in (4, 3, 2, 1, 0))
vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(deleted), "cardinality": 4}
add, feature = written["add"], ["deletionVectors"]
protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": feature, "writerFeatures": feature}
actions = [
    {"protocol": protocol},
    {"metaData": written["metaData"] | {"configuration": {"delta.enableDeletionVectors": "true"}}},
    {"remove": {"path": add["path"], "deletionTimestamp": add["modificationTime"], "dataChange": True}},
    {"add": add | {"deletionVector": vector}},
]
(log / f"{1:020}.json").write_text("\n".join(json.dumps(each) for each in actions))

table = DeltaTable("table")
by_sql = QueryBuilder().register("rows", table).execute("SELECT id FROM rows").read_all().num_rows
by_polars = polars.read_delta("table").height
try:
    by_arrow = str(table.to_pyarrow_table().num_rows)
except Exception as error:
    by_arrow = type(error).__name__
print(f"count() {table.count()}, SQL {by_sql}, polars {by_polars}, to_pyarrow_table() {by_arrow}")
PROGRAM
seen=$("$target/venv/bin/python" program.py)
expected="count() 10, SQL 6, polars 6, to_pyarrow_table() DeltaProtocolError"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
