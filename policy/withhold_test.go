package policy

import (
	"math/rand/v2"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/policy/name"
)

var overQuota = Withheld{Reason: name.ReasonQuota, Rule: "limits.quota"}

// FuzzWithhold: a withheld policy neither allows, resolves nor forwards, and gives the same reason for requests that it denied
// before.
func FuzzWithhold(f *testing.F) {
	for seed := range nightly.Size[uint64](10, 100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := random{rand.New(rand.NewPCG(seed, 11))}
		in := r.interpreter()
		c, none := in.compile(), in.compileWith(Options{Withheld: overQuota})
		if c == nil {
			return
		}
		if plan := none.Kernel(); plan.DefaultAllow || len(plan.Allowed) > 0 {
			t.Fatalf("the kernel forwards: %+v", plan)
		}
		for range 50 {
			req := r.request()
			was, is := c.Decide(req), none.Decide(req)
			switch {
			case is.Allowed(), was.Allowed() && (is.Reason != name.ReasonQuota || is.Rule != "limits.quota"), !was.Allowed() && is != was:
				t.Fatalf("%+v: %+v became %+v", req, was, is)
			}
			if none.ResolvesOthers(req.Name) || none.Forwards(req.Addr, req.Port, req.Protocol) {
				t.Fatalf("%+v is resolved, or forwarded", req)
			}
		}
	})
}

func TestWithholdingLeavesNoWayToForward(t *testing.T) {
	headers := mustRules(t, `{"api.example.com": {"forward_url": "https://proxy.example.com"}}`)
	c, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Headers: headers, Protected: &name.Protected{}})
	if err != nil {
		t.Fatal(err)
	}
	request := Request{Stage: StageDial, Name: mustName(t, "proxy.example.com"), Port: 443}
	if d := c.Forwarding().Decide(request); !d.Allowed() {
		t.Fatalf("%+v", d)
	}
	if c, err = Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Headers: headers, Protected: &name.Protected{}, Withheld: overQuota}); err != nil {
		t.Fatal(err)
	}
	if d := c.Forwarding().Decide(request); d.Allowed() {
		t.Errorf("%+v", d)
	}
}
