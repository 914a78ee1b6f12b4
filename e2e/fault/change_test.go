package fault

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// A box can be deleted while it is being created. It leaves no traces, and the next user of its addresses works.
func TestDeletedWhileItIsMade(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	w.Env = append(w.Env, harness.FaultsFile+"="+w.FaultsPath())
	w.StartIfStopped()
	for _, step := range []string{"launch: root built", "launch: first process started"} {
		w.Arm(harness.FaultHang, step)
		ctx, hangUp := context.WithCancel(t.Context())
		made, deleted := make(chan error, 1), make(chan error, 1)
		go func() { made <- w.Client.Do(ctx, "POST", "/v2/box", map[string]any{"name": "short-lived"}, nil) }()
		w.Until(step, func() bool {
			_, err := os.Stat(w.FaultsPath())
			return os.IsNotExist(err)
		})
		go func() { deleted <- w.Client.Do(t.Context(), "DELETE", api.BoxPath("short-lived"), nil, nil) }()
		w.Until("the deletion has begun", func() bool {
			links, err := w.Net.Gateway().Run(t.Context(), "ip", "-o", "link")
			return err == nil && !strings.Contains(links, "alias boxgate box")
		})
		hangUp()
		if err := <-made; err == nil {
			t.Errorf("%s: the box was made", step)
		}
		if err := <-deleted; err != nil {
			t.Errorf("%s: %v", step, err)
		}
		w.Until(step+": the box is gone", func() bool {
			var boxes []any
			return w.Client.Get(t.Context(), "/v2/box", &boxes) == nil && len(boxes) == 0
		})
		next := w.Create(map[string]any{"name": "short-lived"})
		w.MustSh(next, "curl -sS --max-time 60 http://plain.example.com/seen")
		w.MustDelete(next)
		nothingLeft(w, step)
	}
}

// The gateway fails at every step of creating a box and of deleting one, in turn, while the partial box attacks.
func TestAttackDuringFaultsOfCreateAndDelete(t *testing.T) {
	t.Parallel()
	for half := range 2 {
		t.Run(string(rune('a'+half)), func(t *testing.T) {
			t.Parallel()
			w, s := faultWorld(t)
			for i := half; i < max(len(stepsOfCreate), len(stepsOfDelete)); i += 2 {
				if i < len(stepsOfCreate) {
					failCreate(w, stepsOfCreate[i])
				}
				if i < len(stepsOfDelete) {
					failDelete(w, stepsOfDelete[i])
				}
				if t.Failed() {
					break
				}
			}
			w.MustDelete(makeNarrow(w))
			nothingLeft(w, "at the end")
			s.assertHolds()
		})
	}
}

// makeNarrow creates a working box.
func makeNarrow(w *harness.World) string {
	w.T.Helper()
	return w.Create(map[string]any{"network_policy": narrow, "name": "victim"})
}

// failCreate tries every fault at one step of a creation. No traces of the box may remain, including its name.
func failCreate(w *harness.World, step string) {
	w.T.Helper()
	for _, kind := range kindsOf(step) {
		err := failing(w, kind, step, func() error {
			body := map[string]any{"network_policy": narrow, "name": "victim"}
			return w.Client.Do(w.T.Context(), "POST", "/v2/box", body, nil)
		})
		if err == nil {
			w.T.Errorf("%s at %q: the box was made", kind, step)
		}
		nothingLeft(w, kind+" at "+step)
	}
}

// failDelete tries every fault at one step of a deletion, always with the same box. Afterwards the box exists or is
// gone, and can be deleted again.
func failDelete(w *harness.World, step string) {
	w.T.Helper()
	for _, kind := range kindsOf(step) {
		box := makeNarrow(w)
		_ = failing(w, kind, step, func() error { return w.Client.Do(w.T.Context(), "DELETE", api.BoxPath(box), nil, nil) })
		if kind == harness.FaultDie && step == "delete: begun" {
			agrees(w.Raid(box), "died at "+step) // the deletion had no effect, the box keeps running
		}
		err := w.Client.Do(w.T.Context(), "DELETE", api.BoxPath(box), nil, nil)
		if err != nil && !strings.Contains(err.Error(), "404") && !strings.Contains(err.Error(), "no box") && !strings.Contains(err.Error(), "not found") {
			w.T.Errorf("%s at %q: deleting again: %v", kind, step, err)
		}
		nothingLeft(w, kind+" at "+step)
	}
}

