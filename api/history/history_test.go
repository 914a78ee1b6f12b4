package history

import (
	"bytes"
	"context"
	"strconv"
	"testing"

	"boxgate/api"
	"boxgate/policy"
)

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	h := New()
	for range MaxLogs + 50 {
		_, _, _ = h.Do(t.Context(), "a", Job{Type: Shell, Prompt: "true"}, func(context.Context, *Run) (api.ExecResult, error) { return api.ExecResult{}, nil })
	}
	running := h.start("a", Job{Type: Shell, Prompt: "sleep"}, func(error) {})
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
