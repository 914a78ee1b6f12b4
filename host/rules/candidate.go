package rules

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/boundary"
	"boxgate/host/change"
	"boxgate/host/lease"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/store"
	"boxgate/store/history"
)

// destination is what a box may be given access to: a name on a port, an address, or requests to a name on a port.
type destination struct {
	api.Destination // canonical
	entry           amend.Entry
	requests        *amend.RequestEntry // nil: the destination itself
	asked           policy.Request
}

// parseDestination reads a host name with its port, or an address, or for requests to a name also a method and a path. Entries of policies
// for addresses have no port, so an address takes none.
func parseDestination(id policy.BoxID, to api.Destination) (d destination, err error) {
	d.asked = policy.Request{Stage: policy.StageConn, Box: id, Port: to.Port, Protocol: policy.TCP}
	if addr, err := netip.ParseAddr(to.Host); err == nil {
		addr = addr.Unmap()
		switch {
		case to.Port != 0 || addr.Zone() != "":
			return d, change.InvalidAt("/port", "must be left out for an address: an entry for an address opens all its ports")
		case to.Method != "" || to.Path != "":
			return d, change.InvalidAt("/method", "goes with a name only")
		}
		d.Host, d.asked.Addr, d.asked.Stage, d.asked.Protocol = addr.String(), addr, policy.StageDial, ""
		d.entry, err = amend.ParseEntry(d.Host)
		return d, err
	}
	n, err := name.Parse(to.Host)
	switch {
	case err != nil:
		return d, change.InvalidAt("/host", err.Error())
	case n == boundary.Name:
		return d, change.InvalidAt("/host", "is the gateway itself")
	case to.Port == 0:
		return d, change.InvalidAt("/port", "is missing")
	}
	d.Destination, d.asked.Name = api.Destination{Host: n.String(), Port: to.Port}, n
	if d.entry, err = amend.ParseEntry(net.JoinHostPort(d.Host, strconv.Itoa(int(to.Port)))); err != nil || to.Method == "" && to.Path == "" {
		return d, err
	}
	if to.Method == "" || to.Path == "" {
		return d, change.InvalidAt("/path", "and method go together")
	}
	requests, err := amend.NewRequestEntry(n, to.Port, to.Method, to.Path)
	if err != nil {
		return d, change.InvalidAt("/path", err.Error())
	}
	d.Method, d.Path, d.requests, d.asked = to.Method, to.Path, &requests, requests.Request(id)
	return d, nil
}

// text returns the entry of a policy that gives the access.
func (d *destination) text() string {
	if d.requests != nil {
		return d.requests.String()
	}
	return d.entry.String()
}

// opens describes the access that the entry gives.
func (d *destination) opens() string {
	switch {
	case d.Port == 0:
		return "every port and protocol of the address " + d.Host
	case d.requests == nil:
		return fmt.Sprintf("TCP connections to port %d of %s", d.Port, d.Host)
	}
	path, which := strings.CutSuffix(d.Path, "*")
	kind := "the path"
	if which {
		kind = "every path that begins with"
	}
	return fmt.Sprintf("%s requests for %s %s of %s, port %d, with any query, header fields and body", d.Method, kind, path, d.Host, d.Port)
}

// Entry returns the destination in canonical form, and the text of the entry that gives access to it.
func (p *Service) Entry(id policy.BoxID, to api.Destination) (api.Destination, string, error) {
	d, err := parseDestination(id, to)
	if err != nil {
		return api.Destination{}, "", err
	}
	return d.Destination, d.text(), nil
}

