package history

import (
	"bytes"
	"strconv"
	"testing"

	"boxgate/api"
	"boxgate/policy"
)

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	h := New()
	for range MaxLogs + 50 {
		h.End(h.Start("a", []string{"true"}, func(error) {}), api.ExecResult{}, nil, "completed", "")
	}
	running := h.Start("a", []string{"sleep"}, func(error) {})
	h.Wrote(running, bytes.Repeat([]byte("x"), 3*maxRunOutput))
	if n := len(h.Runs("a")); n != maxRuns {
		t.Errorf("%d runs", n)
	}
	if n := len(h.Logs("a", 0, 2*MaxLogs)); n != MaxLogs {
		t.Errorf("%d log lines", n)
	}
	if len(running.output) != maxRunOutput {
		t.Errorf("%d bytes of output", len(running.output))
	}
	for i := range maxBoxes + 10 {
		h.Log(policy.BoxID("b"+strconv.Itoa(i)), "info", "system", "x")
	}
	if len(h.boxes) > maxBoxes {
		t.Errorf("%d boxes", len(h.boxes))
	}
}
