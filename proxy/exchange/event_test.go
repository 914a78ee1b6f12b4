package exchange_test

import (
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/exchange"
	"boxgate/proxy/live"
	"boxgate/proxy/problem"
	"boxgate/proxy/proxytest"
)

// The end of a request that was told as open is told by itself, whatever it ended with.
func TestEndOfAnOpenRequestIsNotThinned(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll})
	s := r.Core.NewSession(r.Box, r.Usages.Of(r.Box), &live.Conn{Box: r.Box}, nil)
	end := func(open bool) {
		var x exchange.Exchange
		x.Begin(s)
		if open {
			x.Event.Verdict = policy.Allow
			x.Under(x.Event.Addr, policy.Request{})
			r.Want("the open event", func(e audit.Event) bool { return e.Phase == audit.PhaseOpen })
		}
		x.Refused(&problem.Problem{Status: 503, Reason: name.ReasonLimit})
		x.End()
	}
	end(false)
	end(true)
	end(false)
	r.Proxy.CloseBox("box1")
	r.Want("the end", func(e audit.Event) bool { return e.Phase == audit.PhaseEnd && e.Reason == name.ReasonLimit })
}
