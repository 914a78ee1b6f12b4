package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/policy/name"
)

func (r random) name() name.Name {
	n, _ := name.Parse(pick(r, someNames))
	return n
}

func (r random) addr() netip.Addr { return netip.MustParseAddr(pick(r, someAddrs)) }

// routed draws a connection or request, and the evidence about it.
func (r random) routed() (Request, Evidence) {
	req := r.request()
	req.Protocol, req.Port = TCP, pick(r, []uint16{22, 80, 443, 853, 8443})
	e := Evidence{
		Opening: Opening(r.IntN(int(OpeningSecure) + 2)), Proxied: r.IntN(3) == 0, NoAddr: r.IntN(3) > 0, Greeted: r.IntN(2) == 0,
		Ruled: Tristate(r.IntN(3)), Owned: Tristate(r.IntN(3)),
	}
	for range r.IntN(3) {
		e.Told = append(e.Told, r.name())
	}
	switch r.IntN(6) {
	case 0:
		e.Bound = r.name()
	case 1:
		e.Bound = req.Name
	}
	switch r.IntN(4) {
	case 0:
		e.Dialled = r.addr()
	case 1:
		e.Dialled = req.Addr
	}
	return req, e
}

// eachRoute runs a check over policies, requests and evidence drawn from a seed.
func eachRoute(seed uint64, check func(r random, in interpreter, c *Compiled, req Request, e Evidence)) {
	r := random{rand.New(rand.NewPCG(seed, 2))}
	in := r.interpreter()
	c := in.compile()
	if c == nil {
		return
	}
	for range 50 {
		req, e := r.routed()
		check(r, in, c, req, e)
	}
}

// FuzzRoute compares Route with the plain interpreter.
func FuzzRoute(f *testing.F) {
	for seed := range nightly.Size[uint64](10, 100) {
		f.Add(seed)
	}
	f.Fuzz(compareRoutes)
}

// TestRouteAgainstInterpreter is FuzzRoute over as many draws as a test has time for.
func TestRouteAgainstInterpreter(t *testing.T) {
	for seed := range nightly.Size[uint64](800, 8_000) {
		compareRoutes(t, seed)
	}
}

func compareRoutes(t *testing.T, seed uint64) {
	eachRoute(seed, func(_ random, in interpreter, c *Compiled, req Request, e Evidence) {
		rt, want := c.Route(req, e), in.route(req, e)
		got := passing{rt.Action, rt.Request.Name, rt.ByName, rt.Decision.Reason}
		if got != want {
			t.Fatalf("policy %+v\nexempt %v own %v headers %v\nrequest %+v\nevidence %+v\ngot  %+v\nwant %+v",
				in.spec, in.exempt, in.own, in.headers, req, e, rt, want)
		}
	})
}

// passes reports whether bytes reach a server under a route.
func passes(rt Route) bool {
	return rt.Action == AwaitServer || rt.Action == Splice || rt.Action == Intercept || rt.Action == Forward || rt.Action == Broker
}

// seeds is how many policies each promise is tried with.
var seeds = nightly.Size[uint64](300, 3_000)

// TestUnreadBytesDoNotReachHostsWithRules: bytes that the gateway does not read are not routed to an address that is, or may be,
// that of a host with rules, unless the policy lists exactly the name of the route, the port is not one of the web, and there is
// no login. On a port with a login to any host, TLS with a name is not read either.
func TestUnreadBytesDoNotReachHostsWithRules(t *testing.T) {
	for seed := range seeds {
		eachRoute(seed, func(_ random, in interpreter, c *Compiled, req Request, e Evidence) {
			rt := c.Route(req, e)
			named := e.Opening == OpeningTLS && !req.Name.IsZero() && !in.loginsOn(req.Port) || e.Opening == OpeningRequest || e.Opening == OpeningSecure
			if named || rt.Action != Splice && rt.Action != AwaitServer || rt.ByName && !e.Dialled.IsValid() || e.Ruled == No {
				return
			}
			if rt.Request.Name.IsZero() || isWeb(req.Port) || in.loginsOn(req.Port) || in.anyNameAlone(rt.Request) || c.Intercepts(rt.Request.Name, req.Port) {
				t.Fatalf("policy %+v\nrequest %+v\nevidence %+v\nroute %+v", in.spec, req, e, rt)
			}
		})
	}
}

