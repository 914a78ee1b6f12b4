package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"boxgate/policy/name"
)

// Services are the services that boxes may use by name if their policies list them, by the name of each.
type Services map[string]Service

// Service is one address and port outside of the boxes, or a port of a box.
type Service struct {
	Host string `yaml:"host,omitempty"` // address and port, such as 127.0.0.1:5432; empty for a box
	Box  string `yaml:"box,omitempty"`  // name or ID of a box; empty for a host
	Port int    `yaml:"port,omitempty"` // of the box
}

// MaxServices is the maximum number of services.
const MaxServices = 1000

// Addr returns the address and port of a service of a host.
func (s Service) Addr() (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(s.Host)
	if err != nil {
		return at, errors.New("is not an address and a port, such as 127.0.0.1:5432")
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
}

// checkServices finds services that no gateway may have. Those at a socket that is only known at the start are refused there.
func (c *Config) checkServices(fail func(key, format string, args ...any)) {
	if len(c.Network.Services) > MaxServices {
		fail("network.services", "has %d services; the limit is %d", len(c.Network.Services), MaxServices)
	}
	for label, s := range c.Network.Services {
		key := "network.services." + label
		if _, err := name.ParseService(label); err != nil {
			fail(key, "%v", err)
			continue
		}
		switch {
		case (s.Host == "") == (s.Box == ""):
			fail(key, "needs either host, such as 127.0.0.1:5432, or box with port")
		case s.Host != "" && s.Port != 0:
			fail(key, "has port besides host; write it in host, such as 127.0.0.1:5432")
		case s.Box != "" && (s.Port < 1 || s.Port > 65535):
			fail(key, "needs the port of the box, 1 to 65535")
		case s.Host != "":
			c.checkServiceHost(s, func(format string, args ...any) { fail(key, format, args...) })
		}
	}
}

// checkServiceHost refuses addresses that no connection may go to, of the boxes, and of the gateway itself.
func (c *Config) checkServiceHost(s Service, fail func(format string, args ...any)) {
	at, err := s.Addr()
	switch addr := at.Addr(); {
	case err != nil:
		fail("%q %v", s.Host, err)
		return
	case at.Port() == 0 || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast():
		fail("%q is no address of a server; use one such as 127.0.0.1:5432", s.Host)
		return
	}
	if a, err := AddressesOf(c.Network); err == nil && (a.PoolV4.Contains(at.Addr()) || a.PoolV6.Contains(at.Addr())) {
		fail("%s is in the pool of the boxes; use box and port for a box", at.Addr())
	}
	for _, own := range []string{c.Admin.Listen, c.Ingress.HTTPS, c.Ingress.HTTP, c.Metrics.Listen, c.Remote.Listen, c.SSH.Listen} {
		if slices.Contains([]string{fmt.Sprint(at), fmt.Sprintf(":%d", at.Port()), fmt.Sprintf("0.0.0.0:%d", at.Port()), fmt.Sprintf("[::]:%d", at.Port())}, own) &&
			(own == fmt.Sprint(at) || at.Addr().IsLoopback()) {
			fail("%s is the gateway's own listener %s, which no box may reach", s.Host, own)
		}
	}
}
