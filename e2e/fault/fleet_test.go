package fault

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/fleet"
	"boxgate/fleet/directory"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// TestCrashBetweenClaimAndBox: a gateway that fails, panics or dies after it has claimed the name of a box in its fleet, and before it has stored the
// box, frees the name. Until then the directory has the box with its ID, and no host takes it for one of its own.
func TestCrashBetweenClaimAndBox(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	etcd := etcdtest.Start(t)
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Fleet = config.Fleet{Name: "test", Endpoints: []string{etcd.Endpoint()}}
	}})
	cmd := w.Command(t.Context(), "fleet", "init", "--json")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.Net.Gateway().Start(cmd); err != nil {
		t.Fatal(err)
	}
	var made struct{ Host string }
	if err := cmd.Wait(); err != nil || json.Unmarshal([]byte(out.String()), &made) != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	w.Env = []string{harness.FaultsFile + "=" + w.FaultsPath()}
	w.StartIfStopped()
	d := directory.Directory{Client: etcd.Client(), Keys: fleet.KeysOf("test"), Host: made.Host}
	const step = "create: name claimed"
	for _, kind := range []string{harness.FaultError, harness.FaultPanic, harness.FaultDie} {
		w.Arm(kind, step)
		if err := w.Client.Do(t.Context(), http.MethodPost, "/v2/box", map[string]any{"network_policy": narrow, "name": "victim"}, nil); err == nil {
			t.Errorf("%s: the box was made", kind)
		}
		w.MustReachStep(kind)
		if kind == harness.FaultDie {
			w.AwaitExit(kind)
			o, ok, err := d.Find(t.Context(), "victim")
			if err != nil || !ok || o.Host != made.Host || !strings.HasPrefix(o.Box, made.Host) {
				t.Errorf("after the death: %+v, %v, %v", o, ok, err)
			}
			w.StartIfStopped()
		}
		w.Until("the name is free after "+kind, func() bool {
			_, ok, err := d.Find(t.Context(), "victim")
			return err == nil && !ok
		})
		if boxes, err := d.Boxes(t.Context(), made.Host); err != nil || len(boxes) != 0 {
			t.Errorf("%s: the directory has %v, %v", kind, boxes, err)
		}
		nothingLeft(w, kind)
	}
	w.MustDelete(makeNarrow(w))
}