// Candidate returns the effect of giving a box access to a destination. The error is an [api.ErrConflict] if the destination is allowed
// already, and an [api.ErrForbidden] if an approval cannot open it.
func (p *Service) Candidate(_ context.Context, id policy.BoxID, to api.Destination) (api.Candidate, error) {
	d, err := parseDestination(id, to)
	if err != nil {
		return api.Candidate{}, err
	}
	b, err := p.boxes.Find(id)
	if err != nil {
		return api.Candidate{}, err
	}
	if e, ok := p.shown.get(id, b.Policy.Load(), d.text()); ok {
		return e.candidate, e.err
	}
	if b, err = p.boxes.Lock(id); err != nil {
		return api.Candidate{}, err
	}
	defer b.Unlock()
	c, _, err := p.candidateFor(b, d)
	p.shown.put(id, b.Policy.Load(), d.text(), effect{c, err}, p.boxes.Has)
	return c, err
}

// candidateFor is Candidate for a box that the caller has locked. It returns the lease that gives the access for an hour as well.
func (p *Service) candidateFor(b *state.Box, d destination) (c api.Candidate, l store.Lease, err error) {
	in := p.shared.inputsOf(b)
	now := b.Policy.Load()
	if now == nil { // paused
		if now, err = in.compile(); err != nil {
			return c, l, err
		}
	}
	denied := now.Explain(d.asked, false).Decision
	var over match.RequestRule
	if d.requests == nil {
		denied = now.Decide(d.asked)
	} else if over, err = d.denying(now, denied); err != nil {
		return c, l, err
	}
	if denied.Allowed() {
		return c, l, api.Errorf(api.ErrConflict, "the policy allows %s already (%s); if a request there is denied, a request rule denies it: ask with its method and path", d.text(), denied.Reason)
	}
	l = d.lease(time.Hour, over, p.shared.now())
	then := in
	then.leases = append(slices.Clone(in.leases), l)
	after, err := then.compile()
	if err != nil {
		return c, l, err
	}
	if still := after.Explain(d.asked, false); !still.Allowed() {
		return c, l, api.Errorf(api.ErrForbidden, "an approval cannot open %s: it is denied by %s, which an approval does not change", d.text(), still.Reason)
	}
	c = api.Candidate{Opens: d.opens(), Denied: denied.Reason, Mode: b.Spec.Mode, NotAlways: p.notAlways(b, d, l.Before)}
	if d.requests != nil {
		c.Before, c.Judged = denied.Rule, in.ceiling.JudgesRequests(d.asked.Name, d.Port)
	}
	c.Digest = digestOf(b.ID, d, &c, in)
	return c, l, nil
}

// denying returns the request rule that denies the requests of d, which an approval precedes. denied is the current decision.
func (d *destination) denying(now *policy.Compiled, denied policy.Decision) (match.RequestRule, error) {
	switch {
	case denied.Allowed():
		return match.RequestRule{}, api.Errorf(api.ErrConflict, "the policy allows %s already (%s); an approval cannot be asked for a rule on queries, header fields or bodies", d.text(), denied.Reason)
	case denied.Reason == name.ReasonNotAllowed || denied.Reason == name.ReasonDenyAll:
		return match.RequestRule{}, api.Errorf(api.ErrConflict, "the policy denies %s as a whole (%s): ask for it without a method and a path first", d.entry, denied.Reason)
	case denied.Reason != name.ReasonRequestRule || policy.IsOfCeiling(denied.Rule):
		return match.RequestRule{}, api.Errorf(api.ErrForbidden, "an approval cannot open %s: it is denied by %s, which an approval does not change", d.text(), denied.Reason)
	}
	over, err := d.requests.Denying(now)
	if err != nil {
		return over, api.Errorf(api.ErrForbidden, "an approval cannot open %s: %s", d.text(), err)
	}
	return over, nil
}

// lease returns a lease that gives the access. over is the rule that denies the requests of d.
func (d *destination) lease(lasts time.Duration, over match.RequestRule, now lease.Now) store.Lease {
	l := lease.New(true, d.text(), lasts, now)
	if d.requests != nil {
		l.Before = amend.DigestOf(over)
	}
	return l
}

// notAlways returns why an entry cannot be added to the policy of a box itself, "" if it can. before is the digest of the request rule that
// it precedes, if any.
func (p *Service) notAlways(b *state.Box, d destination, before string) string {
	if b.Named != "" {
		return fmt.Sprintf("the box follows the named policy %q: change that policy, or approve for a time", b.Named)
	}
	if _, err := d.addTo(b.Spec, before); err != nil {
		return err.Error()
	}
	return ""
}

