package ingress

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// asked is the head of a request as the checks see it, whatever the version of HTTP. Nothing in it can be trusted.
type asked struct {
	method string
	host   string // Host or :authority
	path   string // as sent, without the query
	sni    string // server name of the TLS connection; "" without one
	secure bool   // the client speaks TLS
	direct bool   // the target is a path, not the URL of an absolute-form request, an authority or an asterisk
	// values returns the values of a field, one for each of its lines. Names are in lower case.
	values func(name string) []string
}

// ofRequest returns the head of a request that net/http has read.
func ofRequest(r *http.Request) asked {
	q := asked{
		method: r.Method, host: r.Host, path: r.URL.EscapedPath(), secure: r.TLS != nil, values: r.Header.Values,
		direct: r.ProtoMajor != 1 || strings.HasPrefix(r.RequestURI, "/"),
	}
	if r.TLS != nil {
		q.sni = r.TLS.ServerName
	}
	return q
}

// first returns the first value of a field, or "".
func (q *asked) first(name string) string {
	if values := q.values(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// hostOf returns the host a request is for, in lower case without port and trailing dot. It refuses what others could
// read as another host: an IP address, an absolute-form target (it overrides the Host header), CONNECT, and a Host that
// differs from the server name of the TLS connection.
func hostOf(q *asked) (string, bool) {
	if !q.direct || q.method == http.MethodConnect {
		return "", false
	}
	host := bareHost(q.host)
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || host == "" {
		return "", false
	}
	if q.sni != "" && bareHost(q.sni) != host {
		return "", false
	}
	return host, true
}

func bareHost(hostport string) string {
	if strings.IndexByte(hostport, ':') >= 0 {
		if h, _, err := net.SplitHostPort(hostport); err == nil {
			hostport = h
		}
	}
	return strings.ToLower(strings.TrimSuffix(hostport, "."))
}
