#!/usr/bin/env bash
# rocksdict's Rdict.snapshot(): reading one key shows the state of that moment, iterating shows what was written later.
#
# One would expect one state of both: the class is described as a consistent view of the time at which it was made. Its get is
# that. Its keys(), values(), items() and iter() read the present database, with keys that were added later and without those that
# were deleted. So a backup that walks through a snapshot mixes states, and comparing a few keys does not show it. An iterator
# that was made before the writes shows the old state.
#
# Seen with rocksdict 0.3.29 on Python 3.11; after the snapshot of 1, 2, 3 the program changes 1, deletes 2 and adds 4.
# Prints: "get: old old old", "items: 1 new, 3 old, 4 new", "an iterator of before: 1 old, 2 old, 3 old".
# What it means for us: a snapshot of a store is read by one plain iterator ([I30] in docs/design.md).
# Needs the package index.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'rocksdict==0.3.29'
cd "$target"
seen=$("$target/venv/bin/python" - <<'PROGRAM'
from rocksdict import Rdict


def shown(pairs):
    return ", ".join(f"{key} {value}" for key, value in pairs)


database = Rdict("database")
for key in (1, 2, 3):
    database[key] = "old"
snapshot, iterator = database.snapshot(), database.items()
database[1] = "new"
del database[2]
database[4] = "new"
print("get:", *(snapshot[key] for key in (1, 2, 3)))
print("items:", shown(snapshot.items()))
print("an iterator of before:", shown(iterator))
PROGRAM
)
expected="get: old old old
items: 1 new, 3 old, 4 new
an iterator of before: 1 old, 2 old, 3 old"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
