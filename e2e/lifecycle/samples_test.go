package lifecycle

import (
	"strconv"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// usageSamples are the use of a box over time.
type usageSamples struct {
	CPUs    float64
	Memory  int64 `json:"memory_total_bytes"`
	Samples []struct {
		At     float64
		Memory int64   `json:"memory_bytes"`
		Cache  int64   `json:"memory_cache_bytes"`
		CPU    float64 `json:"cpu_percent"`
	}
}

// TestUseOverTime: samples of a busy box have its CPU time and its memory.
func TestUseOverTime(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{})
	read := func(since float64) (is usageSamples) {
		t.Helper()
		path := api.BoxPath(box, "usage/samples") + "?since=" + strconv.Itoa(int(since))
		if err := w.Client.Get(t.Context(), path, &is); err != nil {
			t.Fatal(err)
		}
		return is
	}
	w.MustSh(box, "head -c 30000000 /dev/zero >file; setsid sh -c 'while :; do :; done' >/dev/null 2>&1 &")
	var is usageSamples
	w.Until("the box has samples of its work", func() bool {
		is = read(0)
		n := len(is.Samples)
		return n >= 2 && is.Samples[n-1].CPU > 1
	})
	s := is.Samples[len(is.Samples)-1]
	if is.CPUs < 1 || is.CPUs > 2 || is.Memory != 4<<30 || s.CPU > 110 || s.Memory < 1<<20 || s.Cache <= 0 || s.Cache > s.Memory {
		t.Errorf("%+v", is)
	}
	if later := read(is.Samples[0].At + 1); len(later.Samples) == 0 || later.Samples[0].At <= is.Samples[0].At {
		t.Errorf("since %v: %+v", is.Samples[0].At, later)
	}
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "usage/samples")+"?since=x", nil); err == nil || !strings.Contains(err.Error(), "whole number") {
		t.Errorf("since x: %v", err)
	}
}
