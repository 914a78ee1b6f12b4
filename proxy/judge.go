package proxy

import (
	"context"
	"net/netip"
	"strconv"
	"strings"

	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/proxy/h1"
	"boxgate/proxy/origin"
	"boxgate/proxy/placeholder"
	"boxgate/proxy/problem"
	"boxgate/proxy/route"
	"boxgate/proxy/scrub"
)

// This file decides one request. HTTP/1.1 and HTTP/2 ask the same judge; neither forwards a byte it has not allowed.

// message is what the judge must know of a request, whichever protocol carried it.
type message struct {
	method    string
	authority string // Host or :authority
	target    string // the authority of an absolute-form target, "" if there is none
	scheme    string // the scheme of an absolute-form target or of :scheme, "" if there is none
	path      string // with the query
	websocket bool   // an extended CONNECT for a WebSocket (RFC 8441)
	tokens    placeholder.Scan
}

// ruling is the judge's answer. Without a refusal the request may go to the name of request if byName, else to its
// address, with set.
type ruling struct {
	refused *problem.Problem
	request policy.Request   // as it was decided
	way     route.Routed     // how it passes, by which it is asked later whether it may go on
	policy  *policy.Compiled // that decided it
	reason  policy.Reason
	rule    string
	byName  bool
	header  policy.HeaderRule  // of the destination; the zero rule if there is none
	set     []policy.Header    // its headers, with the values for this request
	swaps   []placeholder.Swap // for the placeholders that the request holds
	scrub   *scrub.Set         // what is masked in the response; nil if nothing is
	err     error              // why it was refused, for the log
}

// judge decides a request under the policy in force now, and gets the secrets that it needs. It refuses by default.
func (s *session) judge(ctx context.Context, m *message) ruling {
	r := ruling{request: policy.Request{
		Stage: policy.StageHTTP, Box: s.box.ID, Name: s.name, Addr: s.orig.Addr(), Port: s.port, Protocol: policy.TCP,
		Method: m.method, Path: withoutQuery(m.path),
	}}
	if m.websocket { // the upstream gets an HTTP/1.1 upgrade
		r.request.Method = "GET"
	}
	if r.refused = s.judgeForm(m); r.refused == nil {
		r.refused = s.judgeAuthority(m, &r.request)
	}
	if r.refused != nil {
		r.refused.Host = r.request.Name.String()
		r.reason = r.refused.Reason
		return r
	}
	fault.Mark(ctx, "proxy: request read")
	r.policy = s.box.Policy.Load()
	if r.refused = s.routeRequest(ctx, &r); r.refused != nil {
		return r
	}
	if s.secure {
		r.header, _ = r.policy.Headers(r.request.Name, r.request.Port)
	}
	r.fill(ctx, s, m)
	r.scrubbed(s)
	return r
}

// routeRequest asks the policy how the request may pass, and completes the ruling. It returns what the client is told if it
// may not.
func (s *session) routeRequest(ctx context.Context, r *ruling) *problem.Problem {
	e := policy.Evidence{Opening: policy.OpeningRequest, Proxied: s.explicit}
	if s.secure {
		e.Opening = policy.OpeningSecure
	}
	r.way = s.p.router.Route(ctx, r.policy, s.box, r.request, e)
	r.request, r.byName = r.way.Asked, r.way.ByName
	r.reason, r.rule = r.way.Decision.Reason, r.way.Decision.Rule
	switch {
	case r.way.Action == policy.Forward:
		return nil
	case r.reason == policy.ReasonAuthorityMismatch:
		return mismatch()
	case r.reason == policy.ReasonNoName:
		return nameless()
	}
	refused := problem.Of(r.way.Err())
	return &refused
}

// target is where a request that was not refused goes.
func (r *ruling) target(s *session) origin.Target { return origin.To(r.way, s.secure) }

// inflight is what must stay allowed of the request, which goes to an address; the zero Addr if that is not known yet.
func (r *ruling) inflight(s *session, to netip.Addr) *inflight {
	f := &inflight{s: s, way: r.way}
	if to.IsValid() {
		f.way.Asked, f.way.Known = r.way.At(to)
	}
	return f
}

