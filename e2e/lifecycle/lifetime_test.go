package lifecycle

import (
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
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

// TestBoxesOfKeysHaveAnEnd: with launcher.max_ttl, a box of a key has an end whether or not the key asks for one, and the key cannot
// remove it. An admin key can.
func TestBoxesOfKeysHaveAnEnd(t *testing.T) {
	t.Parallel()
	w := harness.SharedWith(t, func(c *config.Config) { c.Launcher.MaxTTL = time.Hour })
	var made struct{ Key string }
	if err := w.Client.Do(t.Context(), "POST", "/v2/api-keys", map[string]any{"name": "ci", "role": "box-creator"}, &made); err != nil {
		t.Fatal(err)
	}
	ci := api.NewClient(w.Socket, made.Key)
	var box struct {
		ID string
		lifetime
	}
	if err := ci.Do(t.Context(), "POST", "/v2/box", map[string]any{"keep_alive": true}, &box); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(time.Unix(box.ExpiresAt, 0)); left > time.Hour || left < 30*time.Minute || box.Ephemeral {
		t.Errorf("the box ends in %v, %+v", left, box)
	}
	for _, body := range []map[string]any{{"ttl": nil}, {"ttl": 7200}, {"extend": 3600}} {
		if err := ci.Do(t.Context(), "PUT", api.BoxPath(box.ID, "config/ttl"), body, nil); err == nil || !strings.Contains(err.Error(), "launcher.max_ttl") {
			t.Errorf("%v: %v", body, err)
		}
	}
	if err := ci.Do(t.Context(), "POST", "/v2/box", map[string]any{"ephemeral": true, "ttl": 7200}, nil); err == nil || !strings.Contains(err.Error(), "launcher.max_ttl") {
		t.Errorf("a box for two hours: %v", err)
	}
	var is lifetime
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box.ID, "config/ttl"), map[string]any{"ttl": nil}, &is); err != nil || is != (lifetime{}) {
		t.Errorf("by an admin key: %+v %v", is, err)
	}
}
