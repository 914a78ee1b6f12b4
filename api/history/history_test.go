package history

import (
	"bytes"
	"context"
	"strconv"
	"testing"

	"boxgate/api"
	"boxgate/llm"
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

// TestCostsOfRuns adds the cost of requests to the run of an agent, or else of a command, that began last before the request, even if the
// request ends after it.
func TestCostsOfRuns(t *testing.T) {
	t.Parallel()
	h := New(func(policy.BoxID) bool { return true })
	if h.Charge("b") != nil {
		t.Error("a box without runs has one to charge")
	}
	run := func(kind string, inner func(*Run)) *Run {
		r, _, err := h.Do(t.Context(), "b", Job{Type: kind}, func(_ context.Context, r *Run) (api.ExecResult, error) {
			inner(r)
			return api.ExecResult{}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	cost := llm.Usage{Input: 10, Output: 5, CacheRead: 3, CacheWrite: 2, Requests: 1}
	var late func(llm.Usage, llm.Money)
	var inner *Run
	agent := run(Agent, func(r *Run) {
		h.SetAnswer(r, Answer{InputTokens: 1e6, OutputTokens: 1e6}) // by the harness, which is the box's
		inner = run(Shell, func(*Run) { late = h.Charge("b") })
		h.Charge("b")(cost, llm.Dollar)
	})
	late(cost, llm.Dollar/4)
	shell := run(Shell, func(*Run) { h.Charge("b")(cost, llm.Dollar) })
	quiet := run(Agent, func(r *Run) { h.SetAnswer(r, Answer{InputTokens: 7}) })
	if h.Charge("b") != nil {
		t.Error("an ended run is charged")
	}
	for r, want := range map[*Run]RunView{
		agent: {InputTokens: 30, OutputTokens: 10, CachedTokens: 6, CostUSD: 1.25}, inner: {}, shell: {InputTokens: 15, OutputTokens: 5, CachedTokens: 3, CostUSD: 1}, quiet: {InputTokens: 7},
	} {
		got, _ := h.Find("b", r.ID())
		if got.InputTokens != want.InputTokens || got.OutputTokens != want.OutputTokens || got.CachedTokens != want.CachedTokens || got.CostUSD != want.CostUSD {
			t.Errorf("%s: %+v, want %+v", got.Type, got.RunView, want)
		}
	}
	if m := h.MeteredBy(agent); m.Requests != 2 || m.USD != llm.Dollar+llm.Dollar/4 {
		t.Errorf("the agent: %+v", m)
	}
}
