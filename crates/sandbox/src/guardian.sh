# Waits until its owner is gone (end of file on stdin), then ends the server and removes its folder.
#   $1 folder   $2 host:port of the server   $3 the first signal to send
trap '' HUP INT QUIT TERM
dir=$1 address=$2 signal=$3
while read -r word; do
  [ "$word" = leave ] && exit 0
done

# The rename comes first: a server that is about to start can no longer record its pid, and gives up.
mv "$dir" "$dir.gone" 2>/dev/null || exit 0
pid=$(cat "$dir.gone/server.pid" 2>/dev/null)

# Whether $pid is still the server, and not a stranger that inherited its number.
ours() {
  if [ -d /proc/self ]; then
    grep -qF -e "$dir/" -e "$address" "/proc/$pid/cmdline" 2>/dev/null
  else
    ps -o args= -p "$pid" 2>/dev/null | grep -qF -e "$dir/" -e "$address"
  fi
}

if [ -n "$pid" ] && ours; then
  # the whole group: Redis may have forked a child that writes a snapshot
  kill -s "$signal" -- "-$pid" 2>/dev/null
  kill -s CONT -- "-$pid" 2>/dev/null
  tries=0
  while ours && [ "$tries" -lt 160 ]; do
    tries=$((tries + 1))
    [ "$tries" -eq 120 ] && kill -s KILL -- "-$pid" 2>/dev/null
    sleep 0.05
  done
fi
# A killed PostgreSQL leaves a System V segment, named in its lock file, for its next start to find.
segment=$(sed -n 7p "$dir.gone/data/postmaster.pid" 2>/dev/null | awk '{ print $2 }')
[ -n "$segment" ] && ipcrm -m "$segment" 2>/dev/null
rm -rf "$dir.gone" 2>/dev/null || { sleep 1; rm -rf "$dir.gone"; }
