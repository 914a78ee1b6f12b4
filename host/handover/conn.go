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

// Variable is the environment variable that tells a process the number of the descriptor of its end of the socket pair.
const Variable = "GATEWAY_HANDOVER_FD"

// Kind is what a message says.
type Kind string

// The kinds of messages, in the order in which they are sent.
const (
	Prepared Kind = "prepared" // to the old process: the new one would start
	Failed   Kind = "failed"   // to the old process: it does not, for the reason in Error
	Yours    Kind = "yours"    // to the new process: the store and the kernel rules are its own
	Serving  Kind = "serving"  // to the old process: the new one serves, too
	Stopped  Kind = "stopped"  // to the new process: the old one accepts and answers nothing new

	CutAll Kind = "cut-all" // to the old process, like all that follow: cut every connection
	Cut    Kind = "cut"     // every connection of Box
	Policy Kind = "policy"  // Spec is in force for Box, with its header rules unchanged
	URL    Kind = "url"     // URL is gone or has other credentials
	URLs   Kind = "urls"    // those of Box are
	Secret Kind = "secret"  // the value of Secret must not be used any longer
	Keys   Kind = "keys"    // the API keys have changed
	Done   Kind = "done"    // to the new process: what it said is in force
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
	// Protected come with Yours: the addresses that connections of boxes are kept from, besides the configuration; none where they
	// are not known.
	Protected []netip.Prefix `json:"protected,omitempty"`
}

// Hello is what the old process says first.
type Hello struct {
	// Sockets name the descriptors that come with it, in their order.
	Sockets []string `json:"sockets"`
	// Config is the text to use in place of the configuration file, if Own is set: that of the old process, whose successor
	// has failed.
	Config []byte `json:"config,omitempty"`
	Own    bool   `json:"own,omitempty"`
	// Fixed are the keys of the configuration that must stay the same, with their values.
	Fixed map[string]string `json:"fixed"`
	// Policies is a digest of the configuration by which connections are judged: what was judged by another is cut.
	Policies  string `json:"policies"`
	DNSPort   uint16 `json:"dns_port"`
	ProxyPort uint16 `json:"proxy_port"`
}

// Conn is one end of the socket pair. Send and Receive may be called at the same time, each by one goroutine.
type Conn struct {
	unix *net.UnixConn
	out  sync.Mutex
	enc  *json.Encoder
	dec  *json.Decoder
}

// Pair makes a socket pair: one end for this process, and the other as a file to be inherited.
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

// NewConn takes over the file of one end.
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

// Close ends the conversation.
func (c *Conn) Close() error { return c.unix.Close() }

// SetDeadline bounds what is sent and received from now on.
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

// Expect waits for a message of a kind. One that says that the other end has failed is an error.
func (c *Conn) Expect(kind Kind) error {
	_, err := c.Await(kind)
	return err
}

// Await is Expect, and returns the message.
func (c *Conn) Await(kind Kind) (Message, error) {
	m, err := c.Receive()
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET):
		err = errors.New("it ended")
	case err != nil:
	case m.Kind == Failed:
		err = errors.New(m.Error)
	case m.Kind != kind:
		err = fmt.Errorf("it says %q in place of %q", m.Kind, kind)
	}
	return m, err
}

// Greet sends the sockets. The descriptors stay the caller's.
func (c *Conn) Greet(h Hello, fds []int) error {
	c.out.Lock()
	defer c.out.Unlock()
	if _, _, err := c.unix.WriteMsgUnix([]byte{'\n'}, unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	return c.enc.Encode(h)
}

// mostSockets is how many descriptors one message can have.
const mostSockets = 253

// Greeted waits for the sockets, which are the caller's to close.
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
