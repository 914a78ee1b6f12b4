package report

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
)

// flowTable reads the kernel's table of connections, one after the other: there can be hundreds of thousands. Safe for
// concurrent use.
type flowTable struct {
	ns int

	mu   sync.Mutex
	conn *netlink.Conn // nil after an error: it may have unread answers
}

// openTable opens the table of the namespace.
func openTable(ns int) (*flowTable, error) {
	t := &flowTable{ns: ns}
	return t, t.dial()
}

func (t *flowTable) dial() (err error) {
	if t.conn != nil {
		return nil
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: t.ns})
	if err != nil {
		return err
	}
	if err := c.SetReadBuffer(namespace.SocketBuffer); err != nil {
		_ = c.Close()
		return err
	}
	t.conn = c
	return nil
}

// read passes on the connections that the kernel forwards for boxes, or those of them that have a status.
func (t *flowTable) read(status conntrack.Status, handle func(*conntrack.Flow)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.dial(); err != nil {
		return err
	}
	err := t.dump(status, handle)
	if err != nil {
		c := t.conn
		t.conn = nil
		go func() { _ = c.Close() }() // the kernel makes who closes such a socket wait
	}
	return err
}

func (t *flowTable) dump(status conntrack.Status, handle func(*conntrack.Flow)) error {
	request, err := askForFlows(status)
	if err != nil {
		return err
	}
	if _, err := t.conn.Send(request); err != nil {
		return fmt.Errorf("ask for connections: %w", err)
	}
	for m, err := range t.conn.ReceiveIter() {
		if err != nil {
			return fmt.Errorf("read connections: %w", err)
		}
		if m.Header.Type == ctMessageNew && len(m.Data) >= nfgenmsgLen {
			c := flowIn(m.Data[nfgenmsgLen:])
			handle(&c)
		}
	}
	return nil
}

// askForFlows is the request for all that [flowTable.read] passes on. A kernel that cannot filter answers with more.
func askForFlows(status conntrack.Status) (netlink.Message, error) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Uint32(ctaMark, network.FlowForwarded)
	e.Uint32(ctaMarkMask, network.FlowForwarded)
	if status != 0 {
		e.Uint32(ctaStatus, uint32(status))
	}
	attrs, err := e.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: ctMessageGet, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}, err
}

func (t *flowTable) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil {
		return nil
	}
	return t.conn.Close()
}
