package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"boxgate/internal/testnet"
)

// The gateway fails at every step of making a box and of deleting one, in turn, while what there is of the box attacks.
func TestAttackDuringFaultsOfCreateAndDelete(t *testing.T) {
	t.Parallel()
	for half := range 2 {
		t.Run(string(rune('a'+half)), func(t *testing.T) {
			t.Parallel()
			w, s := faultWorld(t)
			for i := half; i < max(len(stepsOfCreate), len(stepsOfDelete)); i += 2 {
				if i < len(stepsOfCreate) {
					w.failCreate(stepsOfCreate[i])
				}
				if i < len(stepsOfDelete) {
					w.failDelete(stepsOfDelete[i])
				}
				if t.Failed() {
					break
				}
			}
			w.mustDelete(w.makeNarrow())
			w.nothingLeft("at the end")
			s.holds()
		})
	}
}

// makeNarrow makes a box that works.
func (w *world) makeNarrow() string {
	w.t.Helper()
	return w.create(map[string]any{"network_policy": narrow, "name": "victim"})
}

func (w *world) mustDelete(box string) {
	w.t.Helper()
	if err := w.Client.Do(w.t.Context(), "DELETE", boxPath(box), nil, nil); err != nil {
		w.t.Fatalf("deleting box %s: %v", box, err)
	}
}

// failCreate tries every fault at one step of a creation. Nothing of the box may be left, its name included.
func (w *world) failCreate(step string) {
	w.t.Helper()
	for _, kind := range kindsOf(step) {
		err := w.failing(kind, step, func() error {
			body := map[string]any{"network_policy": narrow, "name": "victim"}
			return w.Client.Do(w.t.Context(), "POST", "/v2/box", body, nil)
		})
		if err == nil {
			w.t.Errorf("%s at %q: the box was made", kind, step)
		}
		w.nothingLeft(kind + " at " + step)
	}
}

// failDelete tries every fault at one step of a deletion, always of the same box, which is there or gone afterwards, and
// can be deleted again.
func (w *world) failDelete(step string) {
	w.t.Helper()
	for _, kind := range kindsOf(step) {
		box := w.makeNarrow()
		_ = w.failing(kind, step, func() error { return w.Client.Do(w.t.Context(), "DELETE", boxPath(box), nil, nil) })
		if kind == faultDie && step == "delete: begun" {
			w.raid(box).agrees("died at " + step) // nothing had happened: it goes on
		}
		err := w.Client.Do(w.t.Context(), "DELETE", boxPath(box), nil, nil)
		if err != nil && !strings.Contains(err.Error(), "404") && !strings.Contains(err.Error(), "no box") && !strings.Contains(err.Error(), "not found") {
			w.t.Errorf("%s at %q: deleting again: %v", kind, step, err)
		}
		w.nothingLeft(kind + " at " + step)
	}
}

// The gateway fails at every step of an update, of one that opens and of one that closes.
func TestAttackDuringFaultsOfPolicyUpdates(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	r := w.raid(w.makeNarrow())
	isWide := false
	for _, step := range stepsOfPolicy {
		for range 2 { // opening and closing
			for _, kind := range kindsOf(step) {
				what := kind + " at " + step
				next := map[bool]map[string]any{true: narrow, false: wide}[isWide]
				err := w.failing(kind, step, func() error {
					return w.Client.Do(t.Context(), "PUT", boxPath(r.box, "config/network-policy"), next, nil)
				})
				if kind != faultDie && err == nil {
					t.Errorf("%s: the answer was a success", what)
				}
				isNow := r.agrees(what)
				if past := isMark(step); isNow != (isWide != past) {
					t.Errorf("%s: wide was %v and is %v", what, isWide, isNow)
				}
				isWide = isNow
			}
			isWide = !isWide
			w.setPolicy(r.box, map[bool]map[string]any{true: wide, false: narrow}[isWide])
			if got := r.agrees("after " + step); got != isWide || t.Failed() {
				t.Fatalf("after the faults at %q an update left wide=%v", step, got)
			}
		}
	}
	s.holds()
}

