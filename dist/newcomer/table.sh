#!/usr/bin/env bash
# Prints the measurements of internal/silence, with each time as a multiple of the time of compiling on that system. It
# fails if a step failed, is missing, or was silent for what takes more than five seconds on an idle machine.
#
# usage: table.sh TABLE STEP... (the steps that every system must have)
set -euo pipefail
table=$1
shift
LC_ALL=C awk -F '\t' -v wanted="$*" '
  { systems[$1]; rows[++n] = $0; seen[$1, $2] }
  $2 == "compile" { compile[$1] = $4 }
  END {
    printf "%-10s %-10s %-7s %9s %12s %9s %9s\n", "system", "step", "result", "seconds", "x compiling", "silence", "idle"
    for (i = 1; i <= n; i++) {
      split(rows[i], f, "\t")
      result = f[3] == 0 ? "passed" : "FAILED"
      if (f[2] != "compile" && f[6] == "") result = "FAILED" # it was not measured
      if (f[6] > 5000) result = "SILENT"
      if (result != "passed") bad = 1
      times = compile[f[1]] > 0 ? sprintf("%.2f", f[4] / compile[f[1]]) : "-"
      printf "%-10s %-10s %-7s %9.1f %12s", f[1], f[2], result, f[4] / 1000, times
      if (f[6] != "") printf " %9.1f %9.1f", f[5] / 1000, f[6] / 1000
      if (f[7] != "") printf "  after: %s", f[7]
      printf "\n"
    }
    steps = split(wanted, step, " ")
    for (s in systems) for (i = 1; i <= steps; i++) if (!((s, step[i]) in seen)) { printf "%-10s %-10s MISSING\n", s, step[i]; bad = 1 }
    exit bad || n == 0
  }' "$table"
