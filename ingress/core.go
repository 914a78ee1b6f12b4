package ingress

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"boxgate/audit"
	"boxgate/ingress/balancer"
	"boxgate/ingress/h2c"
	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/relay"

	"go.uber.org/zap"
)

// URLs finds public URLs. Lookup is called twice for every request, concurrently, and must be fast.
type URLs interface {
	// Lookup finds the target of a host name, given in lower case without port and trailing dot.
	Lookup(host string) (Target, bool)
}

// Boxes are the boxes behind public URLs, which may sleep. All but Wake must be fast. Safe for concurrent use.
type Boxes interface {
	// Enter keeps a box awake for a request that has passed all checks, and reports whether its port can be dialled. If not,
	// Wake is called. Each Enter needs a Leave.
	Enter(box policy.BoxID, port uint16) (awake bool)
	// Leave ends an Enter: the request has ended, or now relays bytes without keeping the box awake.
	Leave(box policy.BoxID)
	// Moved is called when bytes pass after Leave. A visitor's bytes wake a box that has fallen asleep since.
	Moved(box policy.BoxID, byVisitor bool)
	// Wake returns when a port of a box can be dialled, or an error. There is one call at a time for a port.
	Wake(ctx context.Context, box policy.BoxID, port uint16) error
}

// Config is what [New] needs. URLs is required, and GetCertificate for [Ingress.ServeTLS].
type Config struct {
	URLs URLs
	// GetCertificate returns the certificate of a server name. It is called before any check of the client, so it must not
	// issue certificates for names that are not URLs.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Validation is the ALPN protocol with which a certificate authority validates a host (TLS-ALPN-01), using the certificate
	// from GetCertificate. A connection that negotiates it is closed after the handshake. "": no validation.
	Validation string
	// Dial connects to the target's address and nowhere else. nil: plain TCP.
	Dial func(ctx context.Context, t Target) (net.Conn, error)
	// Boxes wakes sleeping boxes and keeps those in use awake. nil: boxes never sleep.
	Boxes Boxes
	Audit audit.Recorder // nil: events are not recorded
	Log   *zap.Logger    // nil: no logging

	// Connections limits the open connections of visitors at each listener. Requests limits the forwarded requests, each of
	// which may take a connection to a box; up to a third as many idle connections are kept. One network of visitors gets a
	// quarter at most, one box half. 0: 4096.
	Connections, Requests int

	// Balancers are the load balancers in front of the gateway. Their connections, and no others, must begin with a header of
	// the PROXY protocol, which contains the visitor's address.
	Balancers balancer.List

	HSTS HSTS

	// ForwardFields are fields that visitors may send to boxes although applications may read a visitor's identity from them.
	// The fields that the gateway sets are never included.
	ForwardFields []string

	// RequestRate is the sustained number of requests per second from one network of visitors to one URL. The burst is twice
	// that. 0: 2000.
	RequestRate int
	// FailedCredentials is how many wrong credentials from one network a URL refuses in a minute. Until the minute is over,
	// further credentials are answered with 429 without a check. 0: 20.
	FailedCredentials int

	// SessionTime is how long a browser stays signed in. 0: 12 h.
	SessionTime time.Duration
	// Accounts lets visitors sign in with their accounts at an identity provider; nil: no provider.
	Accounts *Accounts
	// SignOut stores the ended sessions of a target. nil: they are only kept until the gateway stops.
	SignOut func(Target) error

	DialTimeout       time.Duration // 0: 10 s
	ReadHeaderTimeout time.Duration // 0: 10 s
	IdleTimeout       time.Duration // of a connection without a request; 0: 2 min
	MaxHeaderBytes    int           // 0: 64 KiB, which is also the maximum
	// BodyTimeout limits how long a client may pause within a body before its box has answered, and how long it may leave a
	// response unread. 0: 1 min. WebSockets have no such limit.
	BodyTimeout time.Duration
	// ResponseTimeout is how long a box may take to answer a complete request. 0: 5 min.
	ResponseTimeout time.Duration
}

// core is the state that the connections of clients share.
type core struct {
	Config
	upstreams upstreams
	poller    relay.Poller // of connections to boxes
	http2     *h2c.Pool[incarnation]
	places    places // of requests
	exchanges places // of code exchanges at the identity provider
	inside    places // of the requests of boxes, each of which also has one of places
	// http2Places are for requests to applications that speak HTTP/2, counted by box.
	http2Places places
	tallies     tallies
	wakers      wakers
	wakeWait    time.Duration // the constant wakeWait; tests change it
	grace       time.Duration // the constant cutTime, likewise
	halfOpen    time.Duration // the constant halfOpenTime, likewise
	arrival     time.Duration // the constant arrivalTime, likewise
	active      active
	streams     sync.Pool       // of *stream
	heads       *memory.Account // the memory of HTTP/2 heads
	transport   string          // value of Strict-Transport-Security, or ""
	draining    context.Context // ends when the ingress stops
}

const (
	// headsAll is the memory for header blocks in several frames, of all connections together.
	headsAll = 64 << 20
)

func newHeads() *memory.Account { return memory.New(headsAll, headsAll).Account("visitors") }
