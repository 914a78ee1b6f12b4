#!/usr/bin/env bash
# Runs the parts of the nightly tier, or the named ones, and prints their results at this commit. A part that passed at
# this commit is not run again, so the tier can be run in pieces. With uncommitted changes every part is run.
#
# usage: nightly.sh [PART...]
#
# The part "busy" runs the gate BUSY_RUNS (10) times in a row while another program keeps every processor busy. Each run
# has a line in the ledger: busy-1 and so on.
#
# NIGHTLY_DIR (/var/lib/boxgate/nightly) contains the ledger and the output of each part, in a directory per commit. The
# ledger has a line for each finished part: commit, part, result, seconds and time, separated by tabs.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(tests soak fuzz conformance scale agents gvisor machines kubernetes race confined oldest newest arm64 newcomer mutants busy)
directory=${NIGHTLY_DIR:-/var/lib/boxgate/nightly}
ledger=$directory/ledger.tsv

# The newest release of Go on the module proxy.
newest() {
  go list -m -versions golang.org/toolchain | tr ' ' '\n' |
    sed -nE "s/^v0\.0\.1-(go1\.[0-9]+\.[0-9]+)\.$(go env GOHOSTOS)-$(go env GOHOSTARCH)$/\1/p" | sort -V | tail -n 1
}

# Runs the gate while another program keeps every processor busy.
busy() {
  local run start outcome
  spinners=()
  for _ in $(seq "$(nproc)"); do
    (while :; do :; done) &
    spinners+=($!)
  done
  trap 'kill "${spinners[@]}"' EXIT
  for run in $(seq "${BUSY_RUNS:-10}"); do
    [[ $commit == *-changed || $(result "busy-$run") != passed ]] || continue
    start=$SECONDS outcome=passed
    make test TESTFLAGS=-count=1 || outcome=FAILED
    record "busy-$run" $outcome $((SECONDS - start))
    [ $outcome = passed ] || return 1
  done
}

# Full size is for the parts that run once. The race detector, confinement and other Go releases test the code, for
# which the size does not matter: they run the gate.
part() {
  case $1 in
    tests) BOXGATE_NIGHTLY=1 make test TESTFLAGS="-count=1 -timeout 120m -skip 'TestSoak|TestQEMU|BoxgatePolicies|TestAgents'" GATEFLAGS=-slow ;;
    soak) BOXGATE_NIGHTLY=1 make test PACKAGES=./e2e/attack TESTFLAGS="-count=1 -timeout 60m -run TestSoak -v" ;;
    fuzz) BOXGATE_NIGHTLY=1 make fuzz FUZZTIME="${FUZZTIME:-30s}" ;;
    conformance) BOXGATE_NIGHTLY=1 make conformance ;;
    scale) BOXGATE_NIGHTLY=1 make scale ;;
    agents) make agents && BOXGATE_NIGHTLY=1 make test PACKAGES=./e2e/agents TESTFLAGS=-count=1 ;;
    gvisor) make runsc && make test PACKAGES=./e2e/runtimes TESTFLAGS=-count=1 &&
      BOXGATE_NIGHTLY=1 make test PACKAGES=./e2e/launchers TESTFLAGS="-count=1 -run GVisor" ;;
    machines) make vmm && BOXGATE_NIGHTLY=1 make test PACKAGES=./e2e/machines TESTFLAGS=-count=1 ;;
    kubernetes) make kubernetes && BOXGATE_NIGHTLY=1 make test PACKAGES=./e2e/cni TESTFLAGS="-count=1 -run BoxgatePolicies" ;;
    race) make race TESTFLAGS=-count=1 ;;
    confined) make confined ;;
    oldest) GOTOOLCHAIN=go$(sed -n 's/^go //p' go.mod) make test TESTFLAGS=-count=1 ;;
    newest) version=$(newest) && [ -n "$version" ] && GOTOOLCHAIN=$version make test TESTFLAGS=-count=1 ;;
    arm64) make arm64 ;;
    newcomer) make newcomer ;;
    mutants) make mutants MUTANTLEDGER="$directory/mutants.tsv" ;;
    busy) busy ;;
  esac
}

unset BOXGATE_NIGHTLY
[ $# -gt 0 ] || set -- "${all[@]}"
for name in "$@"; do
  case " ${all[*]} " in *" $name "*) ;; *) echo "no such part: $name; there are: ${all[*]}" >&2 && exit 2 ;; esac
done
commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain)" ] || commit+=-changed
mkdir -p "$directory/$commit"
touch "$ledger"

# record PART OUTCOME SECONDS: appends a line to the ledger
record() { printf '%s\t%s\t%s\t%d\t%s\n' "$commit" "$1" "$2" "$3" "$(date -u +%FT%TZ)" >>"$ledger"; }

# result PART: the last result of a part at this commit
result() { awk -F '\t' -v c="$commit" -v p="$1" '$1 == c && $2 == p { last = $3 } END { print last }' "$ledger"; }

trap 'echo "interrupted: $name is not in the ledger" >&2; exit 130' INT TERM
for name in "$@"; do
  if [ "$(result "$name")" = passed ] && [[ $commit != *-changed ]]; then
    echo "== $name has passed at this commit"
    continue
  fi
  echo "== $name"
  start=$SECONDS outcome=passed
  (part "$name") 2>&1 | tee "$directory/$commit/$name.log" || outcome=FAILED
  record "$name" $outcome $((SECONDS - start))
done

echo "== $commit"
awk -F '\t' -v c="$commit" -v parts="${all[*]}" '
  $1 == c { result[$2] = $3; seconds[$2] = $4; when[$2] = $5 }
  END {
    n = split(parts, names, " ")
    for (i = 1; i <= n; i++) {
      p = names[i]
      if (p in result) printf "%-12s %-8s %6d s  %s\n", p, result[p], seconds[p], when[p]
      else printf "%-12s %s\n", p, "not run"
    }
  }' "$ledger"
for name in "$@"; do
  [ "$(result "$name")" = passed ] || exit 1
done
