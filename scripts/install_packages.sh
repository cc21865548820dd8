#!/usr/bin/env bash
# Fill `.venv` from a lock file, then put this package into it, editable.
#
#     scripts/install_packages.sh PYTHON LOCK_FILE
#
# Every file is checked against the lock's hashes. Built, by locked build backends, are this package, and PySpark,
# which comes as source only (of Python files and Spark's jars: nothing is compiled).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1
lock=$2

fail() {
    echo "$1" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "Python is missing: install Python 3.11 or newer, or name one with PYTHON=."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old: name Python 3.11 or newer with PYTHON=."

pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet install)

if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    echo "Making .venv with $("$python" --version)."
    rm -rf .venv
    "$python" -m venv .venv || fail "Python cannot make an environment here: on Debian, install python3-venv."
fi
echo "Installing the packages of $lock (a few minutes on a new machine)."
source_only=$(mktemp)
trap 'rm -f "$source_only" "$source_only.rest"' EXIT
# An entry of the lock begins at the left margin and goes on, indented, to the next one.
awk -v one="$source_only" -v rest="$source_only.rest" \
    '/^[^ #]/ { to = /^pyspark==/ ? one : rest } { print > (to ? to : rest) }' "$lock"
"${pip[@]}" --require-hashes --only-binary :all: -r "$source_only.rest"
"${pip[@]}" --require-hashes --no-deps --no-build-isolation --no-binary pyspark -r "$source_only"
"${pip[@]}" --no-deps --no-build-isolation --no-index -e .
