#!/usr/bin/env bash
# Prints the measurements of watch.sh, with each time as a multiple of the time of compiling on that system. It fails if
# a step failed, is missing, or was silent for more than five seconds.
#
# usage: table.sh TABLE STEP... (the steps that every system must have)
set -euo pipefail
table=$1
shift
LC_ALL=C awk -F '\t' -v wanted="$*" '
  { systems[$1]; rows[++n] = $0; seen[$1, $2] }
  $2 == "compile" { compile[$1] = $4 }
  END {
    printf "%-10s %-10s %-7s %9s %12s %9s\n", "system", "step", "result", "seconds", "x compiling", "silence"
    for (i = 1; i <= n; i++) {
      split(rows[i], f, "\t")
      result = f[3] == 0 ? "passed" : "FAILED"
      if (f[5] > 5000) result = "SILENT"
      if (result != "passed") bad = 1
      times = compile[f[1]] > 0 ? sprintf("%.2f", f[4] / compile[f[1]]) : "-"
      printf "%-10s %-10s %-7s %9.1f %12s %9.1f\n", f[1], f[2], result, f[4] / 1000, times, f[5] / 1000
    }
    steps = split(wanted, step, " ")
    for (s in systems) for (i = 1; i <= steps; i++) if (!((s, step[i]) in seen)) { printf "%-10s %-10s MISSING\n", s, step[i]; bad = 1 }
    exit bad || n == 0
  }' "$table"
