# Waits until its owner is gone (end of file on stdin), then ends the processes whose ids it was told,
# one a line, and removes the folder.
#   $1 folder
trap '' HUP INT QUIT TERM
dir=$1 pids=
while read -r pid; do
  pids="$pids $pid"
done

# Whether a process is still the one that was told: every one of them has the folder in its arguments.
ours() {
  if [ -d /proc/self ]; then
    grep -qF -e "$dir/" "/proc/$1/cmdline" 2>/dev/null
  else
    ps -o args= -p "$1" 2>/dev/null | grep -qF -e "$dir/"
  fi
}

for pid in $pids; do
  ours "$pid" && kill -s KILL "$pid" 2>/dev/null
done
rm -rf "$dir"
