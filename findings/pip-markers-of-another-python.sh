#!/usr/bin/env bash
# pip, asked what it would install for another Python (--python-version) or machine (--platform), judges environment markers by
# the Python that it runs on itself. So "is there a wheel of each locked package for Python 3.14" cannot be asked of pip alone:
# tests/deploy/test_lock_wheels.py judges the markers itself.
#
# Seen with pip 26.3 on Python 3.11. Expected: "Ignoring tomli: markers ... don't match your environment", as on Python 3.14 itself.
# It prints "Would install tomli".
# Needs the package index; installs nothing.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'pip==26.3'
"$target/venv/bin/python" -m pip install --disable-pip-version-check --dry-run --no-deps --only-binary :all: \
    --target "$target/site" --python-version 3.14 'tomli; python_version < "3.14"'
