package host

import (
	"errors"
	"testing"

	"go.uber.org/zap"
)

// A gateway that has not recovered its boxes serves nobody.
func TestServeWithoutRecoveryIsRefused(t *testing.T) {
	t.Parallel()
	h := &Host{parts: &parts{log: zap.NewNop()}, health: &health{}}
	if err := h.Serve(t.Context()); !errors.Is(err, errNotRecovered) {
		t.Errorf("%v", err)
	}
	if err := h.health.Ready(t.Context()); err == nil {
		t.Error("it says that it is ready")
	}
}