// The gateway fails at every step of a policy update, both one that opens and one that closes.
func TestAttackDuringFaultsOfPolicyUpdates(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	r := w.Raid(makeNarrow(w))
	isWide := false
	for _, step := range stepsOfChange {
		for range 2 { // opening and closing
			for _, kind := range kindsOf(step) {
				what := kind + " at " + step
				next := map[bool]map[string]any{true: narrow, false: wide}[isWide]
				err := failing(w, kind, step, func() error {
					return w.Client.Do(t.Context(), "PUT", api.BoxPath(r.Box, "config/network-policy"), next, nil)
				})
				if kind != harness.FaultDie && err == nil {
					t.Errorf("%s: the answer was a success", what)
				}
				isNow := agrees(r, what)
				if past := isMark(step); isNow != (isWide != past) {
					t.Errorf("%s: wide was %v and is %v", what, isWide, isNow)
				}
				isWide = isNow
			}
			isWide = !isWide
			w.SetPolicy(r.Box, map[bool]map[string]any{true: wide, false: narrow}[isWide])
			if got := agrees(r, "after "+step); got != isWide || t.Failed() {
				t.Fatalf("after the faults at %q an update left wide=%v", step, got)
			}
		}
	}
	s.assertHolds()
}

// The gateway fails at every step of a change of header rules, the box's and the global ones. The header sent to the
// server is the one the API reports.
func TestAttackDuringFaultsOfHeaderUpdates(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	r := w.Raid(makeNarrow(w))
	for _, c := range []struct {
		path  string
		steps []string
	}{{api.BoxPath(r.Box, "config/attach-headers"), stepsOfChange}, {"/v2/box/settings/attach-headers", stepsOfGlobal}} {
		for _, step := range c.steps {
			for _, kind := range kindsOf(step) {
				what := kind + " at " + step + " " + c.path
				err := failing(w, kind, step, func() error { return w.Client.Do(t.Context(), "PUT", c.path, keyFor("api.example.com"), nil) })
				if kind != harness.FaultDie && err == nil {
					t.Errorf("%s: the answer was a success", what)
				}
				if has, past := sendsWhatItSays(w, r, what), isMark(step); has != past {
					t.Errorf("%s: the rule is in force: %v", what, has)
				}
				for _, rules := range []map[string]any{keyFor("api.example.com"), {}} {
					if err := w.Client.Do(t.Context(), "PUT", c.path, rules, nil); err != nil {
						t.Fatalf("%s: and then: %v", what, err)
					}
				}
				agrees(r, what)
			}
		}
	}
	s.assertHolds()
	if strings.Contains(w.LogText(), harness.TestSecret) {
		t.Error("the secret, which is also the panic's text, is in the log")
	}
}