// TestNamedBytesReachTheirHostOrNoRules: bytes whose name is known go to an address of that name, or to the one that was
// asked for if no host with rules is there. Where the name has rules they are not spliced.
func TestNamedBytesReachTheirHostOrNoRules(t *testing.T) {
	for seed := range seeds {
		eachRoute(seed, func(_ random, in interpreter, c *Compiled, req Request, e Evidence) {
			rt := c.Route(req, e)
			if !passes(rt) {
				return
			}
			if rt.Action == Splice && c.Intercepts(rt.Request.Name, req.Port) {
				t.Fatalf("spliced past its rules: %+v %+v %+v", req, e, rt)
			}
			if e.Dialled.IsValid() && rt.ByName && rt.Action != Intercept && e.Owned != Yes {
				t.Fatalf("to another's address: %+v %+v %+v", req, e, rt)
			}
			if e.Opening == OpeningTLS && !req.Name.IsZero() && !rt.ByName && e.Ruled != No {
				t.Fatalf("by a mere claim to a host with rules: %+v %+v %+v", req, e, rt)
			}
		})
	}
}

// TestRouteIsNeverWiderThanDecide: a request that passes is allowed as requested, by the name of its route, and at the address
// that it reaches. So a denial of any of them wins.
func TestRouteIsNeverWiderThanDecide(t *testing.T) {
	for seed := range seeds {
		eachRoute(seed, func(_ random, in interpreter, c *Compiled, req Request, e Evidence) {
			rt := c.Route(req, e)
			if !passes(rt) {
				return
			}
			if !rt.Decision.Allowed() || !c.Decide(rt.Request).Allowed() {
				t.Fatalf("policy %+v: %+v %+v %+v", in.spec, req, e, rt)
			}
			if e.Dialled.IsValid() && rt.Action != Intercept {
				dial := Request{Stage: StageDial, Name: rt.Request.Name, Addr: e.Dialled, Port: req.Port, Protocol: TCP}
				if d := c.Decide(dial); !d.Allowed() {
					t.Fatalf("policy %+v: dialled against %+v: %+v %+v %+v", in.spec, d, req, e, rt)
				}
			}
			if d := c.Decide(rt.Request); d.DialName && !rt.ByName {
				t.Fatalf("policy %+v: to the address of a mere claim: %+v %+v %+v", in.spec, req, e, rt)
			}
		})
	}
}

// TestUnknownEvidenceCountsAgainst: missing evidence leads to the answer of the worse case, and Needs names the evidence if it
// makes a difference.
func TestUnknownEvidenceCountsAgainst(t *testing.T) {
	for seed := range seeds {
		eachRoute(seed, func(_ random, in interpreter, c *Compiled, req Request, e Evidence) {
			rt := c.Route(req, e)
			need := rt.Needs
			rt.Needs = NeedNothing
			for _, better := range []bool{false, true} {
				known := e
				if e.Ruled == Unknown {
					known.Ruled = TristateOf(!better)
				}
				if e.Owned == Unknown {
					known.Owned = TristateOf(better)
				}
				known.NoAddr = true
				got := c.Route(req, known)
				if got.Needs != NeedNothing {
					t.Fatalf("%+v needs what is known", got)
				}
				if (!better || need == NeedNothing) && got != rt {
					t.Fatalf("policy %+v\nrequest %+v\nevidence %+v\nunknown %+v, needs %d\nknown   %+v", in.spec, req, e, rt, need, got)
				}
			}
			asked := map[Need]bool{NeedNothing: true, NeedRuled: e.Ruled == Unknown, NeedOwned: e.Owned == Unknown, NeedAddr: !e.NoAddr && !req.Addr.IsValid()}
			if !asked[need] {
				t.Fatalf("%+v %+v needs %d", req, e, need)
			}
		})
	}
}

