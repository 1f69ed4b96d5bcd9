#!/usr/bin/env bash
# pip, asked what it would install for another Python (--python-version) or machine (--platform), judges environment markers by
# the Python that it runs on itself.
#
# One would expect of a package for "python_version < 3.14", asked for Python 3.14: "Ignoring tomli: markers ... don't match your
# environment", as on Python 3.14 itself. pip would install it.
#
# Seen with pip 26.3 on Python 3.11. Prints: "Would install tomli-", without the version.
# What it means for us: "is there a wheel of each locked package for Python 3.14" cannot be asked of pip alone.
# tests/deploy/test_lock_wheels.py judges the markers itself.
# Needs the package index, and a Python before 3.14; installs nothing.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'pip==26.3'
said=$("$target/venv/bin/python" -m pip install --disable-pip-version-check --dry-run --no-deps --only-binary :all: \
    --target "$target/site" --python-version 3.14 'tomli; python_version < "3.14"' 2>&1)
expected="Would install tomli-"
seen=$(grep --only-matching "$expected" <<<"$said" || echo "$said")
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
