package fault

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// A box created without waiting exists in any case, or reports why it does not run. Commands wait for it. If it fails
// or the gateway dies, its state is error and no process runs. It can be deleted.
func TestBoxThatWasPromised(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	key, err := os.ReadFile(w.Dir + "/state/api-key")
	if err != nil {
		t.Fatal(err)
	}
	create := func() string {
		out, err := w.Net.Gateway().Run(t.Context(), "curl", "-sS", "-H", "X-Box-Api-Key: "+strings.TrimSpace(string(key)),
			"-H", "Prefer: respond-async", "-H", "Content-Type: application/json", "-d", `{"name":"victim","network_policy":{"mode":"deny-all"}}`, "http://127.0.0.1:8600/v2/box")
		var made struct{ ID, Status string }
		if jerr := json.Unmarshal([]byte(out), &made); err != nil || jerr != nil || made.ID == "" || made.Status != "creating" && made.Status != "idle" {
			t.Fatalf("created: %v %v %s", err, jerr, out)
		}
		return made.ID
	}
	view := func(box string) (v struct{ Status, Error string }) {
		if err := w.Client.Get(t.Context(), api.BoxPath(box), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	box := create()
	harness.Contains(t, w.MustSh(box, "echo there"), "there")
	w.MustDelete(box)
	w.MustDelete(create()) // in any state
	for _, kind := range []string{harness.FaultError, harness.FaultDie} {
		w.Arm(kind, "launch: first process started")
		box := create()
		if kind == harness.FaultDie {
			w.AwaitExit(kind)
			w.StartIfStopped()
		}
		w.Until("it has failed", func() bool { return view(box).Status == "error" })
		if v := view(box); !strings.Contains(v.Error, "delete it") {
			t.Errorf("%s: %+v", kind, v)
		}
		w.Kill()
		w.StartIfStopped()
		if v := view(box); v.Status != "error" || !strings.Contains(v.Error, "delete it") {
			t.Errorf("%s, and after another restart: %+v", kind, v)
		}
		w.MustDelete(box)
		nothingLeft(w, kind)
	}
	s.assertHolds()
}

// The creation of a box hangs at each of its slow steps until the caller gives up. Then everything is rolled back.
// Until then the partial box reaches no destination.
func TestAttackWhileACreationHangs(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	body := map[string]any{"network_policy": narrow, "name": "victim"}
	for _, step := range []string{"launch: directory made", "link: box's end up", "connect: policy in force", "launch: root built", "launch: first process started"} {
		w.Arm(harness.FaultHang, step)
		ctx, hangUp := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Client.Do(ctx, "POST", "/v2/box", body, nil) }()
		w.Until(step, func() bool {
			_, err := os.Stat(w.FaultsPath())
			return os.IsNotExist(err)
		})
		before := s.sent.Load()
		w.Until("the siege goes on", func() bool { return step == "launch: directory made" || s.sent.Load() > before+100 })
		hangUp()
		if <-done == nil {
			t.Errorf("%s: the box was made", step)
		}
		w.Until(step+": the box is gone", func() bool {
			var boxes []any
			return w.Client.Get(t.Context(), "/v2/box", &boxes) == nil && len(boxes) == 0
		})
		nothingLeft(w, "hung at "+step)
	}
	w.MustDelete(makeNarrow(w))
	s.assertHolds()
}

// The first start on a host dies at each of its steps. The next one continues from the present state, and creates
// boxes.
func TestAFirstStartThatDiesHoldsUpNone(t *testing.T) {
	t.Parallel()
	for i, step := range stepsOfStart {
		if i%nightly.Size(4, 1) != 0 {
			continue
		}
		one := strings.HasPrefix(step, "link") || strings.HasPrefix(step, "connect") || strings.HasPrefix(step, "plan")
		if one { // a step of a box that existed before
			continue
		}
		t.Run(step, func(t *testing.T) {
			w := harness.NewStopped(t, lab.Options{})
			w.Env = []string{harness.FaultsFile + "=" + w.FaultsPath()}
			for _, kind := range []string{harness.FaultDie, harness.FaultError}[nightly.Size(1, 0):] {
				w.Arm(kind, step)
				if err := w.Start(t.Context()); err == nil {
					t.Errorf("%s: the gateway started", kind)
				}
				w.MustReachStep(kind + " at " + step)
				w.Kill()
			}
			w.StartIfStopped()
			w.MustSh(w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")}), "curl -sS -k -o /dev/null https://api.example.com/")
		})
	}
}