// judgeForm refuses what is no request to an origin server.
func (s *session) judgeForm(m *message) *problem.Problem {
	// Methods are case-sensitive (RFC 9110, 9.1), but not every server keeps to that.
	switch strings.ToUpper(m.method) {
	case "CONNECT":
		if !m.websocket {
			return &problem.Problem{Status: 405, Reason: policy.ReasonMethod, Detail: "CONNECT is not served on this connection."}
		}
	case "TRACE", "TRACK": // they would send the headers that the gateway sets back to the client
		return &problem.Problem{Status: 405, Reason: policy.ReasonMethod, Detail: "TRACE and TRACK are not served."}
	}
	want := "http"
	if s.secure {
		want = "https"
	}
	if m.scheme != "" && !strings.EqualFold(m.scheme, want) {
		return badRequest("The scheme of the request target is not that of the connection.")
	}
	if s.explicit && m.target == "" {
		return badRequest("A request to a proxy must name its target in absolute form.")
	}
	if m.target != "" && !sameAuthority(m.target, m.authority, s.defaultPort()) {
		return badRequest("The authority of the request target is not that of Host.")
	}
	return nil
}

func badRequest(detail string) *problem.Problem {
	return &problem.Problem{Status: 400, Reason: policy.ReasonBadRequest, Detail: detail}
}

// judgeAuthority compares the request's authority with the connection: with the SNI and port of an intercepted one, with
// the port of a plain one, whose name it then gives. It completes the policy request.
func (s *session) judgeAuthority(m *message, r *policy.Request) *problem.Problem {
	host, port, ok := splitAuthority(m.authority, s.defaultPort())
	if !ok {
		return badRequest("Host is not a host name with an optional port.")
	}
	if s.explicit {
		r.Port = port
	} else if port != s.port {
		return mismatch()
	}
	if s.secure {
		if s.name.IsZero() || !isName(host, s.name) {
			return mismatch()
		}
		return nil
	}
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return s.judgeLiteral(addr.Unmap(), r)
	}
	name, err := policy.ParseName(host)
	if err != nil {
		return badRequest("Host is not a host name with an optional port.")
	}
	r.Name = name
	return nil
}

// judgeLiteral handles an address as authority: the explicit proxy is asked for it, elsewhere it must be the destination.
func (s *session) judgeLiteral(addr netip.Addr, r *policy.Request) *problem.Problem {
	r.Name = policy.Name{}
	if s.explicit {
		r.Addr = addr
		return nil
	}
	if addr != s.orig.Addr().Unmap() {
		return mismatch()
	}
	return nil
}

func mismatch() *problem.Problem {
	return &problem.Problem{Status: 421, Reason: policy.ReasonAuthorityMismatch,
		Detail: "The authority of the request is not that of the connection."}
}

func nameless() *problem.Problem {
	return &problem.Problem{Status: 403, Reason: policy.ReasonNoName,
		Detail: "The host must be given by its name: on this port the policy judges names."}
}

func (s *session) defaultPort() uint16 {
	if s.secure {
		return 443
	}
	return 80
}

func withoutQuery(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return path
}

// splitAuthority reads "host" or "host:port"; a v6 literal stands in brackets. It does not judge the host.
func splitAuthority(authority string, def uint16) (host string, port uint16, ok bool) {
	end := strings.IndexByte(authority, ']') + 1 // 0 without brackets
	if (end > 0) != strings.HasPrefix(authority, "[") {
		return "", 0, false
	}
	colon := strings.IndexByte(authority[end:], ':')
	if colon < 0 {
		return authority, def, authority != "" && (end == 0 || end == len(authority))
	}
	host, digits := authority[:end+colon], authority[end+colon+1:]
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n == 0 || digits[0] == '+' || host == "" || (end > 0 && colon != 0) {
		return "", 0, false
	}
	return host, uint16(n), true
}

// sameAuthority compares two authorities of one request, a missing port being the default one.
func sameAuthority(a, b string, def uint16) bool {
	hostA, portA, okA := splitAuthority(a, def)
	hostB, portB, okB := splitAuthority(b, def)
	return okA && okB && portA == portB && strings.EqualFold(hostA, hostB)
}

// isName reports whether host is a way to write n. The quick comparison covers what clients send.
func isName(host string, n policy.Name) bool {
	if h1.EqualFold([]byte(host), n.String()) {
		return true
	}
	parsed, err := policy.ParseName(host)
	return err == nil && parsed == n
}
