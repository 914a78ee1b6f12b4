package lifecycle

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
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

// ending is the part of a box that tells what happens at its end.
type ending struct {
	Status      string
	ExpiresAt   int64  `json:"expires_at"`
	OnEnd       string `json:"on_end"`
	AutoResume  bool   `json:"auto_resume"`
	PausedAtEnd bool   `json:"paused_at_end"`
}

// endingOf reads a box.
func endingOf(w *harness.World, box string) (is ending) {
	w.T.Helper()
	if err := w.Client.Get(w.T.Context(), api.BoxPath(box), &is); err != nil {
		w.T.Fatal(err)
	}
	return is
}

// TestBoxesArePausedAtTheirEnds: a box with on_end pause stands still at its end and keeps its processes. Neither a command nor a visitor
// continues it, over a restart of the gateway too, until it is resumed: then it has a new end. With auto_resume, a command and a visitor
// continue it as well.
func TestBoxesArePausedAtTheirEnds(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	const ttl = 8 // seconds, in which the test does a few calls
	box := w.Create(map[string]any{"ephemeral": true, "ttl": ttl, "on_end": "pause"})
	w.MustSh(box, "setsid python3 -m http.server 8000 >/dev/null 2>&1 & echo $! >pid")
	var public harness.PublicURL
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000}, &public); err != nil {
		t.Fatal(err)
	}
	visit := func() string {
		t.Helper()
		out, err := w.Net.Gateway().Run(t.Context(), "curl", "-sSk", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}", "--connect-to", "::127.0.0.1:", public.URL)
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return out
	}
	ends := func() {
		t.Helper()
		w.Until("the box is paused at its end", func() bool { return endingOf(w, box).PausedAtEnd })
		if is := endingOf(w, box); is.Status != "paused" || is.OnEnd != "pause" || is.ExpiresAt < time.Now().Add(700*time.Hour).Unix() {
			t.Errorf("at its end: %+v", is)
		}
	}
	refused := func(what string) {
		t.Helper()
		err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "exec"), map[string]any{"command": []string{"true"}}, nil)
		if err == nil || !strings.Contains(err.Error(), "paused at its end") {
			t.Errorf("%s, a command: %v", what, err)
		}
		if got := visit(); got != "502" {
			t.Errorf("%s, a visitor gets %s", what, got)
		}
		err = w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/ttl"), map[string]any{"ttl": 60}, nil)
		if err == nil || !strings.Contains(err.Error(), "resume it") {
			t.Errorf("%s, a new end: %v", what, err)
		}
	}
	renewed := func(what string, seconds int64) {
		t.Helper()
		if is := endingOf(w, box); is.PausedAtEnd || is.ExpiresAt == 0 || is.ExpiresAt > time.Now().Unix()+seconds+1 {
			t.Errorf("%s: %+v", what, is)
		}
	}
	ends()
	refused("at its end")
	w.Kill()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("after a restart of the gateway")
	mustPost(w, box, "resume")
	renewed("resumed", ttl)
	if out := w.MustSh(box, "kill -0 $(cat pid) && echo runs"); out != "runs\n" {
		t.Errorf("its processes: %q", out)
	}
	ends()
	var is ending
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/on-end"), map[string]any{"on_end": "pause", "auto_resume": true}, &is); err != nil || !is.AutoResume {
		t.Fatalf("%+v %v", is, err)
	}
	w.MustSh(box, "true")
	renewed("by a command", ttl)
	ends()
	if got := visit(); got != "200" {
		t.Errorf("a visitor gets %s", got)
	}
	renewed("by a visitor", 60)
	if is := endingOf(w, box); is.ExpiresAt < time.Now().Unix()+2*ttl {
		t.Errorf("by a visitor, who gives it a minute: %+v", is)
	}
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/ttl"), map[string]any{"ttl": ttl}, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(box, "config/on-end"), map[string]any{"on_end": "delete"}, nil); err != nil {
		t.Fatal(err)
	}
	w.Until("the box is deleted at its end", func() bool {
		var boxes []any
		return w.Client.Get(t.Context(), "/v2/box", &boxes) == nil && len(boxes) == 0
	})
}

// TestBoxThatObstructsItsPause: the processes of a box that cannot be paused at its end are ended. It keeps its files, and starts again
// when it is resumed.
func TestBoxThatObstructsItsPause(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	w.Env = append(w.Env, harness.FaultsFile+"="+w.FaultsPath())
	w.StartIfStopped()
	box := w.Create(map[string]any{"ephemeral": true, "ttl": 8, "on_end": "pause", "network_policy": harness.Custom("plain.example.com")})
	w.MustSh(box, "echo kept >note; setsid sleep 1000 >/dev/null 2>&1 & echo $! >pid")
	first := w.InitOf(box)
	w.Arm(harness.FaultError, "pause: box frozen")
	w.Until("the box is at its end", func() bool { return endingOf(w, box).PausedAtEnd })
	w.MustReachStep("the pause")
	if is := endingOf(w, box); is.Status != "paused" {
		t.Errorf("%+v", is)
	}
	if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(first))); err == nil {
		t.Error("its first process runs on")
	}
	mustPost(w, box, "resume")
	if out := w.MustSh(box, "cat note; kill -0 $(cat pid) 2>/dev/null || echo ended; curl -sS --max-time 60 http://plain.example.com/seen"); !strings.HasPrefix(out, "kept\nended\n") || !strings.Contains(out, "GET /seen") {
		t.Errorf("resumed: %q", out)
	}
	if _, code := w.Sh(box, "curl -sS --max-time 60 https://evil.example.net/"); code != 35 {
		t.Errorf("a host that is not allowed: %d", code)
	}
	if is := endingOf(w, box); is.PausedAtEnd || is.ExpiresAt > time.Now().Unix()+9 {
		t.Errorf("resumed: %+v", is)
	}
}
