package fault

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
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
