package rules

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/lease"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/name"
	"boxgate/store"
	"boxgate/store/history"
)

// destination is one destination that a box may be given access to: a name on a port, or an address.
type destination struct {
	host  string // canonical
	port  uint16 // 0 for an address
	entry amend.Entry
	asked policy.Request
}

// parseDestination reads a host name with its port, or an address. Entries of policies for addresses have no port, so an address
// takes none.
func parseDestination(id policy.BoxID, host string, port uint16) (d destination, err error) {
	d.asked = policy.Request{Stage: policy.StageConn, Box: id, Port: port, Protocol: policy.TCP}
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap()
		if port != 0 || addr.Zone() != "" {
			return d, change.InvalidAt("/port", "must be left out for an address: an entry for an address opens all its ports")
		}
		d.host, d.asked.Addr, d.asked.Stage, d.asked.Protocol = addr.String(), addr, policy.StageDial, ""
		d.entry, err = amend.ParseEntry(d.host)
		return d, err
	}
	n, err := name.Parse(host)
	switch {
	case err != nil:
		return d, change.InvalidAt("/host", err.Error())
	case port == 0:
		return d, change.InvalidAt("/port", "is missing")
	}
	d.host, d.port, d.asked.Name = n.String(), port, n
	d.entry, err = amend.ParseEntry(net.JoinHostPort(d.host, strconv.Itoa(int(port))))
	return d, err
}

// opens describes the access that the entry gives.
func (d *destination) opens() string {
	if d.port == 0 {
		return "every port and protocol of the address " + d.host
	}
	return fmt.Sprintf("TCP connections to port %d of %s", d.port, d.host)
}

// Candidate returns the entry that gives a box access to a destination, and the effect that this would have. The error is an
// [api.ErrConflict] if the destination is allowed already, and an [api.ErrForbidden] if an approval cannot open it.
func (p *Service) Candidate(_ context.Context, id policy.BoxID, host string, port uint16) (string, api.Candidate, error) {
	d, err := parseDestination(id, host, port)
	if err != nil {
		return "", api.Candidate{}, err
	}
	b, err := p.boxes.Lock(id)
	if err != nil {
		return "", api.Candidate{}, err
	}
	defer b.Unlock()
	c, err := p.candidateFor(b, d)
	return d.entry.String(), c, err
}

// candidateFor is Candidate for a box that the caller has locked.
func (p *Service) candidateFor(b *state.Box, d destination) (c api.Candidate, err error) {
	in := p.shared.inputsOf(b)
	now, err := in.compile()
	if err != nil {
		return c, err
	}
	denied := now.Decide(d.asked)
	if denied.Allowed() {
		return c, api.Errorf(api.ErrConflict, "the policy allows %s already (%s); a request that is denied nevertheless is refused by a request rule", d.entry, denied.Reason)
	}
	then := in
	then.leases = append(slices.Clone(in.leases), lease.New(true, d.entry.String(), time.Hour, p.shared.now()))
	after, err := then.compile()
	if err != nil {
		return c, err
	}
	if still := after.Decide(d.asked); !still.Allowed() {
		return c, api.Errorf(api.ErrForbidden, "an approval cannot open %s: it is denied by %s, which an approval does not change", d.entry, still.Reason)
	}
	c = api.Candidate{Opens: d.opens(), Denied: denied.Reason, Mode: b.Spec.Mode, NotAlways: p.notAlways(b, d)}
	c.Digest = digestOf(b.ID, d, &c, in)
	return c, nil
}

// notAlways returns why an entry cannot be added to the policy of a box itself, "" if it can.
func (p *Service) notAlways(b *state.Box, d destination) string {
	if b.Named != "" {
		return fmt.Sprintf("the box follows the named policy %q: change that policy, or approve for a time", b.Named)
	}
	if _, err := amend.Allow(b.Spec, d.entry); err != nil {
		return err.Error()
	}
	return ""
}

// digestOf fills in the rules of a box for a destination, and returns the digest of everything that an approval of it depends on.
// The header rules and the request rules are part of it in full, without values of headers.
func digestOf(id policy.BoxID, d destination, c *api.Candidate, in inputs) string {
	var effects []string
	for _, h := range in.rules() {
		p := h.Pattern.WithDefaultPort(name.HTTPSPort)
		if d.port != 0 && !p.Covers(portPattern(d)) {
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
		if d.port == 0 || slices.ContainsFunc(r.Hosts, func(host string) bool {
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
	}{id, d.entry.String(), c, effects, in.spec.Rules})
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
	d, err := parseDestination(id, g.Host, g.Port)
	if err != nil {
		return api.PolicyState{}, err
	}
	cause := history.Approved
	if g.Lasts > 0 {
		cause = history.LeaseBegun
	}
	return p.change(ctx, id, nil, cause, func(b *state.Box, next *store.Policy) error {
		c, err := p.candidateFor(b, d)
		switch {
		case err != nil:
			return err
		case c.Digest == "" || c.Digest != g.Digest:
			return api.Errorf(api.ErrConflict, "the policy has changed, so that an approval would have another effect than was shown; look at the request again")
		case g.Lasts > 0:
			return addLease(next, withKey(lease.New(true, d.entry.String(), g.Lasts, p.shared.now()), api.CallerOf(ctx).Key))
		case c.NotAlways != "":
			return api.Errorf(api.ErrConflict, "%s", c.NotAlways)
		}
		changed, err := amend.Allow(next.Spec, d.entry)
		next.Spec = changed.Spec
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
