#!/usr/bin/env bash
# Install the programs that tests start and pip cannot bring, where they are missing.
#
#     scripts/install_services.sh [postgresql] [java] [venv] [chromium] [spin] [zsh] [fish]
#
# Needs a Debian or Ubuntu machine and root to install; elsewhere it says in one sentence what to install.
set -euo pipefail
shopt -s nullglob

has() {
    case $1 in
        postgresql) command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ;;
        java) command -v java >/dev/null && [ "$(java_version)" -ge 17 ] ;;
        chromium) command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ;;
        venv) "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null ;;
        spin) command -v spin >/dev/null && command -v gcc >/dev/null ;;
        zsh | fish) command -v "$1" >/dev/null ;;
        *) echo "Unknown service: $1." >&2 && exit 2 ;;
    esac
}

java_version() {
    java -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1
}

packages() {
    case $1 in
        postgresql) echo postgresql ;;
        java) echo default-jre-headless ;;
        venv) echo python3-venv ;;
        chromium) echo chromium fonts-dejavu-core ;;
        spin) echo spin gcc libc6-dev ;;
        zsh | fish) echo "$1" ;;
    esac
}

missing=()
for service in "$@"; do
    if ! has "$service"; then
        read -ra names <<<"$(packages "$service")"
        missing+=("${names[@]}")
    fi
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "The tests need ${missing[*]}: install it with your system's package manager, then try again." >&2
    exit 1
fi
echo "Installing ${missing[*]}."
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
apt-get install --quiet=2 --yes --no-install-recommends "${missing[@]}" >/dev/null
