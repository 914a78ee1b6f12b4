package cli

import (
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// TestMetricsOfTheProcess: the metrics used by dashboards of Go programs exist.
func TestMetricsOfTheProcess(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	text, err := w.Net.Gateway().Run(t.Context(), "curl", "-sS", "--fail", "http://127.0.0.1:9600/metrics")
	if err != nil {
		t.Fatal(err, text)
	}
	for _, name := range []string{"go_goroutines ", "go_memstats_heap_inuse_bytes ", "process_open_fds ", "process_resident_memory_bytes ",
		"process_start_time_seconds ", "go_info{", "boxgate_build_info{"} {
		if !strings.Contains(text, "\n"+name) {
			t.Errorf("no %s", name)
		}
	}
}
