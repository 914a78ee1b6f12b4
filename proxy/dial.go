package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"boxgate/policy"
	"boxgate/proxy/problem"
)

// target says what to dial: the way, and its name, zero if none is known.
type target struct {
	routed
	name policy.Name
}

func (rt routed) target() target { return target{rt, rt.Request.Name} }

// dial connects box to d. Every address is judged by the policy in force at that moment, and once more by the dialler
// itself when the socket exists. The error is a *[policy.DeniedError] or an *upstreamError.
func (p *Proxy) dial(ctx context.Context, box *policy.Box, d target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	addrs, err := p.candidates(ctx, box, d)
	if err != nil {
		return nil, err
	}
	var failed error
	for i, a := range addrs {
		c, err := p.dialAddr(ctx, box, d, a, i < len(addrs)-1)
		if err == nil {
			return c, nil
		}
		failed = errors.Join(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	var denied *policy.DeniedError
	if errors.As(failed, &denied) {
		return nil, denied
	}
	return nil, &problem.Upstream{Reason: policy.ReasonUnreachable, Name: d.name, Err: failed}
}

// candidates returns the addresses of d that the policy allows, in the order to try them; none left is an error.
func (p *Proxy) candidates(ctx context.Context, box *policy.Box, d target) ([]netip.Addr, error) {
	addrs, err := p.addresses(ctx, box, d)
	if err != nil {
		return nil, &problem.Upstream{Reason: policy.ReasonUnresolved, Name: d.name, Err: err}
	}
	var good []netip.Addr
	var denied error
	for _, a := range addrs {
		if err := p.judgeDial(ctx, box, d, a); err != nil {
			denied = err
			continue
		}
		good = append(good, a)
	}
	switch {
	case len(good) > 0:
		return good, nil
	case denied != nil:
		return nil, denied
	default:
		return nil, &problem.Upstream{Reason: policy.ReasonUnresolved, Name: d.name}
	}
}

// addresses returns where d may be, unjudged. The address the box asked for is used for a name only while a live grant
// of that name holds it: otherwise it is the box's claim and nothing else.
func (p *Proxy) addresses(ctx context.Context, box *policy.Box, d target) ([]netip.Addr, error) {
	orig := d.asked.Addr.Unmap()
	if !d.ByName {
		if !orig.IsValid() {
			return nil, nil
		}
		return []netip.Addr{orig}, nil
	}
	if d.name.IsZero() {
		return nil, nil
	}
	if orig.IsValid() && p.cfg.Resolver.Granted(box.ID, d.name, orig) {
		return []netip.Addr{orig}, nil
	}
	addrs, err := p.cfg.Resolver.Lookup(ctx, box, d.name)
	if err != nil {
		return nil, err
	}
	return interleave(addrs, orig.Is6()), nil
}

// interleave orders addresses so that the families alternate, without doubles and zones: when one family leads nowhere,
// the second attempt tries the other (RFC 8305, 4).
func interleave(addrs []netip.Addr, v6first bool) []netip.Addr {
	var v4, v6 []netip.Addr
	for _, a := range addrs {
		a = a.Unmap()
		switch {
		case a.Is4() && !slices.Contains(v4, a):
			v4 = append(v4, a)
		case a.Is6() && a.Zone() == "" && !slices.Contains(v6, a):
			v6 = append(v6, a)
		}
	}
	first, second := v4, v6
	if v6first {
		first, second = v6, v4
	}
	out := make([]netip.Addr, 0, len(v4)+len(v6))
	for i := range max(len(first), len(second)) {
		if i < len(first) {
			out = append(out, first[i])
		}
		if i < len(second) {
			out = append(out, second[i])
		}
	}
	return out
}

// judgeDial asks the policy in force whether this very address may be dialled. Addresses of the gateway itself and the sink
// are refused before the policy is asked.
func (p *Proxy) judgeDial(ctx context.Context, box *policy.Box, d target, a netip.Addr) error {
	a = a.Unmap()
	c := box.Policy.Load()
	if p.isOwn(a) || p.isSink(a) {
		return policy.Decision{Reason: policy.ReasonHostPort, Version: version(c)}.Err(d.dialling(a))
	}
	asked, known := d.at(a)
	if why := d.overruledBy(p.route(ctx, c, box, asked, known).Route); why != nil {
		return why
	}
	return nil
}

// dialling is the request for one address of the target.
func (d target) dialling(a netip.Addr) policy.Request {
	return policy.Request{Stage: policy.StageDial, Box: d.asked.Box, Name: d.name, Addr: a, Port: d.asked.Port, Protocol: policy.TCP}
}

// dialAddr dials one address. The dialler judges the address of the very socket it is about to connect, so no code
// between here and there can have swapped it.
func (p *Proxy) dialAddr(ctx context.Context, box *policy.Box, d target, a netip.Addr, others bool) (net.Conn, error) {
	timeout := p.cfg.DialTimeout
	if others {
		timeout = p.cfg.AddressTimeout
	}
	dialer := net.Dialer{
		Timeout:         timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4},
		ControlContext: func(ctx context.Context, _, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return p.judgeDial(ctx, box, d, to.Addr())
		},
	}
	return dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(a, d.asked.Port).String())
}

// isOwn reports whether a is the gateway's own.
func (p *Proxy) isOwn(a netip.Addr) bool { return slices.Contains(p.cfg.Own, a) }

// isSink reports whether a is the address handed out for names a box may not reach.
func (p *Proxy) isSink(a netip.Addr) bool { return slices.Contains(p.cfg.Sink, a) }

// version returns the version of a policy; 0 if there is none.
func version(c *policy.Compiled) uint64 {
	if c == nil {
		return 0
	}
	return c.Version()
}
