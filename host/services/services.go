// Package services opens hosts and boxes to boxes by name, as the operator has configured (network.services): each is one address and one
// port, which a policy must list. It finds their current addresses, connects to those in boxes, and refuses sockets of the gateway.
package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/host/boxdial"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/route"
)

// Boxes finds boxes. Safe for concurrent use.
type Boxes interface {
	// Named returns the ID and the address of the box with this name or ID, if it is connected.
	Named(nameOrID string) (policy.BoxID, netip.Addr, bool)
}

// Visits tracks the use of boxes by visitors, which keeps them from being paused, as for visitors of public URLs.
type Visits interface {
	// Enter counts a visitor of a port. It returns false for a box that must be woken first.
	Enter(id policy.BoxID, port uint16) bool
	// Leave ends what Enter has counted.
	Leave(policy.BoxID)
	// Wake wakes a box and waits until it accepts connections on a port.
	Wake(ctx context.Context, id policy.BoxID, port uint16) error
}

// Config configures [Services]. All fields are required.
type Config struct {
	Services map[string]config.Service
	Boxes    Boxes
	Visits   Visits
	Reach    *boxdial.Boxes
	Gateway  []netip.AddrPort // addresses of the gateway's listening sockets
}

// Services are the services of the operator. Create them with [New]. They are immutable and safe for concurrent use.
type Services struct {
	Config
	byName map[name.Name]config.Service
}

// New returns the services of a validated configuration. It returns an error for a service whose address is a socket of the gateway.
func New(c Config) (*Services, error) {
	s := &Services{Config: c, byName: map[name.Name]config.Service{}}
	var errs []error
	for label, service := range c.Services {
		n, err := name.ParseService(label)
		if err != nil {
			return nil, fmt.Errorf("network.services.%s: %w", label, err)
		}
		if at, err := service.Addr(); service.Box == "" && (err != nil || s.IsGateway(at)) {
			errs = append(errs, fmt.Errorf("network.services.%s: %s is a socket of the gateway, which no box may reach; use another address", label, service.Host))
		}
		s.byName[n] = service
	}
	return s, errors.Join(errs...)
}

// Target implements [policy.Services].
func (s *Services) Target(n name.Name) (at netip.AddrPort, known bool) {
	service, known := s.byName[n]
	if !known {
		return at, false
	}
	if service.Box == "" {
		at, err := service.Addr()
		return at, err == nil
	}
	_, addr, known := s.Boxes.Named(service.Box)
	return netip.AddrPortFrom(addr, uint16(service.Port)), known
}

// IsGateway reports whether a connection to an address would reach a listening socket of the gateway: one that is bound to the address, or to
// every address while the address belongs to this host.
func (s *Services) IsGateway(at netip.AddrPort) bool {
	addr := name.CanonicalAddr(at.Addr())
	return slices.ContainsFunc(s.Gateway, func(own netip.AddrPort) bool {
		bound := name.CanonicalAddr(own.Addr())
		return own.Port() == at.Port() && (bound == addr || bound.IsUnspecified() && isLocal(addr))
	})
}

// isLocal reports whether packets to an address stay on this host. It is true if the routes are not known.
func isLocal(a netip.Addr) bool {
	if a.IsLoopback() || a.IsUnspecified() {
		return true
	}
	routes, err := netlink.RouteGet(a.AsSlice())
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return false
	}
	return err != nil || slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL })
}

// errMoved refuses a box that has got another address, or was replaced, since the policy decided.
var errMoved = errors.New("the box of the service has changed")

// DialBox implements [boxgate/proxy/origin.Services]. A paused box is woken, as by a visitor of its public URLs.
func (s *Services) DialBox(ctx context.Context, n name.Name, at netip.AddrPort) (conn net.Conn, ok bool, err error) {
	service := s.byName[n]
	if service.Box == "" {
		return nil, false, nil
	}
	id, addr, known := s.Boxes.Named(service.Box)
	if !known || addr != name.CanonicalAddr(at.Addr()) {
		return nil, true, errMoved
	}
	if !s.Visits.Enter(id, at.Port()) {
		if err := s.Visits.Wake(ctx, id, at.Port()); err != nil {
			return nil, true, err
		}
		if !s.Visits.Enter(id, at.Port()) {
			return nil, true, errMoved
		}
	}
	defer s.Visits.Leave(id)
	conn, err = s.Reach.Dial(ctx, id, at)
	if err != nil {
		return nil, true, err
	}
	if now, addr, known := s.Boxes.Named(service.Box); !known || now != id || addr != name.CanonicalAddr(at.Addr()) {
		_ = conn.Close() // the address may belong to another box
		return nil, true, errMoved
	}
	return conn, true, nil
}

// Resolver resolves names of services from the configuration, and passes on all others.
type Resolver struct {
	route.Resolver
	Services *Services
}

// Lookup implements [route.Resolver].
func (r Resolver) Lookup(ctx context.Context, box *policy.Box, n name.Name) ([]netip.Addr, error) {
	if n.IsService() {
		return r.Services.lookup(n)
	}
	return r.Resolver.Lookup(ctx, box, n)
}

// LookupBoth implements [route.Resolver].
func (r Resolver) LookupBoth(ctx context.Context, box *policy.Box, n name.Name) ([]netip.Addr, error) {
	if n.IsService() {
		return r.Services.lookup(n)
	}
	return r.Resolver.LookupBoth(ctx, box, n)
}

// lookup returns the address of a service.
func (s *Services) lookup(n name.Name) ([]netip.Addr, error) {
	at, known := s.Target(n)
	if !known {
		return nil, fmt.Errorf("%s: %w", n, errNoService)
	}
	return []netip.Addr{at.Addr()}, nil
}

var errNoService error = noService{}

// noService is the error for a service that does not exist, or whose box does not.
type noService struct{}

// Error returns the message.
func (noService) Error() string { return "there is no such service" }

// NotFound reports true: see [route.Resolver].
func (noService) NotFound() bool { return true }
