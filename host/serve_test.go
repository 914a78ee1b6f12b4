package host

import (
	"errors"
	"testing"

	"go.uber.org/zap"
)

// TestLoopsStoppedEarlyDoNotBegin: loops that were stopped before they were started do not run.
func TestLoopsStoppedEarlyDoNotBegin(t *testing.T) {
	t.Parallel()
	l := newLoops()
	l.stop()
	ctx, cancel := l.context(t.Context())
	defer cancel()
	if ctx.Err() == nil {
		t.Error("a loop begins although the loops were stopped")
	}
}

// A gateway that has not recovered its boxes refuses to serve.
func TestServeWithoutRecoveryIsRefused(t *testing.T) {
	t.Parallel()
	h := &Host{parts: &parts{log: zap.NewNop()}, health: &health{}}
	if err := h.Serve(t.Context()); !errors.Is(err, errNotRecovered) {
		t.Errorf("%v", err)
	}
	if err := h.health.Ready(t.Context()); err == nil {
		t.Error("it reported that it is ready")
	}
}