// TestNoEvidenceIsTheNarrowest: where the zero evidence passes, any other passes that speaks of no name.
func TestNoEvidenceIsTheNarrowest(t *testing.T) {
	for seed := range seeds {
		eachRoute(seed, func(_ random, in interpreter, c *Compiled, req Request, e Evidence) {
			if rt := c.Route(req, Evidence{}); rt.Action != Refuse {
				t.Fatalf("policy %+v: nothing is known of %+v, and %+v", in.spec, req, rt)
			}
			none := Evidence{Ruled: e.Ruled, Owned: e.Owned, Dialled: e.Dialled}
			any := e
			any.Bound, any.Told, any.Greeted, any.Opening = name.Name{}, nil, true, e.Opening%OpeningSecure
			req.Name, req.Method, req.Path = name.Name{}, "GET", "/"
			if c.Route(req, none).Action != Refuse && c.Route(req, any).Action == Refuse {
				t.Fatalf("policy %+v: %+v is refused with %+v", in.spec, req, any)
			}
		})
	}
}

// TestNothingOutlivesAPolicyUnderWhichItCouldNotBegin: a connection that goes on after the policy changed would be let in by
// the new policy as well.
func TestNothingOutlivesAPolicyUnderWhichItCouldNotBegin(t *testing.T) {
	kept := 0
	for seed := range seeds {
		var next *Compiled
		eachRoute(seed, func(r random, in interpreter, c *Compiled, req Request, e Evidence) {
			if next == nil {
				in.headers, in.spec.Rules = nil, r.interpreter().spec.Rules // the same lists under other rules
				if next = in.compile(); seed%2 == 0 {
					next = r.interpreter().compile()
				}
			}
			e.Dialled = netip.Addr{}
			was := c.Route(req, e)
			if next == nil || !passes(was) {
				return
			}
			dialled, owned := req.Addr, Tristate(r.IntN(3))
			if was.ByName {
				dialled, owned = r.addr(), Yes
			}
			held := e
			was.Hold(&held, dialled, owned)
			if was.Action == Intercept {
				held = e
				was.Hold(&held, netip.Addr{}, Unknown)
			}
			held.Ruled = Tristate(r.IntN(3)) // of dialled, asked anew
			if slices.ContainsFunc(e.Told, func(n name.Name) bool { return next.Intercepts(n, req.Port) }) {
				held.Ruled = Yes
			}
			if now := next.Route(req, held); !now.Keeps(was.Action) {
				return
			}
			kept++
			fresh := e
			fresh.Ruled = held.Ruled
			if was.Action != Intercept && dialled != req.Addr {
				fresh.Ruled = No // hosts at the requested address do not matter to a connection that went elsewhere
			}
			rt := next.Route(req, fresh)
			unread := was.Action == Splice || was.Action == AwaitServer
			if !passes(rt) || unread && rt.Action == Intercept || was.Action == Splice && rt.Action == AwaitServer {
				t.Fatalf("policy %+v\nrequest %+v\nevidence %+v\nheld %+v\nwas %+v\nfresh %+v", next.spec, req, e, held, was, rt)
			}
		})
	}
	if kept < int(seeds)/3 {
		t.Errorf("only %d connections were kept", kept)
	}
}

// TestZeroRouteRefuses: zero routes and policies refuse.
func TestZeroRouteRefuses(t *testing.T) {
	if rt := (Route{}); rt.Err() == nil || rt.Keeps(Refuse) || rt.Keeps(Splice) {
		t.Error("the zero route lets something pass")
	}
	for _, c := range []*Compiled{nil, {}} {
		eachRoute(1, func(_ random, _ interpreter, _ *Compiled, req Request, e Evidence) {
			if rt := c.Route(req, e); rt.Action != Refuse || rt.Decision.Reason != name.ReasonNoPolicy {
				t.Fatalf("%+v", rt)
			}
		})
	}
	c, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Protocol{UDP, ICMP, "sctp"} {
		if rt := c.Route(Request{Addr: netip.MustParseAddr("9::9"), Port: 8443, Protocol: p}, Evidence{Opening: OpeningOther}); rt.Action != Refuse {
			t.Errorf("%s: %+v", p, rt)
		}
	}
}
