package access

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Hosts is the set of accepted Host values of requests: lower case, without port and trailing dot.
type Hosts map[string]bool

// DashboardHost is a loopback name for the dashboard. Browsers send the cookies of "localhost" to every program that listens on a
// port of localhost. No other program is opened under this name, so its cookies reach the dashboard only. Browsers resolve it without
// DNS (RFC 6761).
const DashboardHost = "boxgate.localhost"

// NewHosts returns the loopback names and the given ones.
func NewHosts(names []string) Hosts {
	hosts := Hosts{"localhost": true, DashboardHost: true, "127.0.0.1": true, "::1": true}
	for _, h := range names {
		hosts[strings.ToLower(strings.TrimSuffix(h, "."))] = true
	}
	return hosts
}

// Known reports whether the Host of a request is a loopback name, the address of the connection, or a configured name. Any
// other name may have been pointed here by its owner (DNS rebinding).
func (h Hosts) Known(r *http.Request) bool {
	if r.URL.IsAbs() {
		return false // an absolute-form target replaces the Host header
	}
	host := bareHost(r.Host)
	if h[host] {
		return true
	}
	asked, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && local.AddrPort().Addr().Unmap() == asked.Unmap()
}

func bareHost(hostport string) string {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
