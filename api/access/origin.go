package access

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

func allowedHosts(extra []string) map[string]bool {
	hosts := map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true}
	for _, h := range extra {
		hosts[strings.ToLower(strings.TrimSuffix(h, "."))] = true
	}
	return hosts
}

// knownHost reports whether the Host header is a loopback name, the address of the connection, or a configured name. Any
// other name may have been pointed here by its owner (DNS rebinding).
func (g *Guard) knownHost(r *http.Request) bool {
	if r.URL.IsAbs() {
		return false // an absolute-form target replaces the Host header
	}
	host := bareHost(r.Host)
	if g.hosts[host] {
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

// sameOrigin reports whether a request comes from this origin or from no web page at all (Fetch standard, Sec-Fetch-Site
// and Origin).
func sameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return false
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return len(origins) == 1 && strings.EqualFold(origins[0], scheme+r.Host)
}