// The gateway fails at every step of a change of both policy and header rules, both one that opens and one that closes. Afterwards
// the box has the old pair or the new one: never the key under the narrow policy, nor the wide policy without it.
func TestAttackDuringFaultsOfNetworkUpdates(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	r := w.Raid(makeNarrow(w))
	path := api.BoxPath(r.Box, "config/network")
	pairs := map[bool]map[string]any{
		false: {"network_policy": narrow, "attach_headers": map[string]any{}},
		true:  {"network_policy": wide, "attach_headers": keyFor("api.example.com")},
	}
	isWide := false
	for _, step := range stepsOfChange {
		for range 2 { // opening and closing
			for _, kind := range kindsOf(step) {
				what := kind + " at " + step
				err := failing(w, kind, step, func() error { return w.Client.Do(t.Context(), "PUT", path, pairs[!isWide], nil) })
				if kind != harness.FaultDie && err == nil {
					t.Errorf("%s: the answer was a success", what)
				}
				isNow := agrees(r, what)
				if past := isMark(step); isNow != (isWide != past) {
					t.Errorf("%s: wide was %v and is %v", what, isWide, isNow)
				}
				if has := sendsRule(w, r, what); has != isNow {
					t.Errorf("%s: wide is %v, and the rule is in force: %v", what, isNow, has)
				}
				isWide = isNow
			}
			isWide = !isWide
			if err := w.Client.Do(t.Context(), "PUT", path, pairs[isWide], nil); err != nil {
				t.Fatalf("after the faults at %q: %v", step, err)
			}
			if got, has := agrees(r, "after "+step), sendsRule(w, r, "after "+step); got != isWide || has != isWide || t.Failed() {
				t.Fatalf("after the faults at %q an update left wide=%v with the rule %v", step, got, has)
			}
		}
	}
	s.assertHolds()
	if strings.Contains(w.LogText(), harness.TestSecret) {
		t.Error("the secret, which is also the panic's text, is in the log")
	}
}

// keyFor returns the header rule that gives a host the secret.
func keyFor(host string) map[string]any {
	return map[string]any{host: map[string]string{"Authorization": "Bearer " + harness.TestSecret}}
}

// sendsWhatItSays is sendsRule for a box with the narrow policy. It fails the test if an address is open that only the wide one opens.
func sendsWhatItSays(w *harness.World, r *harness.Raider, what string) bool {
	w.T.Helper()
	has := sendsRule(w, r, what)
	for _, a := range extra {
		if got := r.Try("udp", netip.AddrPortFrom(a, 4444)); got == harness.Saw(nil) {
			w.T.Errorf("%s: %v is open", what, a)
		}
	}
	return has
}

// sendsRule fails the test unless the server gets the secret exactly if the API lists a rule. It returns whether it does.
func sendsRule(w *harness.World, r *harness.Raider, what string) bool {
	w.T.Helper()
	rules := 0
	for _, path := range []string{api.BoxPath(r.Box, "config/attach-headers"), "/v2/box/settings/attach-headers"} {
		var view map[string]any
		if err := w.Client.Get(w.T.Context(), path, &view); err != nil {
			w.T.Fatal(err)
		}
		if strings.Contains(fmt.Sprint(view), "Authorization") {
			rules++
		}
	}
	w.Net.Forget()
	w.MustSh(r.Box, "curl -sS -k -o /dev/null https://api.example.com/says")
	seen := w.Net.Received("api.example.com", testnet.Path("/says"))
	if len(seen) != 1 || (seen[0].Header.Get("Authorization") == "Bearer "+harness.TestSecret) != (rules > 0) {
		w.T.Errorf("%s: %d rules, and the server received %+v", what, rules, seen)
	}
	return rules > 0
}

// The gateway fails at every step of a start and of a stop, with a running box.
func TestAttackDuringFaultsOfStartAndStop(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	r := w.Raid(makeNarrow(w))
	for _, step := range stepsOfStart {
		for _, kind := range kindsOf(step) {
			what := kind + " at " + step
			w.Kill()
			w.Arm(kind, step)
			one := strings.HasPrefix(step, "link") || strings.HasPrefix(step, "connect") || strings.HasPrefix(step, "plan")
			if err := w.Start(t.Context()); err == nil && (kind == harness.FaultDie || !one) { // a fault in one box does not affect the start
				t.Errorf("%s: the gateway started", what)
			}
			w.MustReachStep(what)
		}
		w.Kill()
		w.StartIfStopped()
		if agrees(r, "after "+step); t.Failed() {
			return
		}
	}
	for _, step := range stepsOfStop {
		for _, kind := range kindsOf(step) {
			w.Arm(kind, step)
			_ = w.Stop()
			w.MustReachStep(kind + " at " + step)
			w.StartIfStopped()
		}
		agrees(r, "after "+step)
	}
	s.assertHolds()
}
