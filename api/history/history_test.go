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
	h := New(nil)
	for range MaxLogs + 50 {
		_, _, _ = h.Do(t.Context(), "a", Job{Type: Shell, Prompt: "true"}, func(context.Context, *Run) (api.ExecResult, error) { return api.ExecResult{}, nil })
	}
	running := h.startRun("a", Job{Type: Shell, Prompt: "sleep"}, func(error) {})
	h.AppendOutput(running, bytes.Repeat([]byte("x"), 3*maxRunOutput))
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

// Late lines and runs of a deleted box are dropped.
func TestNothingIsRememberedOfABoxThatIsGone(t *testing.T) {
	t.Parallel()
	gone := false
	h := New(func(policy.BoxID) bool { return !gone })
	h.Log("a", "info", "system", "made")
	gone = true
	h.Forget("a")
	h.Log("a", "info", "system", "late")
	_, _, err := h.Do(t.Context(), "a", Job{Type: Shell, Prompt: "true"}, func(context.Context, *Run) (api.ExecResult, error) { return api.ExecResult{}, nil })
	if err != nil || len(h.boxes) != 0 {
		t.Errorf("%d boxes, %v", len(h.boxes), err)
	}
}
