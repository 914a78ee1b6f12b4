package fault

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/config"
	"boxgate/e2e/harness"
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
	client := etcd.Client()
	const step, name, root = "create: name claimed", "victim", "/boxgate/test/"
	claimed := func() (owner string, boxes int64) { // the host and box that have the name, and the boxes of the host
		t.Helper()
		found, err := client.Txn(t.Context()).Then(clientv3.OpGet(root+"names/"+name), clientv3.OpGet(root+"boxes/"+made.Host+"/", clientv3.WithPrefix())).Commit()
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range found.Responses[0].GetResponseRange().Kvs {
			owner = string(kv.Value)
		}
		return owner, found.Responses[1].GetResponseRange().Count
	}
	for _, kind := range []string{harness.FaultError, harness.FaultPanic, harness.FaultDie} {
		w.Arm(kind, step)
		if err := w.Client.Do(t.Context(), http.MethodPost, "/v2/box", map[string]any{"network_policy": narrow, "name": name}, nil); err == nil {
			t.Errorf("%s: the box was made", kind)
		}
		w.MustReachStep(kind)
		if kind == harness.FaultDie {
			w.AwaitExit(kind)
			if owner, boxes := claimed(); !strings.Contains(owner, `"box":"`+made.Host) || boxes != 1 {
				t.Errorf("after the death: %s, %d boxes", owner, boxes)
			}
			w.StartIfStopped()
		}
		w.Until("the name is free after "+kind, func() bool {
			owner, boxes := claimed()
			return owner == "" && boxes == 0
		})
		nothingLeft(w, kind)
	}
	w.MustDelete(makeNarrow(w))
}
