package urls

import (
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"boxgate/config"
	"boxgate/ingress"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Table maps host names to the targets of public URLs, of the ports that a box shares, and of the gateway's own handlers. Safe for
// concurrent use.
//
// A host name that means a port of a box (see [config.Ingress.ParseHostName]) has the first of these targets that exists: the gateway's
// handler of the port, the public URL of the port, the shared ports of the box.
type Table struct {
	names   config.Ingress // immutable, as is the next
	ownHost string         // the host for sign-in, which is not a URL's; may be empty

	mu     sync.RWMutex
	byHost map[string]ingress.Target
	shared map[policy.BoxID]sharedPorts
	ports  map[uint16]func(policy.BoxID) (http.Handler, bool) // the gateway's own, of every box
}

// NewTable returns an empty table. own is the host for sign-in, which may be empty.
func NewTable(names config.Ingress, own string) *Table {
	return &Table{
		names: names, ownHost: own, byHost: map[string]ingress.Target{}, shared: map[policy.BoxID]sharedPorts{},
		ports: map[uint16]func(policy.BoxID) (http.Handler, bool){},
	}
}

// ServeName lets a handler serve {label}.{domain}. The label must have no dash or dot, so that it is no box's. Boxes do not reach
// the handler, which must authenticate its visitors, and limit wrong credentials; for the rest see
// [ingress.Target.Handler].
func (t *Table) ServeName(label string, h http.Handler) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byHost[t.names.OwnName(label)] = ownTarget(label, "", h)
}

// ServePort lets handlers serve a port of every box at its host names, instead of the box. of returns the handler for an ID, even if
// no box has it; nil: there is no such host name. It also reports whether there is such a box: visitors make IDs up, so that only the
// IDs of boxes are logged. It is called for every request and must be fast, and call no method of the table.
// Otherwise see [Table.ServeName]. Call ServePort before URLs are recovered.
func (t *Table) ServePort(port uint16, of func(policy.BoxID) (h http.Handler, known bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ports[port] = of
}

// IsOwn reports whether the gateway itself serves a port of all boxes.
func (t *Table) IsOwn(port uint16) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.ports[port] != nil
}

// Lookup implements [ingress.URLs].
func (t *Table) Lookup(host string) (ingress.Target, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	target, ok := t.byHost[host]
	if !ok {
		return t.impliedLocked(host)
	}
	return t.withheldLocked(target), true
}

// impliedLocked finds the target of a host name that has no entry of its own.
func (t *Table) impliedLocked(host string) (ingress.Target, bool) {
	if len(t.ports) == 0 && len(t.byHost) == 0 && len(t.shared) == 0 {
		return ingress.Target{}, false
	}
	id, port, ok := t.names.ParseHostName(host)
	if !ok {
		return ingress.Target{}, false
	}
	if of := t.ports[port]; of != nil {
		h, known := of(id)
		if h == nil {
			return ingress.Target{}, false
		}
		target := ownTarget(strconv.Itoa(int(port)), id, h)
		target.Unknown = !known
		return target, true
	}
	if target, ok := t.byHost[t.names.HostName(id, port)]; ok {
		return t.withheldLocked(target), true
	}
	if s, ok := t.shared[id]; ok {
		return s.target(port)
	}
	return ingress.Target{}, false
}

// ownTarget returns the target of a handler. The ID does not name the box, because the ingress counts by it and visitors make IDs up.
func ownTarget(label string, box policy.BoxID, h http.Handler) ingress.Target {
	return ingress.Target{ID: "own " + label, Box: box, Handler: h, Auth: ingress.Auth{Open: true}, Protocol: ingress.HTTP1}
}

// withheldLocked returns the target of a public URL with the token of its box's shared ports, which its application must not get.
func (t *Table) withheldLocked(target ingress.Target) ingress.Target {
	if s, ok := t.shared[target.Box]; ok {
		target.Auth.Withheld = s.base.Auth.Bearer
	}
	return target
}

// urlOf returns the target of the public URL of a port, if it has one.
func (t *Table) urlOf(id policy.BoxID, port uint16) (ingress.Target, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	target, ok := t.byHost[t.names.HostName(id, port)]
	return target, ok
}

