package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/policy"
	"boxgate/policy/name"
)

// secondFamilyDelay is how long Lookup waits for the second family after the first has answered (RFC 8305, section 3).
const secondFamilyDelay = 100 * time.Millisecond

// ErrNoAddress is returned by Lookup for a name that does not exist or has no address. Its method NotFound lets
// packages that do not import this one distinguish it from a failure.
var ErrNoAddress error = noAddress{}

type noAddress struct{}

// Error returns the message.
func (noAddress) Error() string { return "the name has no address" }

// NotFound reports true: the lookup succeeded, and the name has no address.
func (noAddress) NotFound() bool { return true }

// Lookup returns the addresses of n, IPv4 first, from the same cache and upstreams as the boxes' own queries. It
// queries both families concurrently and follows CNAMEs. The addresses are unfiltered: the caller must check each
// against the policy before dialling it, and must have checked the name. Still, a name or chain that the box's policy
// denies by name fails with a *policy.DeniedError. Lookup returns when ctx ends.
func (s *Server) Lookup(ctx context.Context, box *policy.Box, n name.Name) ([]netip.Addr, error) {
	return s.lookup(ctx, box, n, waitBoth)
}

// LookupBoth is like Lookup, but waits for both families and fails if either lookup does. On partial failure it returns
// the addresses found, with the error. Use it where every address of a name is needed.
func (s *Server) LookupBoth(ctx context.Context, box *policy.Box, n name.Name) ([]netip.Addr, error) {
	var a4, a6 family
	addrs, err := s.lookup(ctx, box, n, func(v4, v6 <-chan family) (family, family) {
		a4, a6 = <-v4, <-v6
		return a4, a6
	})
	if failed := errors.Join(a4.err, a6.err); failed != nil {
		return addrs, fmt.Errorf("resolve %s: %w", n, failed)
	}
	return addrs, err
}

// Preview returns the addresses, unfiltered, from which a query of the box for n would be answered under a policy. It grants
// none of them. looked is false if the gateway would not look the name up: the policy denies it, it is a public URL, or an
// upstream proxy resolves it.
func (s *Server) Preview(ctx context.Context, box *policy.Box, pol *policy.Compiled, n name.Name) (addrs []netip.Addr, looked bool, err error) {
	d := pol.Decide(policy.Request{Stage: policy.StageDNS, Box: box.ID, Name: n})
	switch {
	case n.IsZero(), !d.Allowed() && !resolvesAnyway(pol, n, d, mdns.TypeA), d.Allowed() && (s.isURL(n) || pol.ResolvedThere(n)):
		return nil, false, nil
	}
	addrs, err = s.Lookup(ctx, box, n)
	return addrs, true, err
}

func (s *Server) lookup(ctx context.Context, box *policy.Box, n name.Name, wait func(v4, v6 <-chan family) (family, family)) ([]netip.Addr, error) {
	if box == nil || n.IsZero() {
		r := policy.Request{Stage: policy.StageDNS, Name: n}
		reason := name.ReasonUnknownBox
		if box != nil {
			r.Box, reason = box.ID, name.ReasonNoName
		}
		return nil, policy.Decision{Reason: reason}.Err(r)
	}
	if err := denies(box, n); err != nil {
		return nil, err
	}
	v4, v6 := s.lookupFamily(ctx, box, n, mdns.TypeA), s.lookupFamily(ctx, box, n, mdns.TypeAAAA)
	a4, a6 := wait(v4, v6)
	addrs := append(a4.addrs, a6.addrs...)
	switch {
	case len(addrs) > 0:
		return addrs, nil
	case a4.err != nil || a6.err != nil:
		return nil, fmt.Errorf("resolve %s: %w", n, errors.Join(a4.err, a6.err))
	}
	return nil, fmt.Errorf("resolve %s: %w", n, ErrNoAddress)
}

// family is the result of Lookup for one address family.
type family struct {
	addrs []netip.Addr
	err   error
}

func (s *Server) lookupFamily(ctx context.Context, box *policy.Box, n name.Name, qtype uint16) <-chan family {
	out := make(chan family, 1)
	go func() {
		var f family
		defer func() {
			if p := recover(); p != nil {
				f = family{err: fmt.Errorf("panic in a DNS lookup: %v", p)}
			}
			out <- f
		}()
		var res resolution
		res, f.err = s.resolve(ctx, box, n, qtype)
		for _, rr := range res.records {
			f.addrs = append(f.addrs, addrOf(rr))
		}
	}()
	return out
}

// waitBoth waits for both families, or for secondFamilyDelay after the first that has addresses.
func waitBoth(v4, v6 <-chan family) (a4, a6 family) {
	var late <-chan time.Time
	for v4 != nil || v6 != nil {
		var got family
		select {
		case a4 = <-v4:
			got, v4 = a4, nil
		case a6 = <-v6:
			got, v6 = a6, nil
		case <-late:
			return a4, a6
		}
		if len(got.addrs) > 0 && late == nil {
			late = time.After(secondFamilyDelay)
		}
	}
	return a4, a6
}
