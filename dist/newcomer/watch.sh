#!/usr/bin/env bash
# Runs a command without a terminal, and appends a line to a table: system, step, exit status, time and longest silence
# in milliseconds, separated by tabs. It prints the output of the command and exits with its status.
#
# usage: watch.sh TABLE SYSTEM STEP COMMAND...
set -u
table=$1 system=$2 step=$3
shift 3
longest=0
milliseconds() { now=${EPOCHREALTIME/[.,]/}; now=$((now / 1000)); }
heard() {
  milliseconds
  [ $((now - last)) -le "$longest" ] || longest=$((now - last))
  last=$now
}
milliseconds
start=$now last=$now
exec 3< <("$@" 2>&1 </dev/null)
command=$!
while IFS= read -r line <&3 || [ -n "$line" ]; do
  heard
  printf '%s\n' "$line"
done
wait "$command"
status=$?
heard
printf '%s\t%s\t%d\t%d\t%d\n' "$system" "$step" "$status" $((now - start)) "$longest" >>"$table"
exit "$status"
