package selftest

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/selftest/probe"
	"boxgate/selftest/watch"
)

var target = netip.MustParseAddrPort("8.8.8.77:4242")

// attackOn returns an attack by UDP that must be refused as not allowed.
func attackOn(to netip.AddrPort, id int) *attack {
	a := &attack{to: to, exclusive: true, matches: atAddress(to), reasons: []name.Reason{name.ReasonNotAllowed}}
	a.task = probe.Task{ID: id, Kind: probe.UDP, To: to}
	return a
}

func refusal(to netip.AddrPort, why name.Reason, count uint64) audit.Event {
	return audit.Event{Stage: policy.StageKernel, Addr: to.Addr(), Port: to.Port(), Reason: why, Count: count}
}

// reachedCanary is a canary reached by datagrams of the box.
type reachedCanary struct{}

func (reachedCanary) Reached(tcp bool) bool { return !tcp }

func TestVerdicts(t *testing.T) {
	t.Parallel()
	elsewhere := netip.MustParseAddrPort("10.200.0.3:1")
	for label, tt := range map[string]struct {
		change  func(*attack)
		answer  probe.Outcome
		seen    []watch.Sighting
		missed  int
		logged  name.Reason
		verdict Verdict
	}{
		"refused and logged":             {answer: probe.Refused, logged: name.ReasonNotAllowed, verdict: Tight},
		"silent and logged":              {answer: probe.Silent, logged: name.ReasonNotAllowed, verdict: Tight},
		"refused, not logged":            {answer: probe.Refused, verdict: Hole},
		"refused for another reason":     {answer: probe.Refused, logged: name.ReasonProtocol, verdict: Hole},
		"answered although logged":       {answer: probe.Answered, logged: name.ReasonNotAllowed, verdict: Hole},
		"connected although logged":      {answer: probe.Open, logged: name.ReasonNotAllowed, verdict: Hole},
		"its token was seen elsewhere":   {answer: probe.Refused, logged: name.ReasonNotAllowed, seen: []watch.Sighting{{To: elsewhere, Task: 7}}, verdict: Hole},
		"another's token was seen":       {answer: probe.Refused, logged: name.ReasonNotAllowed, seen: []watch.Sighting{{To: elsewhere, Task: 8}}, verdict: Tight},
		"its target was sent to":         {answer: probe.Refused, logged: name.ReasonNotAllowed, seen: []watch.Sighting{{To: target, Task: -1}}, verdict: Hole},
		"it was not sent":                {answer: probe.Failed, logged: name.ReasonNotAllowed, verdict: NotRun},
		"not everything could be seen":   {answer: probe.Refused, logged: name.ReasonNotAllowed, missed: 1, verdict: NotRun},
		"a leak counts before the drops": {answer: probe.Refused, logged: name.ReasonNotAllowed, missed: 1, seen: []watch.Sighting{{To: target, Task: 7}}, verdict: Hole},
		"its connection request left": {
			change: func(a *attack) { a.task.Kind, a.exclusive = probe.TCP, false },
			answer: probe.Silent, logged: name.ReasonNotAllowed, seen: []watch.Sighting{{To: elsewhere, Task: -1, First: target}}, verdict: Hole,
		},
		"the name's owner was reached": {
			change: func(a *attack) { a.anyTarget, a.reasons, a.judge = true, nil, ignoreAnswer },
			answer: probe.Answered, seen: []watch.Sighting{{To: elsewhere, Task: 7}}, verdict: Tight,
		},
		"somebody else was reached under the name": {
			change: func(a *attack) { a.anyTarget, a.reasons, a.judge = true, nil, ignoreAnswer },
			answer: probe.Answered, seen: []watch.Sighting{{To: target, Task: 7}}, verdict: Hole,
		},
		"it arrived at the canary": {
			change: func(a *attack) { a.canary = reachedCanary{} },
			answer: probe.Silent, logged: name.ReasonNotAllowed, verdict: Hole,
		},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			a := attackOn(target, 7)
			if tt.change != nil {
				tt.change(a)
			}
			j := judge{answers: map[int]probe.Answer{7: {ID: 7, Outcome: tt.answer}}, sightings: tt.seen, missed: tt.missed}
			if tt.logged != "" {
				j.logged = map[int]audit.Event{7: refusal(target, tt.logged, 0)}
			}
			if l := j.line(a); l.Verdict != tt.verdict || (l.Why == "") != (tt.verdict == Tight) {
				t.Errorf("%v: %q, want %v", l.Verdict, l.Why, tt.verdict)
			}
		})
	}
	if l := (&judge{}).line(attackOn(target, 7)); l.Verdict != NotRun {
		t.Errorf("without an answer: %v", l.Verdict)
	}
}

// A decision counts for one attack, or for as many as the number of decisions it summarises.
func TestDecisionsAreClaimedOnce(t *testing.T) {
	t.Parallel()
	other := netip.MustParseAddrPort("8.8.8.77:53")
	attacks := []*attack{attackOn(target, 0), attackOn(target, 1), attackOn(other, 2), attackOn(other, 3)}
	events := make(chan audit.Event, 8)
	d := follow(events)
	events <- refusal(target, name.ReasonNotAllowed, 0)
	events <- audit.Event{Stage: policy.StageKernel, Addr: other.Addr(), Port: other.Port(), Verdict: policy.Allow, Reason: name.ReasonNotAllowed}
	d.await(t.Context(), attacks[:1], time.Minute)
	if claims := d.assign(attacks); len(claims) != 1 || claims[0].Addr != target.Addr() {
		t.Errorf("one decision: %+v", claims)
	}
	events <- refusal(netip.MustParseAddrPort("10.200.0.3:1"), name.ReasonNotAllowed, 2)
	d.await(t.Context(), attacks[:3], time.Minute)
	if claims := d.assign(attacks); len(claims) != 3 {
		t.Errorf("one decision and two counted: %+v", claims)
	}
	events <- refusal(other, name.ReasonProtocol, 0)
	close(events)
	d.await(t.Context(), attacks, 50*time.Millisecond) // the last was refused for another reason, so await times out
	if claims := d.assign(attacks); len(claims) != 4 {
		t.Errorf("and one for another reason: %+v", claims)
	}
}

// The token in a ClientHello is not encrypted, and the message fits into one segment, which the watch reads.
func TestClientHelloShowsItsToken(t *testing.T) {
	t.Parallel()
	hello := clientHello("api.example.com", []byte("bgst00c0ffee0007"))
	if !bytes.Contains(hello, []byte("bgst00c0ffee0007")) || !bytes.Contains(hello, []byte("api.example.com")) || len(hello) > 1200 {
		t.Errorf("%d bytes: %q", len(hello), hello)
	}
	if none := clientHello("", []byte("bgst00c0ffee0007")); len(none) == 0 || none[0] != 22 {
		t.Errorf("without a name: %q", none)
	}
}

// A random target never leaves its range.
func TestRandomAddressesStayInTheirRange(t *testing.T) {
	t.Parallel()
	for _, r := range special {
		p := netip.MustParsePrefix(r.prefix)
		for range 50 {
			if a := randomIn(p); !p.Contains(a) {
				t.Errorf("%v is not in %v", a, p)
			}
		}
	}
	next := strangers("8.8.8.0/24")
	seen := map[netip.Addr]bool{}
	for range 200 {
		if a := next(); seen[a] || !netip.MustParsePrefix("8.8.8.16/20").Masked().Contains(a) || a == netip.MustParseAddr("8.8.8.8") {
			t.Fatalf("%v was given out", a)
		} else {
			seen[a] = true
		}
	}
}
