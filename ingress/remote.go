package ingress

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"boxgate/ingress/account"
	"boxgate/ingress/balancer"
	"boxgate/ingress/pages"
	"boxgate/ingress/signin"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/relay/h1"
)

// This part passes single requests on to the hosts of a fleet that have their boxes. It is for connections of load balancers that end TLS,
// which carry requests for any box. The other host is treated like an application: the same engine sends the request and relays the
// response, over connections that carry requests of one visitor to one host name alone. They are of TLS with the certificates of both hosts,
// and begin with the header that names the visitor. All fields pass unchanged, as the other host checks the request, with all limits, as if
// the visitor had connected to it. A request is passed on once at most.

// remote is the other host that serves a request, and the request's visitor.
type remote struct {
	host       string // ID
	membership string // of [Fleet]
	name       string // the host name
	from       netip.Addr
	mode       balancer.Mode
}

// key is the key of the connections to the host that the request may take. No box has the ID of a host.
func (r *remote) key() incarnation {
	return incarnation{id: string(rune(r.mode)) + r.membership + " " + r.name, box: policy.BoxID(r.host), addr: netip.AddrPortFrom(r.from, 0)}
}

// elsewhere returns the other host that serves a request; nil: this host does. Requests of boxes, and requests that another host has passed on, are
// served here.
func (g *core) elsewhere(v *visit, host string) *remote {
	if g.Fleet == nil || v.sender != nil || v.inside || v.raw {
		return nil
	}
	owner, ok := g.Fleet.Owner(host)
	if !ok && g.Accounts != nil && host == g.Accounts.host {
		owner, ok = signsInAt(&v.asked)
	}
	if !ok {
		return nil
	}
	membership, ok := g.Fleet.Membership(owner)
	if !ok {
		return nil
	}
	r := &remote{host: owner, membership: membership, name: host, from: v.peer, mode: balancer.ModeHTTP}
	if v.secure {
		r.mode = balancer.ModeHTTPS
	}
	return r
}

// signsInAt returns the host that a step of a sign-in names, at the host of Accounts. All hosts of a fleet share its name, and only the one
// where a sign-in was begun can go on with it. Whether the ticket is genuine is for that host to judge.
func signsInAt(q *asked) (host string, ok bool) {
	parameter, ok := map[string]string{pages.StartPath: "ticket", pages.ReturnPath: "state"}[q.path]
	if !ok {
		return "", false
	}
	ticket, _ := signin.Value(q.query, parameter)
	host = account.HostOf(ticket)
	return host, host != ""
}

// targetElsewhere returns a target on another host, for limits and redirects.
func (g *core) targetElsewhere(host string) (t Target, ok bool) {
	if g.Fleet == nil {
		return Target{}, false
	}
	owner, ok := g.Fleet.Owner(host)
	return Target{ID: hostID(owner)}, ok
}

// hostID takes the place of the ID of a URL for requests to another host. No URL has it.
func hostID(host string) string { return "host " + host }

// handOver takes the places of a request that another host serves, and registers it. If it reports false, the client has been answered.
func (g *core) handOver(v *visit, r *remote) bool {
	v.target = Target{ID: hostID(r.host), Protocol: H2C, remote: r}
	if g.tallies.of(v.target.ID, v.network).request(v.began) {
		v.tooMany()
		return false
	}
	if v.handed = g.passing.acquire(r.host, v.network); !v.handed {
		v.tooMany()
		return false
	}
	return g.registerRequest(v)
}

// leaveHandOver releases the place.
func (g *core) leaveHandOver(v *visit) {
	if v.handed {
		v.handed = false
		g.passing.release(v.target.remote.host, v.network)
	}
}

// connect connects to the other host, for requests in a version of HTTP.
func (g *core) connect(ctx context.Context, r *remote, protocol string) (net.Conn, error) {
	return g.Fleet.Connect(ctx, r.host, protocol, balancer.Passed{From: netip.AddrPortFrom(r.from, 0), Name: r.name, Mode: r.mode})
}

// dialHTTP2 is [core.dial] for HTTP/2.
func (g *core) dialHTTP2(ctx context.Context, t Target) (net.Conn, error) {
	if t.remote == nil {
		return g.dial(ctx, t)
	}
	ctx, cancel := context.WithTimeout(ctx, g.DialTimeout)
	defer cancel()
	return g.connect(ctx, t.remote, "h2")
}

// responseTime is how long a response may take. Another host wakes the box first, connects to it, and has a limit of its own.
func (g *core) responseTime(v *visit) time.Duration {
	if v.target.remote != nil {
		return g.ResponseTimeout + g.DialTimeout + g.wakeWait
	}
	return g.ResponseTimeout
}

// away answers that the host with the box cannot be reached, or has not answered. The cause is only logged.
func (v *visit) away(err error) {
	v.event.Error = err.Error()
	v.refuse(http.StatusBadGateway, name.ReasonURLUnavailable, "The host with the box does not answer.")
}

// shownElsewhere is [shown] for responses of another host, which has dropped and changed the fields of its box.
func shownElsewhere(f *h1.Field) (value []byte, ok bool) { return f.Value, f.Kind == h1.Other }

// withheld is the function withheld for the responses of boxes.
func (e *exchange) withheld(name []byte) bool { return e.visit.target.remote == nil && withheld(name) }

// sender is a host of the fleet that passes one connection of a visitor on, or requests of the visitor over one connection.
type sender struct {
	fleet    Fleet
	host     string
	requests bool                // TLS is that of the host
	state    tls.ConnectionState // then
}

// left reports whether the host is not a member any longer, and the visitor of a further request may so be made up. A visitor's own TLS
// connection goes on.
func (s *sender) left() bool { return s.requests && s.fleet.Still(s.host, s.state) != nil }

// settings returns the settings of TLS for a connection of a visitor, or of a host that passes requests on.
func (l *listener) settings(h *held) *tls.Config {
	if h.mode.Requests() {
		return l.g.Fleet.Accept(h.sender)
	}
	return l.tls
}

// vouched describes the visitor of a connection that another host passes on. If the host passes requests on, the visitor is the one in the
// header, and the requests can be for no other host name.
func (g *core) vouched(w *visitor, h *held, state tls.ConnectionState) {
	w.sender = &sender{fleet: g.Fleet, host: h.sender, requests: h.mode.Requests()}
	if w.sender.requests {
		w.sender.state, w.secure, w.sni = state, h.mode == balancer.ModeHTTPS, strings.ToLower(h.passed)
	}
}
