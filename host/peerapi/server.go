package peerapi

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api/access"
	"boxgate/api/problem"
	"boxgate/audit"
	"boxgate/fleet/pki"
)

// mostCalls bounds the calls of one host at a time, and its connections. A host that keeps its own bounds does not reach it. It is half of
// [ServerConfig.Most] if that is less.
const mostCalls = 2 * mostStreams

// Identity is the part of a member of a fleet that verifies other hosts; implemented by [boxgate/fleet/node.Node].
type Identity interface {
	Peers() pki.Peers
}

// ServerConfig configures [NewServer]. All fields are required.
type ServerConfig struct {
	Fleet Identity
	// API serves the calls. It finds out the rights of a call by its key, as for a client of this host.
	API http.Handler
	// Known is called for a connection once the other end is known to be a member.
	Known func(net.Conn)
	// Most is the maximum number of connections of all hosts, and of their calls at a time.
	Most int
	// Refused is called for each call that does not reach the API.
	Refused func()
	Log     *zap.Logger
}

// server accepts the calls of other hosts.
type server struct {
	ServerConfig

	mu      sync.Mutex
	calls   map[string]int      // by host
	running int                 // calls of all hosts
	conns   map[net.Conn]string // the host of each connection with a call so far
	open    map[string]int      // connections by host
}

// connKey is the context key of the connection of a call.
type connKey struct{}

// NewServer returns the server of the calls of other hosts, for connections of TLS with [pki.Peers.Server].
func NewServer(c ServerConfig) *http.Server {
	s := &server{ServerConfig: c, calls: map[string]int{}, conns: map[net.Conn]string{}, open: map[string]int{}}
	return &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * idleTimeout, MaxHeaderBytes: 64 << 10, ErrorLog: audit.ServerLog(c.Log, nil),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateClosed || state == http.StateHijacked {
				s.forget(conn)
			}
		},
	}
}

// errNoMember ends the calls of a host that is no longer a member of the fleet.
var errNoMember = problem.Refuse(http.StatusServiceUnavailable, "the host that sent the call is no longer a member of the fleet")

// ServeHTTP serves a call, if the other end is a member now. A host may have left since the handshake.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	peers := s.Fleet.Peers()
	host, err := peers.Still(*r.TLS)
	if err != nil {
		s.Log.Warn("a call of a host that is not a member of the fleet was refused", zap.Error(err))
		s.refuse(w, "this host does not know the caller as a member of the fleet")
		return
	}
	if !s.begin(r, host) {
		s.refuse(w, "too many calls of one host")
		return
	}
	defer s.end(host)
	r.Header.Set(access.PeerHeader, host) // never sent on, whatever the other host has set
	ctx, stop := access.WhileValid(access.WithPeer(r.Context(), sourceOf(r, host)), func() bool {
		now, err := peers.Still(*r.TLS)
		return err == nil && now == host
	}, errNoMember)
	defer stop()
	r.Header.Del(clientHeader)
	s.API.ServeHTTP(w, r.WithContext(ctx))
}

// refusedHeader is the response header, with the reason, of a call that did not reach the API of the other host.
const refusedHeader = "Boxgate-Fleet-Refused"

// refuse answers a call that does not reach the API, and closes its connection.
func (s *server) refuse(w http.ResponseWriter, why string) {
	s.Refused()
	w.Header().Set("Connection", "close")
	w.Header().Set(refusedHeader, why)
	w.WriteHeader(http.StatusServiceUnavailable)
}

// sourceOf describes the client of a call for the audit trail. The other host vouches for the address alone.
func sourceOf(r *http.Request, host string) string {
	text := r.Header.Get(clientHeader)
	if len(text) > 64 || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		text = ""
	}
	if text == "" {
		return "host " + host
	}
	return "host " + host + ", " + text
}

// begin counts a call, and its connection with the first one. It returns false if the host has too many.
func (s *server) begin(r *http.Request, host string) bool {
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	s.mu.Lock()
	defer s.mu.Unlock()
	each := min(mostCalls, max(1, s.Most/2))
	if s.calls[host] >= each || s.running >= s.Most {
		return false
	}
	if _, known := s.conns[conn]; conn != nil && !known {
		if s.open[host] >= each || len(s.conns) >= s.Most {
			return false
		}
		s.conns[conn] = host
		s.open[host]++
		s.Known(conn)
	}
	s.calls[host]++
	s.running++
	return true
}

func (s *server) end(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if s.calls[host]--; s.calls[host] == 0 {
		delete(s.calls, host)
	}
}

// forget stops counting a connection.
func (s *server) forget(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	host, ok := s.conns[conn]
	if !ok {
		return
	}
	delete(s.conns, conn)
	if s.open[host]--; s.open[host] == 0 {
		delete(s.open, host)
	}
}
