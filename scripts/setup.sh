#!/usr/bin/env bash
# Makes sure that this machine can build and test outflow: PostgreSQL, Redis and a C linker.
# Installs what is missing through apt-get where it may (root, or sudo without a password), else says
# what to install. Touches nothing where nothing is missing.
#   usage: setup.sh [--check]     --check only reports
set -euo pipefail

# A folder that was chosen is used, or named as wrong; never passed over.
chosen() { # variable, program
  local folder=${!1:-}
  [ -n "$folder" ] || return 1
  [ -x "$folder/$2" ] && return
  echo "setup: $1=$folder does not hold $2" >&2
  exit 1
}

has_postgres() {
  local folder
  chosen OUTFLOW_PG_BIN postgres && return
  command -v postgres >/dev/null && command -v initdb >/dev/null && return
  for folder in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin \
    /opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin; do
    [ -x "$folder/postgres" ] && return
  done
  return 1
}

has_redis() {
  chosen OUTFLOW_REDIS_BIN redis-server && return
  command -v redis-server >/dev/null
}

command -v cargo >/dev/null || [ -x "$HOME/.cargo/bin/cargo" ] || {
  echo "setup: no Rust toolchain: see https://rustup.rs" >&2
  exit 1
}

packages=()
has_postgres || packages+=(postgresql)
has_redis || packages+=(redis-server)
command -v cc >/dev/null || packages+=(build-essential)
[ ${#packages[@]} -eq 0 ] && exit 0

advice="setup: missing ${packages[*]}: apt-get install ${packages[*]}
       (macOS: brew install postgresql@17 redis; elsewhere: set OUTFLOW_PG_BIN and OUTFLOW_REDIS_BIN)"
if [ "${1:-}" = --check ] || ! command -v apt-get >/dev/null; then
  echo "$advice" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! sudo -n true 2>/dev/null; then
    echo "$advice" >&2
    exit 1
  fi
  as_root=(sudo -n)
fi

# Only the programs are wanted: no service is started on the way. Where the machine has a policy of
# its own, that one holds.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
fi

echo "setup: installing ${packages[*]}"
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
  apt-get install -y -qq --no-install-recommends "${packages[@]}")
"${install[@]}" </dev/null || { "${as_root[@]}" apt-get update -qq && "${install[@]}" </dev/null; }
