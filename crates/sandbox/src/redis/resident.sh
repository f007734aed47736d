# Runs the Redis server $2 in the folder $1 until it ends. Ends it when the folder is gone, or when
# redis.conf, which every use touches, was last touched more than $3 minutes ago.
trap '' HUP INT QUIT
cd -- "$1" || exit 1
"$2" redis.conf </dev/null >>redis.log 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null' TERM

wanted() {
  [ -e redis.conf ] && [ -z "$(find redis.conf -mmin "+$1" 2>/dev/null)" ]
}

while kill -0 "$server" 2>/dev/null && wanted "$3"; do
  sleep 1
done
kill "$server" 2>/dev/null
tries=0
while kill -0 "$server" 2>/dev/null; do
  tries=$((tries + 1))
  [ "$tries" -eq 50 ] && kill -s KILL "$server" 2>/dev/null
  sleep 0.1
done
