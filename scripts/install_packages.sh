#!/usr/bin/env bash
# Fill `.venv` from a lock file, then put this package into it, editable.
#
#     scripts/install_packages.sh PYTHON LOCK_FILE
#
# Every file is checked against the lock's hashes; nothing is built but this package, by the locked build backend.
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
"${pip[@]}" --require-hashes --only-binary :all: -r "$lock"
"${pip[@]}" --no-deps --no-build-isolation --no-index -e .