// The gateway fails at every step of a change of header rules, the box's own and those of all boxes. What is sent to the
// server is what the API says.
func TestAttackDuringFaultsOfHeaderUpdates(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	r := w.raid(w.makeNarrow())
	for _, c := range []struct {
		path  string
		steps []string
	}{{boxPath(r.box, "config/attach-headers"), stepsOfHeaders}, {"/v2/box/settings/attach-headers", stepsOfGlobal}} {
		for _, step := range c.steps {
			for _, kind := range kindsOf(step) {
				what := kind + " at " + step + " " + c.path
				_ = w.failing(kind, step, func() error { return w.Client.Do(t.Context(), "PUT", c.path, keyFor("api.example.com"), nil) })
				w.sendsWhatItSays(r, what)
				for _, rules := range []map[string]any{keyFor("api.example.com"), {}} {
					if err := w.Client.Do(t.Context(), "PUT", c.path, rules, nil); err != nil {
						t.Fatalf("%s: and then: %v", what, err)
					}
				}
				r.agrees(what)
			}
		}
	}
	s.holds()
	if strings.Contains(w.LogText(), testSecret) {
		t.Error("the secret, which is also the panic's text, is in the log")
	}
}

// keyFor is the header rule that gives a host the secret.
func keyFor(host string) map[string]any {
	return map[string]any{host: map[string]string{"Authorization": "Bearer " + testSecret}}
}

// sendsWhatItSays fails the test unless the server gets the secret exactly if the API names a rule.
func (w *world) sendsWhatItSays(r *raider, what string) {
	w.t.Helper()
	rules := 0
	for _, path := range []string{boxPath(r.box, "config/attach-headers"), "/v2/box/settings/attach-headers"} {
		var view map[string]any
		if err := w.Client.Get(w.t.Context(), path, &view); err != nil {
			w.t.Fatal(err)
		}
		if strings.Contains(fmt.Sprint(view), "Authorization") {
			rules++
		}
	}
	w.Net.Forget()
	w.mustSh(r.box, "curl -sS -k -o /dev/null https://api.example.com/says")
	seen := w.Net.Received("api.example.com", testnet.Path("/says"))
	if len(seen) != 1 || (seen[0].Header.Get("Authorization") == "Bearer "+testSecret) != (rules > 0) {
		w.t.Errorf("%s: %d rules, and the server received %+v", what, rules, seen)
	}
	for _, a := range extra {
		if got := r.try("udp", netip.AddrPortFrom(a, 4444)); got == saw(nil) {
			w.t.Errorf("%s: %v is open", what, a)
		}
	}
}

// The gateway fails at every step of a start and of a stop, with a box that runs.
func TestAttackDuringFaultsOfStartAndStop(t *testing.T) {
	t.Parallel()
	w, s := faultWorld(t)
	r := w.raid(w.makeNarrow())
	for _, step := range stepsOfStart {
		for _, kind := range kindsOf(step) {
			what := kind + " at " + step
			w.Kill()
			w.arm(kind, step)
			one := strings.HasPrefix(step, "link") || strings.HasPrefix(step, "connect") || strings.HasPrefix(step, "plan")
			if err := w.Start(t.Context()); err == nil && (kind == faultDie || !one) { // the fault of one box is its own
				t.Errorf("%s: the gateway started", what)
			}
			w.happened(what)
		}
		w.Kill()
		w.up()
		if r.agrees("after " + step); t.Failed() {
			return
		}
	}
	for _, step := range stepsOfStop {
		for _, kind := range kindsOf(step) {
			w.arm(kind, step)
			_ = w.Stop()
			w.happened(kind + " at " + step)
			w.up()
		}
		r.agrees("after " + step)
	}
	s.holds()
}
