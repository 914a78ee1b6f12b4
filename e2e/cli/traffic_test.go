package cli

import (
	"encoding/json"
	"fmt"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/observe"
	"boxgate/policy"
)

// TestTrafficOfABox: the sums include allowed and refused traffic of the box alone, and outlive the gateway.
func TestTrafficOfABox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	other := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	sums := func(id string) (allowed, refused uint64) {
		var got struct{ Observations []observe.Observation }
		text := w.Run(0, nil, "", "box", "traffic", id, "--json")
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		for _, o := range got.Observations {
			switch {
			case o.Name == "api.example.com" && o.Stage == policy.StageConn && o.Verdict == policy.Allow:
				allowed += o.Count
			case o.Name == "refused.example.net" && o.Stage == policy.StageDNS && o.Verdict == policy.Deny:
				refused += o.Count
			case o.Name != "api.example.com" && o.Name != "refused.example.net":
				t.Errorf("an observation of %+v", o)
			}
		}
		return allowed, refused
	}
	try := func(times uint64) {
		w.MustSh(box, "curl -ksS -o /dev/null https://api.example.com/; getent ahostsv4 refused.example.net || true")
		w.Until(fmt.Sprintf("the traffic is summed up %d times", times), func() bool {
			allowed, refused := sums(box)
			return allowed == times && refused >= times
		})
	}
	try(1)
	for _, end := range []func() error{w.Stop, func() error { w.Kill(); return nil }} {
		_, before := sums(box)
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, after := sums(box); after < before {
			t.Errorf("%d of %d refusals outlived the gateway", after, before)
		}
	}
	try(2)
	if allowed, refused := sums(other); allowed+refused != 0 {
		t.Errorf("the other box has %d and %d", allowed, refused)
	}
	harness.Contains(t, w.Run(0, nil, "", "box", "traffic", box), "VERDICT", "api.example.com:443", "refused.example.net (look-up)", "DENY")
	if text := w.Run(0, nil, "", "box", "traffic", other); text != "There is no traffic.\n" {
		t.Errorf("%q", text)
	}
	if text := w.Run(0, nil, "", "box", "traffic", box, "--denied", "--since", "1h"); len(text) == 0 {
		t.Error("no denials")
	}
	w.MustDelete(box)
	harness.Contains(t, w.Run(0, nil, "", "box", "traffic", box), "api.example.com:443")
	if text := w.Run(1, nil, "", "box", "traffic", "nosuchbox"); text == "There is no traffic.\n" {
		t.Errorf("%q", text)
	}
}