// Has reports whether boxes may find a public URL at a host name, or the host for sign-in.
func (t *Table) Has(host string) bool {
	if host == t.ownHost && host != "" {
		return true
	}
	target, ok := t.Lookup(host)
	return ok && target.Handler == nil
}

// Certified reports whether a host name may have a certificate of its own: it has an entry. Names that only mean a port of a box do not,
// as anyone can make up any number.
func (t *Table) Certified(host string) bool {
	if host == t.ownHost && host != "" {
		return true
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, ok := t.byHost[host]
	return ok
}

// Common reports whether a host name is below the domain of the public URLs, or is the host for sign-in, so that it is no URL's own domain.
func (t *Table) Common(host string) bool {
	return host == t.ownHost && host != "" || host == t.names.Domain || strings.HasSuffix(host, "."+t.names.Domain)
}

// Serves reports whether a public URL has a domain of its own.
func (t *Table) Serves(domain string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, ok := t.byHost[domain]
	return ok && !t.Common(domain)
}

// Domains returns the domains of their own that public URLs have, with the IDs of the API keys that made the URLs.
func (t *Table) Domains() map[string]string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := map[string]string{}
	for host, target := range t.byHost {
		if !t.Common(host) {
			all[host] = target.Owner
		}
	}
	return all
}

// OwnURLs are the public URLs that boxes may open by name: those within the gateway's own domain, over HTTPS. Custom
// domains are excluded; otherwise, creating a URL could redirect boxes' connections to any name.
type OwnURLs struct {
	domain name.Name
	port   uint16 // of HTTPS; 0: disabled
	table  *Table
	visit  func(c net.Conn, host string)
}

// NewOwnURLs returns the URLs within a domain. port is that of HTTPS, 0 if it is disabled. visit serves a connection to a
// URL.
func NewOwnURLs(domain name.Name, port uint16, table *Table, visit func(c net.Conn, host string)) *OwnURLs {
	return &OwnURLs{domain, port, table, visit}
}

// Named reports whether a name is currently that of a public URL.
func (u *OwnURLs) Named(n name.Name) bool {
	return u.port != 0 && n.IsWithin(u.domain) && u.table.Has(n.String())
}

// Served implements [proxy.URLs].
func (u *OwnURLs) Served(n name.Name, port uint16) bool { return port == u.port && u.Named(n) }

// Visit implements [proxy.URLs].
func (u *OwnURLs) Visit(c net.Conn, n name.Name) { u.visit(c, n.String()) }

// set maps hosts to a target, replacing all hosts of the same port of its box.
func (t *Table) set(hosts []string, target ingress.Target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deleteLocked(target.Box, target.Addr.Port())
	for _, host := range hosts {
		t.byHost[host] = target
	}
}

// remove removes all hosts of a box's port. A host that was taken over by another URL stays.
func (t *Table) remove(id policy.BoxID, port uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deleteLocked(id, port)
}

func (t *Table) deleteLocked(id policy.BoxID, port uint16) {
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool {
		return target.Handler == nil && target.Box == id && target.Addr.Port() == port
	})
}

// share sets the shared ports of a box.
func (t *Table) share(s sharedPorts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shared[s.base.Box] = s
}

// sharedOf returns the ID of the target of a box's shared ports, or "".
func (t *Table) sharedOf(id policy.BoxID) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.shared[id].base.ID
}

// RemoveID removes the hosts of one URL, or the shared ports of that ID. The port of a URL stays closed: the box's shared ports,
// which are open to others, do not take it over. A successor orders this, and may have replaced the URL.
func (t *Table) RemoveID(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.shared, func(_ policy.BoxID, s sharedPorts) bool { return s.base.ID == id })
	for host, target := range t.byHost {
		if target.Handler != nil || target.ID != id {
			continue
		}
		if _, shares := t.shared[target.Box]; shares && host == t.names.HostName(target.Box, target.Addr.Port()) {
			target.Auth, target.Access = ingress.Auth{}, nil // lets no visitor in
			t.byHost[host] = target
			continue
		}
		delete(t.byHost, host)
	}
}

// RemoveBox removes the URLs of a box, and its shared ports.
func (t *Table) RemoveBox(id policy.BoxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool { return target.Handler == nil && target.Box == id })
	delete(t.shared, id)
}
