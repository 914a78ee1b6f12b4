package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"boxgate/policy"
	"boxgate/proxy/problem"
	"boxgate/proxy/route"
)

// target says what to dial: the way, and its name, zero if none is known.
type target struct {
	route.Routed
	name policy.Name
}

func targetOf(rt route.Routed) target { return target{rt, rt.Request.Name} }

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
	orig := d.Asked.Addr.Unmap()
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
	return route.Interleave(addrs, orig.Is6()), nil
}

// judgeDial asks the policy in force whether this very address may be dialled. Addresses of the gateway itself and the sink
// are refused before the policy is asked.
func (p *Proxy) judgeDial(ctx context.Context, box *policy.Box, d target, a netip.Addr) error {
	a = a.Unmap()
	c := box.Policy.Load()
	if p.router.IsOwn(a) || p.router.IsSink(a) {
		return policy.Decision{Reason: policy.ReasonHostPort, Version: route.Version(c)}.Err(d.dialling(a))
	}
	asked, known := d.At(a)
	if why := d.OverruledBy(p.router.Route(ctx, c, box, asked, known).Route); why != nil {
		return why
	}
	return nil
}

// dialling is the request for one address of the target.
func (d target) dialling(a netip.Addr) policy.Request {
	return policy.Request{Stage: policy.StageDial, Box: d.Asked.Box, Name: d.name, Addr: a, Port: d.Asked.Port, Protocol: policy.TCP}
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
	return dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(a, d.Asked.Port).String())
}
