package sshd

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	gossh "golang.org/x/crypto/ssh"

	"boxgate/internal/acceptor"
	"boxgate/internal/required"
	"boxgate/internal/sshflow"
	"boxgate/policy"
	"boxgate/proxy/recovery"
)

// Gate decides about logins. Safe for concurrent use.
type Gate interface {
	// Password returns the login that an API key gives to a box, by the box's ID or name. It returns false if the key is not valid,
	// there is no such box, or the key may not use it.
	Password(box, key string) (Login, bool)
	// PublicKey is Password for a public key, whose private key the client has proved to have.
	PublicKey(box string, key gossh.PublicKey) (Login, bool)
	// Refused records that a client, by its address, has tried to log in and has failed.
	Refused(remote string)
}

// Login is the right of a client to use one box. Safe for concurrent use. Errors of its methods are shown to the client, unless
// the context has ended.
type Login interface {
	// Box returns the ID of the box.
	Box() policy.BoxID
	// Key returns the ID of the API key, for the log.
	Key() string
	// Valid reports whether the login is still valid. A connection whose login is not is cut.
	Valid() bool
	// Count counts a connection as one of the key's until the connection is closed, and returns the account for its memory, which
	// the caller closes. It fails if a limit is reached.
	Count(conn net.Conn) (sshflow.Claim, error)
	// Run runs a command in the box until it ends; started is called once it can get signals. If ctx ends, the command is killed.
	Run(ctx context.Context, c Command, streams Streams, started func(Process)) (Exit, error)
	// Transfer serves SFTP over a stream until it ends.
	Transfer(ctx context.Context, stream io.ReadWriter) error
	// Forward returns the use of a port of the box's loopback interface. The caller closes it.
	Forward(ctx context.Context, port uint16) (Port, error)
}

// Port is a port of a box that a connection uses.
type Port interface {
	// Dial connects to the port. host is "127.0.0.1", "::1", or "localhost" for either. Closing the connection is up to the caller.
	Dial(ctx context.Context, host string) (net.Conn, error)
	// Close ends the use. Open connections stay open.
	Close()
}

// Command is a command to run in a box.
type Command struct {
	Line     string            // for a shell; "": a login shell
	Env      map[string]string // set by the client
	Terminal *Terminal         // nil: no terminal
}

// Exit is how a command ended.
type Exit struct {
	Status int    // its exit status, or 128 and the number of the signal that killed it
	Signal string // that signal, without the prefix SIG; "": the command exited by itself, or it is not known
}

// Terminal is the size of a terminal in characters.
type Terminal struct{ Rows, Cols uint16 }

// Streams are the streams of a command. With a terminal, Err is not used.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Process is a running command.
type Process interface {
	// Signal sends a signal, named without the prefix SIG. Signals that cannot be sent are errors.
	Signal(name string) error
	// Resize sets the size of the terminal.
	Resize(Terminal) error
}

// Config configures a [Server]. All fields are required.
type Config struct {
	HostKey gossh.Signer // ed25519
	Log     *zap.Logger
}

// Listener accepts connections and bounds those of strangers; implemented by [boxgate/host/authlimit.Listener].
type Listener interface {
	net.Listener
}

// Server serves SSH. Create it with [New]; a nil Server has no connections. Safe for concurrent use.
type Server struct {
	cfg       Config
	loginTime time.Duration // loginTime, except in tests
	failing   chan struct{} // has an element for each answer to a wrong password that is being delayed

	loops    acceptor.Loops
	sweeping sync.Once
	ended    chan struct{} // closed at the end of Shutdown
	end      func()        // closes it

	mu   sync.Mutex
	open map[*client]bool // logged in; none are added once loops are retired

	logins   *prometheus.CounterVec // by result
	channels *prometheus.GaugeVec   // by kind
}

