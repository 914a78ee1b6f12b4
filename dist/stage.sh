#!/bin/bash
# stage.sh NAME COMMAND...: runs a command and shows the elapsed time. It prints the output of the command if that
# fails.
set -u
name=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
start=$SECONDS
"$@" >"$log" 2>&1 </dev/null &
pid=$!
trap 'kill "$pid" 2>/dev/null; wait "$pid"; exit 130' INT TERM

# On a terminal one line is updated; otherwise a line is printed every three seconds.
said=$start
show() {
  if [ -t 1 ]; then
    printf '\r\033[K%s  %d s  %s' "$name" $((SECONDS - start)) "$(tail -n 1 "$log" | tr -cd '[:print:]' | cut -c 1-60)"
  elif [ $((SECONDS - said)) -ge 3 ]; then
    said=$SECONDS
    printf '%s  %d s\n' "$name" $((SECONDS - start))
  fi
}

[ -t 1 ] || printf '%s\n' "$name"
while kill -0 "$pid" 2>/dev/null; do
  show
  sleep 0.2
done
wait "$pid"
status=$?
[ -t 1 ] && printf '\r\033[K'
if [ "$status" -ne 0 ]; then
  printf '%s  failed after %d s\n' "$name" $((SECONDS - start))
  cat "$log" >&2
  exit "$status"
fi
printf '%s  done in %d s\n' "$name" $((SECONDS - start))
