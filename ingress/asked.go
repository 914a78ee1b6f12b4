package ingress

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// asked is the head of a request as the checks see it, whatever the version of HTTP. All of it is untrusted.
type asked struct {
	method  string
	host    string       // Host or :authority
	path    string       // as sent, without the query
	query   string       // as sent
	html    bool         // the client accepts HTML: it is a browser that navigates
	sni     string       // server name of the TLS connection; "" without one
	secure  bool         // the client speaks TLS
	peer    netip.Addr   // the client; zero: unknown
	network netip.Prefix // of the client; zero: unknown
	inside  bool         // the client is a box
	raw     bool         // the client wants a connection (raw TCP), not an HTTP request
	direct  bool         // the target is a path: not an absolute-form URL, an authority or an asterisk
	// values returns the values of a field, one for each line. name is in lower case.
	values func(name string) []string
}

// first returns the first value of a field, or "".
func (q *asked) first(name string) string {
	if values := q.values(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// hostOf returns the host of a request, in lower case without port and trailing dot. It refuses a host that other software
// could read differently: an IP address, an absolute-form target (it overrides the Host header), a plain CONNECT, and a Host
// that differs from the server name of the TLS connection.
func hostOf(q *asked) (string, bool) {
	if !q.direct {
		return "", false
	}
	host, ok := splitHost(q.host)
	if !ok {
		return "", false
	}
	if host == "" || isAddress(host) {
		return "", false
	}
	if q.sni != "" && bareHost(q.sni) != host {
		return "", false
	}
	return host, true
}

// isAddress reports whether a host is an IP address. Most hosts do not even look like one, and are not parsed.
func isAddress(host string) bool {
	if last := host[len(host)-1]; strings.IndexByte(host, ':') < 0 && (last < '0' || last > '9') && last != ']' {
		return false
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

// splitHost is [bareHost], but it requires that the port, if any, is a number.
func splitHost(hostport string) (host string, ok bool) {
	if i := strings.LastIndexByte(hostport, ':'); i >= 0 && !strings.HasSuffix(hostport, "]") {
		if _, err := strconv.ParseUint(hostport[i+1:], 10, 16); err != nil {
			return "", false
		}
	}
	return bareHost(hostport), true
}

func bareHost(hostport string) string {
	if strings.IndexByte(hostport, ':') >= 0 {
		if h, _, err := net.SplitHostPort(hostport); err == nil {
			hostport = h
		}
	}
	return strings.ToLower(strings.TrimSuffix(hostport, "."))
}
