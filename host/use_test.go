package host

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/host/enforce"
	"boxgate/host/state"
)

// A box that a change of its policy closes while it is started again is not shown as one that can be used, nor does the caller hear
// that it was resumed.
func TestResumeShowsThatTheBoxWasClosed(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("box1")
	b, err := g.boxes.Find("box1")
	if err != nil {
		t.Fatal(err)
	}
	b.Ended, b.Status = true, api.StatusError
	u := &usage{store: g.store, log: zap.NewNop(), boxes: g.boxes, history: history.New(g.boxes.Exist)}
	u.restart = func(ctx context.Context, b *state.Box) error { // a policy that cannot be put in force comes in between
		return errors.Join(g.net.Disconnect(ctx, &b.Box), ignored(g.noteClosed(b, enforce.ErrClosed)))
	}
	_, err = u.ResumeBox(t.Context(), "box1")
	if !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), closedProblem) {
		t.Errorf("the caller was told %v", err)
	}
	if v := b.Shown.Load(); v.Status != api.StatusError || v.Error != closedProblem || b.Gate.IsOpen() {
		t.Errorf("it is shown as %s, %q", v.Status, v.Error)
	}
}

// ignored stands for the error of another caller.
func ignored(error) error { return nil }
