package boxdial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"boxgate/policy"
)

// Boxes connects to boxes. The zero value has no boxes. Safe for concurrent use.
type Boxes struct {
	// LoopbackTimeout limits the time of [Boxes.DialLoopback]; 0: 10 s, as at public URLs. The kernel's own is two minutes.
	LoopbackTimeout time.Duration

	mu    sync.Mutex
	boxes map[policy.BoxID]*place
}

// place is the location of one box. It is immutable except for ways.
type place struct {
	v6  netip.Addr
	pin pin
	// ways maps ports to the way that works, except for byAddress. Guarded by Boxes.mu.
	ways map[uint16]way
}

// way is a way to reach a port of a box.
type way uint8

// The ways, in the order in which they are tried. IPv6 comes last: if a box has it disabled, attempts are not refused but
// time out.
const (
	byAddress way = iota
	byLoopback4
	byLoopback6
	byAddress6
	ways
)

// Add adds a box with its IPv6 address and the path of its pinned network namespace.
func (b *Boxes) Add(id policy.BoxID, v6 netip.Addr, path string) error {
	p, err := pinAt(path)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.boxes == nil {
		b.boxes = map[policy.BoxID]*place{}
	}
	b.boxes[id] = &place{v6: v6, pin: p, ways: map[uint16]way{}}
	return nil
}

// Remove removes a box. Its connections stay open.
func (b *Boxes) Remove(id policy.BoxID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.boxes, id)
}

// Dial connects to a port of a box, given with the box's address. It starts with the way that worked last.
func (b *Boxes) Dial(ctx context.Context, id policy.BoxID, at netip.AddrPort) (net.Conn, error) {
	p, last := b.find(id, at.Port())
	if p == nil {
		return dial(ctx, at)
	}
	conn, err := p.dial(ctx, last, at)
	if !refused(err) {
		return conn, err
	}
	first := err
	for w := byAddress; w < ways; w++ {
		if w == last {
			continue
		}
		if conn, err = p.dial(ctx, w, at); err == nil {
			b.remember(p, at.Port(), w)
			return conn, nil
		}
		if !refused(err) && w != byAddress6 {
			return nil, err
		}
	}
	b.remember(p, at.Port(), byAddress)
	return nil, first
}

// DialLoopback connects to a port of a box's own loopback interface, and to nothing else: to 127.0.0.1 or ::1, or for "localhost" to
// either. It fails for a box that is not known, and after [Boxes.LoopbackTimeout]: a server in the box whose queue is full does not answer.
func (b *Boxes) DialLoopback(ctx context.Context, id policy.BoxID, host string, port uint16) (net.Conn, error) {
	p, _ := b.find(id, port)
	if p == nil {
		return nil, errUnknown
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(b.LoopbackTimeout, 10*time.Second), errNoAnswer)
	defer cancel()
	conn, err := p.dialLoopback(ctx, host, port)
	if err != nil && context.Cause(ctx) == errNoAnswer {
		return nil, fmt.Errorf("port %d of the box: %w", port, errNoAnswer)
	}
	return conn, err
}

// errNoAnswer refuses to wait any longer for a server in a box.
var errNoAnswer = errors.New("the server in the box does not accept the connection")

// dialLoopback is [Boxes.DialLoopback] for one box.
func (p *place) dialLoopback(ctx context.Context, host string, port uint16) (net.Conn, error) {
	v4, v6 := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), netip.AddrPortFrom(netip.IPv6Loopback(), port)
	switch host {
	case "127.0.0.1":
		return p.pin.dial(ctx, v4)
	case "::1":
		return p.pin.dial(ctx, v6)
	case "localhost":
		conn, err := p.pin.dial(ctx, v4)
		if !refused(err) {
			return conn, err
		}
		if conn, other := p.pin.dial(ctx, v6); other == nil {
			return conn, nil
		}
		return nil, err
	}
	return nil, fmt.Errorf("%q is no address of the loopback interface", host)
}

// errUnknown refuses to connect to a box that is not known.
var errUnknown = errors.New("the box has no network")

func (b *Boxes) find(id policy.BoxID, port uint16) (*place, way) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.boxes[id]
	if p == nil {
		return nil, byAddress
	}
	return p, p.ways[port]
}

func (b *Boxes) remember(p *place, port uint16, w way) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w == byAddress {
		delete(p.ways, port)
		return
	}
	p.ways[port] = w
}

// dial connects by one way.
func (p *place) dial(ctx context.Context, w way, at netip.AddrPort) (net.Conn, error) {
	switch w {
	case byLoopback4:
		return p.pin.dial(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port()))
	case byLoopback6:
		return p.pin.dial(ctx, netip.AddrPortFrom(netip.IPv6Loopback(), at.Port()))
	case byAddress6:
		return dial(ctx, netip.AddrPortFrom(p.v6, at.Port()))
	}
	return dial(ctx, at)
}

// dial connects from the gateway's own namespace.
func dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", to.String())
}

// refused reports whether the port is closed, or the box does not have the address.
func refused(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.EADDRNOTAVAIL, syscall.ENETUNREACH, syscall.EAFNOSUPPORT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
