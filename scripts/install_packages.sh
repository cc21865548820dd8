#!/usr/bin/env bash
# Fill `.venv` from a lock file, then put this package into it, editable.
#
#     scripts/install_packages.sh PYTHON LOCK_FILE
#
# Every file is checked against the lock's hashes. Built, by locked build backends, are this package, and PySpark,
# which comes as source only (of Python files and Spark's jars: nothing is compiled).
# uv installs, with pip's own settings of index and certificates, in a tenth of pip's time; pip does where uv cannot run.
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

quiet_pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet)

if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    echo "Making .venv with $("$python" --version)."
    rm -rf .venv
    "$python" -m venv .venv || fail "Python cannot make an environment here: on Debian, install python3-venv."
fi

# Hand one of pip's settings to uv, if it is set and uv has none: hand_over index-url UV_DEFAULT_INDEX.
hand_over() {
    local value
    value=${!2:-$("${quiet_pip[@]}" config get ":env:.$1" 2>/dev/null || "${quiet_pip[@]}" config get "global.$1" 2>/dev/null || true)}
    [ -z "$value" ] || export "$2=$value"
}

# The entries of some packages in a lock file: one begins at the left margin and goes on, indented, to the next.
entries() {
    awk -v wanted="^($2)==" '/^[^ #]/ { on = ($1 ~ wanted) } on' "$1"
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
entries requirements-dev.lock uv >"$folder/uv.txt"
entries "$lock" pyspark >"$folder/pyspark.txt"
awk '/^[^ #]/ { on = !/^pyspark==/ } on' "$lock" >"$folder/wheels.txt"

# Install all with a command: "pip install" of uv or of pip. PySpark's wheel is unpacked at once, so it is not compressed.
install_all() {
    "$@" --require-hashes --only-binary :all: -r "$folder/wheels.txt" &&
        "$@" --require-hashes --no-deps --no-build-isolation --no-binary pyspark \
            --config-settings=--build-option=--compression=stored -r "$folder/pyspark.txt" &&
        "$@" --no-deps --no-build-isolation --no-index -e .
}

install_by_uv() {
    "${quiet_pip[@]}" install --require-hashes --only-binary :all: -r "$folder/uv.txt" &&
        hand_over index-url UV_DEFAULT_INDEX &&
        hand_over extra-index-url UV_INDEX &&
        hand_over find-links UV_FIND_LINKS &&
        hand_over cert SSL_CERT_FILE &&
        export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-180}" UV_LINK_MODE="${UV_LINK_MODE:-copy}" &&
        install_all .venv/bin/uv --quiet pip install --python .venv/bin/python
}

echo "Installing the packages of $lock (a minute on a new machine)."
install_by_uv || {
    echo "uv could not: pip installs them, which takes some minutes."
    install_all "${quiet_pip[@]}" install
}
