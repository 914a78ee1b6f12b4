package lifecycle

import (
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// lifetime is the part of a box that tells its end.
type lifetime struct {
	Ephemeral bool
	ExpiresAt int64 `json:"expires_at"`
}

// TestTheEndOfABoxIsMoved: the end of a real box is put off, kept by a restart of the gateway, removed, and brought forward while the
// box is paused, which is then deleted.
func TestTheEndOfABoxIsMoved(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "brief", "ephemeral": true, "ttl": 60})
	set := func(body map[string]any) (is lifetime) {
		t.Helper()
		if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/ttl"), body, &is); err != nil {
			t.Fatal(err)
		}
		return is
	}
	shown := func() (is lifetime) {
		t.Helper()
		if err := w.Client.Get(t.Context(), api.BoxPath(box), &is); err != nil {
			t.Fatal(err)
		}
		return is
	}
	first := shown()
	later := set(map[string]any{"extend": 3600})
	if later.ExpiresAt != first.ExpiresAt+3600 || shown() != later || !later.Ephemeral {
		t.Errorf("%+v, then %+v, shown as %+v", first, later, shown())
	}
	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if shown() != later {
		t.Errorf("after a restart: %+v", shown())
	}
	if none := set(map[string]any{"ttl": nil}); none != (lifetime{}) || shown() != none {
		t.Errorf("without an end: %+v", none)
	}
	err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/ttl"), map[string]any{"extend": 60}, nil)
	if err == nil || !strings.Contains(err.Error(), "no end") {
		t.Errorf("extending a box without an end: %v", err)
	}
	w.MustSh(box, "true")
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "pause"), nil, nil); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if soon := set(map[string]any{"ttl": 1}); soon.Ephemeral || soon.ExpiresAt == 0 {
		t.Errorf("a plain box with an end: %+v", soon)
	}
	w.Until("the box is gone", func() bool {
		var boxes []any
		return w.Client.Get(t.Context(), "/v2/box", &boxes) == nil && len(boxes) == 0
	})
	if lived := time.Since(begun); lived < time.Second {
		t.Errorf("it was deleted after %v", lived)
	}
}