// New returns a Server.
func New(cfg Config) (*Server, error) {
	if err := required.Fields(cfg); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	s := &Server{
		cfg: cfg, loginTime: loginTime, failing: make(chan struct{}, mostFailing), open: map[*client]bool{},
		ended: ended, end: sync.OnceFunc(func() { close(ended) }),
		logins: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxgate_ssh_logins_total", Help: "Attempts to log in over SSH, by result.",
		}, []string{"result"}),
		channels: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "boxgate_ssh_channels", Help: "Open channels of SSH connections, by kind.",
		}, []string{"kind"}),
	}
	for _, result := range []string{byPassword, byPublicKey, refused, overLimit} {
		s.logins.WithLabelValues(result) // shown before the first login
	}
	for _, kind := range []string{kindSession, kindForward} {
		s.channels.WithLabelValues(kind)
	}
	return s, nil
}

// Register registers the metrics.
func (s *Server) Register(r *prometheus.Registry) error {
	return errors.Join(r.Register(s.logins), r.Register(s.channels))
}

// Fingerprint returns the SHA-256 fingerprint of the host key, as OpenSSH shows it; "" for a nil Server.
func (s *Server) Fingerprint() string {
	if s == nil {
		return ""
	}
	return gossh.FingerprintSHA256(s.cfg.HostKey.PublicKey())
}

// Serve serves the connections of ln until [Server.Retire], and closes it. Until [Server.Shutdown] has ended, all logins are checked each
// second, since API keys expire. It returns an error only of closing ln.
func (s *Server) Serve(ln Listener, gate Gate) error {
	if !s.loops.Retired() {
		s.sweeping.Do(func() { go s.sweepRegularly() })
	}
	return s.loops.Serve(ln, func(conn net.Conn) { s.handle(conn, gate) })
}

// Retire stops accepting connections and channels. Open channels continue.
func (s *Server) Retire() {
	if s != nil {
		s.loops.Retire()
	}
}

// Shutdown retires the server, closes connections without channels, and returns when the others have ended. When ctx ends, it cuts
// them.
func (s *Server) Shutdown(ctx context.Context) error {
	if s == nil {
		return nil
	}
	defer s.end()
	s.Retire()
	for _, c := range s.clients(func(*client) bool { return true }) {
		c.leave()
	}
	err := s.loops.Wait(ctx)
	if err != nil {
		for _, c := range s.clients(func(*client) bool { return true }) {
			c.cut()
		}
	}
	return err
}

// Recheck cuts the connections whose login is no longer valid, such as after an API key was revoked.
func (s *Server) Recheck() {
	if s == nil {
		return
	}
	for _, c := range s.clients(func(c *client) bool { return !c.login.Valid() }) {
		c.cut()
	}
}

// CloseBox cuts all connections to a box.
func (s *Server) CloseBox(id policy.BoxID) {
	if s == nil {
		return
	}
	for _, c := range s.clients(func(c *client) bool { return c.login.Box() == id }) {
		c.cut()
	}
}

// Open returns the number of connections that are logged in.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// clients returns the connections that are logged in and wanted.
func (s *Server) clients(wanted func(*client) bool) (list []*client) {
	s.mu.Lock()
	all := make([]*client, 0, len(s.open))
	for c := range s.open {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all { // without the lock: wanted may look a key up
		if wanted(c) {
			list = append(list, c)
		}
	}
	return list
}

// sweepInterval is the interval at which all logins are checked, since API keys expire.
const sweepInterval = time.Second

// sweepRegularly rechecks the logins until [Server.Shutdown] has ended.
func (s *Server) sweepRegularly() {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.Recheck()
			for _, c := range s.clients((*client).vanished) {
				c.cut()
			}
		case <-s.ended:
			return
		}
	}
}

// handle serves one connection. A panic ends it alone.
func (s *Server) handle(conn net.Conn, gate Gate) {
	defer conn.Close()
	defer recovery.Panic(s.cfg.Log, "", func() {})
	c := &client{server: s, conn: conn, gate: gate}
	c.flow = sshflow.New(conn, strangerClaim{c})
	c.ctx, c.end = context.WithCancel(context.Background())
	defer c.cut()
	c.serve()
}

// enter registers a connection that is logged in. It returns false if the server is retired.
func (s *Server) enter(c *client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loops.Retired() {
		return false
	}
	s.open[c] = true
	return true
}

func (s *Server) forget(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}
