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
	// Enter keeps a box awake for a request that has passed all checks, and reports whether its port can be dialled. If not, Wake is
	// called. Each Enter needs a Leave.
	Enter(box policy.BoxID, port uint16) (awake bool)
	// Leave ends an Enter: the request has ended, or no longer waits for the box, although bytes may still pass.
	Leave(box policy.BoxID)
	// Moved is called when bytes pass after Leave. Bytes of a visitor wake a box that has fallen asleep since.
	Moved(box policy.BoxID, byVisitor bool)
	// Wake returns when a port of a box can be dialled, or cannot be. It is called once at a time for a port.
	Wake(ctx context.Context, box policy.BoxID, port uint16) error
}

// Config is what [New] needs. URLs is required, and GetCertificate for [Ingress.ServeTLS].
type Config struct {
	URLs URLs
	// GetCertificate returns the certificate of a server name. It is called before anything else is known about a
	// client, so it must not issue certificates for names that are not URLs.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Validation is the application protocol by which a certificate authority validates a host (TLS-ALPN-01), with the
	// certificate that GetCertificate returns for it. A connection that negotiates it serves nothing. "": none.
	Validation string
	// Dial connects to the target's address and nowhere else. nil: plain TCP.
	Dial func(ctx context.Context, t Target) (net.Conn, error)
	// Boxes wakes sleeping boxes and keeps those in use awake. nil: boxes never sleep.
	Boxes Boxes
	Audit audit.Recorder // nil: no events
	Log   *zap.Logger    // nil: no log

	// Connections is how many connections of visitors each listener holds, and Requests how many requests are forwarded at a
	// time, each of which may take a connection to a box; a third as many are kept for later. One network of visitors has a
	// quarter at most, one URL half. 0: 4096.
	Connections, Requests int

	// Balancers are the load balancers before the gateway. Their connections, and no others, must begin with a header of
	// the PROXY protocol, which contains the visitor's address.
	Balancers balancer.List

	HSTS HSTS

	// ForwardFields are fields of visitors that boxes get although applications may read in them who the visitor is. Those
	// that the gateway sets itself are never among them.
	ForwardFields []string

	// RequestRate is how many requests a second one network of visitors may make to one URL, sustained; twice as many at
	// once. 0: 2000.
	RequestRate int
	// FailedCredentials is how many credentials of one network of visitors one URL refuses in a minute. Then it looks at none,
	// and answers 429, until the minute is over. 0: 20.
	FailedCredentials int

	// SessionTime is how long a browser that has signed in stays signed in. 0: 12 h.
	SessionTime time.Duration
	// Accounts lets visitors sign in with their accounts at an identity provider; nil: there is none.
	Accounts *Accounts
	// SignOut stores that sessions of a target have ended, so that they stay ended. nil: they do until the gateway stops.
	SignOut func(Target) error

	DialTimeout       time.Duration // 0: 10 s
	ReadHeaderTimeout time.Duration // 0: 10 s
	IdleTimeout       time.Duration // of a connection without request; 0: 2 min
	MaxHeaderBytes    int           // 0: 64 KiB, which is also the most
	// BodyTimeout is how long a client may send nothing of a body before its box has answered, and take nothing of a
	// response. 0: 1 min. WebSockets have no such limit.
	BodyTimeout time.Duration
	// ResponseTimeout is how long a box may take to answer a request that it has whole. 0: 5 min.
	ResponseTimeout time.Duration
}

// core is the state that the connections of clients share.
type core struct {
	Config
	upstreams pool
	poller    relay.Poller // of connections to boxes
	http2     h2c.Pool[incarnation]
	places    places // of requests
	exchanges places // of questions to the identity provider
	inside    places // of the requests of boxes, which have one of the others as well
	// http2Places are those of requests to applications that speak HTTP/2, counted by box instead of by URL.
	http2Places places
	tallies     tallies
	wakers      wakers
	wakeWait    time.Duration // wakeWait
	grace       time.Duration // cutTime
	halfOpen    time.Duration // halfOpenTime
	arrival     time.Duration // arrivalTime
	active      active
	streams     sync.Pool       // of *stream
	heads       *memory.Account // of HTTP/2
	transport   string          // the value of Strict-Transport-Security, or ""
	draining    context.Context // ends when the ingress stops
}

const (
	// headsAll is the memory for header blocks in several frames, of all connections together.
	headsAll = 64 << 20
)

func newHeads() *memory.Account { return memory.New(headsAll, headsAll).Account("visitors") }
