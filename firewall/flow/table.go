package flow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
)

// Table reads the kernel's connection table of one network namespace entry by entry, and removes entries. There can be
// hundreds of thousands. Its netlink socket is opened when first needed and stays open, because the kernel makes closing
// such a socket slow. Safe for concurrent use; calls are serialized.
type Table struct {
	ns netns.NsHandle

	mu     sync.Mutex
	conn   *netlink.Conn // nil until first needed, and after an error, since it may have unread answers
	closed bool
}

// NewTable returns the table of the namespace, which remains owned by the caller.
func NewTable(ns netns.NsHandle) *Table { return &Table{ns: ns} }

// Filter selects the entries whose mark is Mark in the bits of Mask, and whose status has all bits of Status. The zero value
// selects all.
type Filter struct{ Mark, Mask, Status uint32 }

// Each calls handle for each selected entry. handle must not retain it.
func (t *Table) Each(w Filter, handle func(*Entry)) error {
	return t.withConn(func(c *netlink.Conn) error { return eachEntry(c, w, handle) })
}

// Remove removes the selected entries that unwanted returns true for, after it has read all of them. Their connections are
// cut, or begin again with the next packet. If an entry cannot be removed, Remove continues and returns the first error. It
// needs memory of some hundred bytes per removed entry.
func (t *Table) Remove(w Filter, unwanted func(*Entry) bool) error {
	return t.withConn(func(c *netlink.Conn) error {
		var list []netlink.Message
		err := eachEntry(c, w, func(e *Entry) {
			if unwanted(e) {
				list = append(list, e.removal())
			}
		})
		if err != nil {
			return err
		}
		for _, m := range list {
			if _, failed := c.Execute(m); failed != nil && !errors.Is(failed, unix.ENOENT) && err == nil { // ENOENT: it has already ended
				err = failed
			}
		}
		return err
	})
}

// Close closes the connection to the kernel. Later calls of the other methods fail.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.conn == nil {
		return nil
	}
	c := t.conn
	t.conn = nil
	return c.Close()
}

// withConn calls do with the connection to the kernel, and closes that after an error.
func (t *Table) withConn(do func(*netlink.Conn) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	done := false
	defer func() {
		if c := t.conn; c != nil && !done { // also after a panic of a callback
			t.conn = nil
			go func() { _ = c.Close() }()
		}
	}()
	err := t.dial()
	if err == nil {
		err = do(t.conn)
	}
	if err != nil {
		return fmt.Errorf("connection table: %w", err)
	}
	done = true
	return nil
}

func (t *Table) dial() error {
	if t.closed {
		return net.ErrClosed
	}
	if t.conn != nil {
		return nil
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(t.ns)})
	if err != nil {
		return err
	}
	t.conn = c
	return c.SetReadBuffer(namespace.SocketBuffer)
}

// eachEntry reads the table, unless the namespace has no connections: the kernel keeps one table for all namespaces, and would
// scan all its hundreds of thousands of buckets.
func eachEntry(c *netlink.Conn, w Filter, handle func(*Entry)) error {
	if n, err := count(c); err == nil && n == 0 {
		return nil
	}
	request, err := w.request()
	if err != nil {
		return err
	}
	sent, err := c.Send(request)
	if err != nil {
		return err
	}
	for m, err := range c.ReceiveIter() {
		if err != nil {
			return err
		}
		if m.Header.Sequence != sent.Header.Sequence {
			return errors.New("an answer with an unexpected sequence number")
		}
		if m.Header.Type != MessageNew {
			continue
		}
		if e, ok := Parse(m.Data); ok && w.selects(&e) {
			handle(&e)
		}
	}
	return nil
}

// count returns the number of connections in the namespace, including connections that are just beginning. It receives the answer
// itself: the kernel marks it as part of a multipart message, but sends no other part.
func count(c *netlink.Conn) (uint64, error) {
	sent, err := c.Send(netlink.Message{Header: netlink.Header{Type: messageStats, Flags: netlink.Request}, Data: family(unix.AF_UNSPEC)})
	if err != nil {
		return 0, err
	}
	socket, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	b := make([]byte, 4<<10)
	n := 0
	if failed := socket.Control(func(fd uintptr) { n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT) }); failed != nil || err != nil {
		return 0, errors.Join(failed, err)
	}
	var answer netlink.Message
	if err := answer.UnmarshalBinary(b[:n]); err != nil {
		return 0, err
	}
	if answer.Header.Type == messageStats && answer.Header.Sequence == sent.Header.Sequence && len(answer.Data) >= HeaderLen {
		if entries := findAttribute(answer.Data[HeaderLen:], ctaStatsEntries); len(entries) == 4 {
			return parseNumber(entries), nil
		}
	}
	return 0, errors.New("the kernel did not report the number of connections")
}

// selects reports whether w selects the entry. A kernel that cannot filter sends all entries.
func (w Filter) selects(e *Entry) bool {
	return e.Mark&w.Mask == w.Mark && e.Status&w.Status == w.Status
}

func (w Filter) request() (netlink.Message, error) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	if w.Mask != 0 {
		e.Uint32(AttributeMark, w.Mark)
		e.Uint32(ctaMarkMask, w.Mask)
	}
	if w.Status != 0 {
		e.Uint32(ctaStatus, w.Status)
	}
	attrs, err := e.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: messageGet, Flags: netlink.Request | netlink.Dump}, Data: append(family(unix.AF_UNSPEC), attrs...),
	}, err
}

// removal returns the message that removes the entry. A newer connection with the same tuple mostly has another ID and
// stays; if not, its next packet is judged again.
func (e *Entry) removal() netlink.Message {
	data := appendAttribute(family(e.raw.family), ctaTupleOrig|unix.NLA_F_NESTED, e.raw.tuple)
	if e.raw.zone != nil {
		data = appendAttribute(data, ctaZone, e.raw.zone)
	}
	data = appendAttribute(data, ctaID, binary.BigEndian.AppendUint32(nil, e.ID))
	return netlink.Message{Header: netlink.Header{Type: MessageDelete, Flags: netlink.Request | netlink.Acknowledge}, Data: data}
}

// family returns the nfgenmsg header of a message.
func family(f uint8) []byte { return append(make([]byte, 0, 96), f, unix.NFNETLINK_V0, 0, 0) }

// appendAttribute appends an attribute. The value is already in network byte order.
func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}
