package route

import (
	"context"
	"testing"
	"time"
)

// A cut connection may outlive CloseBox; it must not leave state behind.
func TestNothingIsRememberedForCutConnections(t *testing.T) {
	t.Parallel()
	g := New(t.Context(), nil, nil, nil, time.Second)
	kept := g.cachesOf(t.Context(), "b1")
	if g.cachesOf(t.Context(), "b1") != kept {
		t.Error("no state is kept for a box")
	}
	g.Forget("b1")
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	if g.cachesOf(cut, "b1") == kept || len(g.caches) > 0 {
		t.Errorf("%d boxes are remembered after the last was forgotten", len(g.caches))
	}
}
