package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// Variable is the environment variable with the descriptor number of a process's end of the socket pair.
const Variable = "GATEWAY_HANDOVER_FD"

// Kind is the kind of a message.
type Kind string

// The kinds of messages, in the order in which they are sent. The old process is the predecessor, the new one the
// successor.
const (
	Prepared Kind = "prepared" // to the old process: the new one is ready to start
	Failed   Kind = "failed"   // to the old process: the new one cannot start; Error has the reason
	Yours    Kind = "yours"    // to the new process: it now owns the store and the kernel rules
	Serving  Kind = "serving"  // to the old process: the new one serves too
	Stopped  Kind = "stopped"  // to the new process: the old one has stopped accepting connections and queries

	CutAll  Kind = "cut-all" // to the old process, like all following orders: cut every connection
	Cut     Kind = "cut"     // cut every connection of Box
	Policy  Kind = "policy"  // apply the policy Spec to Box; its header rules are unchanged
	URL     Kind = "url"     // URL was deleted or its credentials changed
	URLs    Kind = "urls"    // the same for all URLs of Box
	Secret  Kind = "secret"  // the value Secret must not be used any longer
	Keys    Kind = "keys"    // an API key has changed
	Traffic Kind = "traffic" // answer with the traffic of remote boxes; only if Hello has Traffic, because older processes cut everything
	Done    Kind = "done"    // to the new process: the order was executed
)

// Message is one message.
type Message struct {
	Kind    Kind            `json:"kind"`
	Error   string          `json:"error,omitempty"`
	Box     policy.BoxID    `json:"box,omitempty"`
	Spec    json.RawMessage `json:"spec,omitempty"`
	Version uint64          `json:"version,omitempty"`
	URL     string          `json:"url,omitempty"`
	Secret  string          `json:"secret,omitempty"`
	APIKey  string          `json:"api_key,omitempty"` // the ID of the key that has changed, with Keys; empty: any
	// Protected is set with Yours: the ranges protected from boxes in addition to the configured ones, empty if unknown.
	Protected []netip.Prefix `json:"protected,omitempty"`
	// Traffic is set with Done, after Traffic: the traffic of remote boxes since the new process owns the store.
	Traffic map[policy.BoxID]Bytes `json:"traffic,omitempty"`
}

// Bytes is traffic to a box and from it.
type Bytes struct {
	In  uint64 `json:"in,omitempty"`
	Out uint64 `json:"out,omitempty"`
}

// Hello is the first message of the old process.
type Hello struct {
	// Sockets has the names of the accompanying descriptors, in their order.
	Sockets []string `json:"sockets"`
	// Config replaces the configuration file if Own is set. It is the old process's own configuration, for a restart
	// after its successor has failed.
	Config []byte `json:"config,omitempty"`
	Own    bool   `json:"own,omitempty"`
	// Fixed has the configuration values that must not change.
	Fixed map[string]string `json:"fixed"`
	// Policies is a digest of the configuration that connections are judged by. If the new process's differs, the
	// connections are cut.
	Policies  string `json:"policies"`
	DNSPort   uint16 `json:"dns_port"`
	ProxyPort uint16 `json:"proxy_port"`
	// Traffic: the old process understands the order Traffic.
	Traffic bool `json:"traffic,omitempty"`
}

// Conn is one end of the socket pair. One goroutine may send while another receives.
type Conn struct {
	unix *net.UnixConn
	out  sync.Mutex
	enc  *json.Encoder
	dec  *json.Decoder
}

// Pair makes a socket pair: one end for this process, and the other as a file to pass to the new process.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "handover")
	c, err := NewConn(os.NewFile(uintptr(fds[0]), "handover"))
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return c, theirs, nil
}

// NewConn returns a Conn for the file of one end, which it closes.
func NewConn(f *os.File) (*Conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("socket pair: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("socket pair: not of the family unix"), c.Close())
	}
	return &Conn{unix: u, enc: json.NewEncoder(u), dec: json.NewDecoder(u)}, nil
}

// Peer returns the ID of the process that made the pair.
func (c *Conn) Peer() (pid int, err error) {
	raw, err := c.unix.SyscallConn()
	if err != nil {
		return 0, err
	}
	var made *unix.Ucred
	ctlErr := raw.Control(func(fd uintptr) { made, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(ctlErr, err); err != nil {
		return 0, fmt.Errorf("socket pair: %w", err)
	}
	return int(made.Pid), nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.unix.Close() }

// SetDeadline sets the deadline for sending and receiving.
func (c *Conn) SetDeadline(t time.Time) error { return c.unix.SetDeadline(t) }

// Send sends a message.
func (c *Conn) Send(m any) error {
	c.out.Lock()
	defer c.out.Unlock()
	return c.enc.Encode(m)
}

// Receive waits for the next message.
func (c *Conn) Receive() (m Message, err error) {
	err = c.dec.Decode(&m)
	return m, err
}

// Expect waits for a message of a kind. It returns an error if the other end reports a failure.
func (c *Conn) Expect(kind Kind) error {
	_, err := c.Await(kind)
	return err
}

// Await is like Expect, but also returns the message.
func (c *Conn) Await(kind Kind) (Message, error) {
	m, err := c.Receive()
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET):
		err = errors.New("it ended")
	case err != nil:
	case m.Kind == Failed:
		err = errors.New(m.Error)
	case m.Kind != kind:
		err = fmt.Errorf("unexpected message %q, expected %q", m.Kind, kind)
	}
	return m, err
}

// Greet sends the hello message with the descriptors of the sockets, which it does not close.
func (c *Conn) Greet(h Hello, fds []int) error {
	c.out.Lock()
	defer c.out.Unlock()
	if _, _, err := c.unix.WriteMsgUnix([]byte{'\n'}, unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	return c.enc.Encode(h)
}

// mostSockets is the kernel's limit of descriptors in one message (SCM_MAX_FD).
const mostSockets = 253

// Greeted receives the hello message and the sockets, which the caller must close.
func (c *Conn) Greeted() (Hello, map[string]*os.File, error) {
	first, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4*mostSockets))
	_, n, _, _, err := c.unix.ReadMsgUnix(first, rights)
	if err != nil {
		return Hello{}, nil, err
	}
	var fds []int
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	for _, m := range messages {
		got, parseErr := unix.ParseUnixRights(&m)
		fds, err = append(fds, got...), errors.Join(err, parseErr)
	}
	var h Hello
	if err = errors.Join(err, c.dec.Decode(&h)); err == nil && len(fds) != len(h.Sockets) {
		err = fmt.Errorf("%d sockets came for %d names", len(fds), len(h.Sockets))
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return Hello{}, nil, err
	}
	files := map[string]*os.File{}
	for i, fd := range fds {
		files[h.Sockets[i]] = os.NewFile(uintptr(fd), h.Sockets[i])
	}
	return h, files, nil
}
