package testnet

import (
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Kind is the kind of an entry.
type Kind string

// The kinds.
const (
	Connection Kind = "connection" // an accepted TCP connection
	Datagram   Kind = "datagram"   // a UDP datagram, DNS excepted
	Request    Kind = "request"    // an HTTP request, encrypted or not
	Query      Kind = "query"      // a DNS query
)

// Received is the record of a connection, datagram, request or query that a server received.
type Received struct {
	Time   time.Time
	Kind   Kind
	Addr   netip.AddrPort // where it was received
	Remote netip.AddrPort // the sender

	SNI   string   // server name of the ClientHello, for connections and requests over TLS
	ALPN  []string // protocols that the ClientHello offered
	First []byte   // first bytes of a connection (up to 1 KiB, undecrypted) or datagram

	Proto   string      // "HTTP/1.1" or "HTTP/2.0"
	Method  string      // of a request
	Host    string      // Host or :authority of a request
	Target  string      // request target, query included
	Header  http.Header // of a request
	Trailer http.Header // of a request whose body was read to its end
	Body    int64       // bytes of the request's body read so far

	Name string // queried name, lower case, without the final dot
	Type string // queried type, such as "AAAA"
}

// Filter selects entries.
type Filter func(Received) bool

// Any selects everything.
func Any(Received) bool { return true }

// Of selects one kind.
func Of(k Kind) Filter { return func(r Received) bool { return r.Kind == k } }

// Path selects the requests for a path with any query.
func Path(path string) Filter {
	return func(r Received) bool {
		p, _, _ := strings.Cut(r.Target, "?")
		return r.Kind == Request && p == path
	}
}

// Port selects the entries received on a port.
func Port(port uint16) Filter { return func(r Received) bool { return r.Addr.Port() == port } }

// maxReceived bounds the number of entries; the oldest are dropped.
const maxReceived = 1 << 16

// recorder keeps entries. Safe for concurrent use.
type recorder struct {
	mu      sync.Mutex
	entries []*Received
	changed chan struct{} // closed and replaced at each change
}

// add keeps an entry; change may alter it later.
func (r *recorder) add(e Received) *Received {
	e.Time = time.Now()
	entry := &e
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.entries) >= maxReceived {
		r.entries = append([]*Received(nil), r.entries[maxReceived/4:]...)
	}
	r.entries = append(r.entries, entry)
	r.notifyLocked()
	return entry
}

func (r *recorder) change(e *Received, f func(*Received)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(e)
	r.notifyLocked()
}

func (r *recorder) notifyLocked() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// matching returns copies of the entries selected, and a channel that is closed at the next change.
func (r *recorder) matching(match Filter) ([]Received, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Received
	for _, e := range r.entries {
		if match(*e) {
			out = append(out, *e)
		}
	}
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return out, r.changed
}

func (r *recorder) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = nil
}