// addTo adds the entry to a policy.
func (d *destination) addTo(s policy.Spec, before string) (policy.Spec, error) {
	if d.requests == nil {
		c, err := amend.Allow(s, d.entry)
		return c.Spec, err
	}
	s, ok := d.requests.AllowBefore(s, before)
	if !ok {
		return s, errors.New("the policy has no space for another request rule, or has not the rule that denies the requests")
	}
	return s, nil
}

// digestOf fills in the rules of a box for a destination, and returns the digest of everything that an approval of it depends on.
// The header rules and the request rules are part of it in full, without values of headers.
func digestOf(id policy.BoxID, d destination, c *api.Candidate, in inputs) string {
	var effects []string
	for _, h := range in.rules() {
		p := h.Pattern.WithDefaultPort(name.HTTPSPort)
		if d.Port != 0 && !p.Covers(portPattern(d)) {
			continue
		}
		c.Headers = append(c.Headers, h.Pattern.String())
		for _, e := range h.Effects {
			effects = append(effects, h.Pattern.String()+" "+e.Key())
		}
	}
	slices.Sort(c.Headers)
	c.Headers = slices.Compact(c.Headers)
	slices.Sort(effects)
	for _, r := range in.spec.Rules {
		if d.Port == 0 || slices.ContainsFunc(r.Hosts, func(host string) bool {
			p, err := name.ParsePattern(host)
			return err == nil && p.Covers(portPattern(d))
		}) {
			c.Rules++
		}
	}
	text, err := json.Marshal(struct {
		Box       policy.BoxID
		Entry     string
		Candidate *api.Candidate
		Effects   []string
		Rules     any
		Repos     any
	}{id, d.text(), c, effects, in.spec.Rules, in.spec.Repos})
	if err != nil {
		return "" // matches no digest that was shown, see Grant
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// portPattern returns the pattern that covers only a destination with a name.
func portPattern(d destination) name.Pattern {
	p, _ := name.ParsePattern(d.entry.String())
	return p
}

// Grant gives a box access to a destination, for a time or for good, if that has the effect that was shown. Otherwise, the error
// is an [api.ErrConflict] and the policy is unchanged. The errors of [Service.Candidate] are possible too.
func (p *Service) Grant(ctx context.Context, id policy.BoxID, g api.Grant) (api.PolicyState, error) {
	d, err := parseDestination(id, g.Destination)
	if err != nil {
		return api.PolicyState{}, err
	}
	cause := history.Approved
	if g.Lasts > 0 {
		cause = history.LeaseBegun
	}
	return p.change(ctx, id, nil, cause, func(b *state.Box, next *store.Policy) error {
		c, l, err := p.candidateFor(b, d)
		switch {
		case err != nil:
			return err
		case c.Digest == "" || c.Digest != g.Digest:
			return api.Errorf(api.ErrConflict, "the policy has changed, so that an approval would have another effect than was shown; look at the request again")
		case g.Lasts > 0:
			shown := l.Before
			l = lease.New(true, d.text(), g.Lasts, p.shared.now())
			l.Before = shown
			return addLease(next, withKey(l, api.CallerOf(ctx).Key))
		case c.NotAlways != "":
			return api.Errorf(api.ErrConflict, "%s", c.NotAlways)
		}
		next.Spec, err = d.addTo(next.Spec, l.Before)
		return err
	})
}

// addLease adds a lease to a policy, in place of one for the same entry.
func addLease(next *store.Policy, l store.Lease) error {
	next.Leases = append(slices.DeleteFunc(next.Leases, func(o store.Lease) bool { return leaseKey(o) == leaseKey(l) }), l)
	if len(next.Leases) > mostLeases {
		return api.Errorf(api.ErrConflict, "a box has at most %d temporary entries; end some, or wait until they end", mostLeases)
	}
	return nil
}
