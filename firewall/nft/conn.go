package nft

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/policy/name"
)

// conn manages the connections to nftables in one network namespace.
type conn struct {
	ns      netns.NsHandle
	changes *nftables.Conn // see forChanges; one goroutine at a time
	queries *netlink.Conn  // see forQueries; one goroutine at a time

	portsMu sync.Mutex      // guards ports
	ports   map[uint32]bool // netlink ports of our connections, to recognize our own changes
}

// dial opens a connection to nftables.
func (k *conn) dial() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(int(k.ns)), nftables.WithSockOptions(
		k.recordPort,
		func(c *netlink.Conn) error { return c.SetReadBuffer(namespace.SocketBuffer) },
		func(c *netlink.Conn) error { return c.SetWriteBuffer(namespace.SocketBuffer) }))
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return c, nil
}

// forChanges returns the connection that all changes share. It stays open: closing it makes the kernel wait some 15 ms until it
// has freed the objects that the last transaction replaced.
func (k *conn) forChanges() (*nftables.Conn, error) {
	if k.changes != nil {
		return k.changes, nil
	}
	c, err := k.dial()
	k.changes = c
	return c, err
}

// forQueries returns the connection for requests that the nftables library does not support.
func (k *conn) forQueries() (*netlink.Conn, error) {
	if k.queries != nil {
		return k.queries, nil
	}
	const answer = 32 << 10 // the most that the kernel sends at a time
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(k.ns), MessageBufferSize: answer})
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	k.queries = c
	return c, nil
}

// elementsRequest returns a request for the elements of a set that keys encodes, or for all. The nftables library cannot ask
// for single elements, and decodes all that it receives.
func elementsRequest(set string, flags netlink.HeaderFlags, keys func(*netlink.AttributeEncoder) error) (netlink.Message, error) {
	e := netlink.NewAttributeEncoder()
	e.String(unix.NFTA_SET_ELEM_LIST_TABLE, network.TableName)
	e.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	if keys != nil {
		e.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, keys)
	}
	attrs, err := e.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM, Flags: netlink.Request | flags},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}, err
}

// closeAfterError closes the connection after an error, since it may have unread answers.
func (k *conn) closeAfterError() {
	if k.changes != nil {
		c := k.changes
		k.changes = nil
		go func() { _ = c.CloseLasting() }()
	}
}

// transact runs build and sends the collected changes as one transaction. After an error of the kernel it is unknown
// whether the transaction was committed, so transact calls committed on a new connection and returns nil if that returns
// true.
func (k *conn) transact(build func(*txn), committed func(*nftables.Conn) (bool, error)) error {
	c, err := k.forChanges()
	if err != nil {
		return err
	}
	t := &txn{c: c, table: table()}
	build(t)
	if err := errors.Join(t.errs...); err != nil {
		k.closeAfterError()
		return fmt.Errorf("nftables: %w", err)
	}
	if err = c.Flush(); err == nil {
		return nil
	}
	k.closeAfterError()
	if again, dialErr := k.forChanges(); dialErr == nil {
		if done, readErr := committed(again); readErr == nil && done {
			return nil
		}
	}
	return fmt.Errorf("nftables: %w", err)
}

// isOwn reports whether a netlink port is one of our connections to nftables.
func (k *conn) isOwn(port uint32) bool {
	k.portsMu.Lock()
	defer k.portsMu.Unlock()
	return k.ports[port]
}

// recordPort records a netlink port as ours. There are few connections: a new one is opened only after an error.
func (k *conn) recordPort(c *netlink.Conn) error {
	k.portsMu.Lock()
	defer k.portsMu.Unlock()
	if k.ports == nil {
		k.ports = map[uint32]bool{}
	}
	k.ports[c.PID()] = true
	return nil
}

func table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: network.TableName}
}

// gone reports whether another program has deleted the table.
func gone(c *nftables.Conn) (bool, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	return !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == network.TableName }), err
}

// stamped reports whether a rule of the chain has the comment. A transaction that writes rules writes a unique comment to
// one chain, so finding it proves that the transaction was committed.
func stamped(c *nftables.Conn, chain, comment string) (bool, error) {
	rules, err := c.GetRules(table(), &nftables.Chain{Name: chain, Table: table()})
	if err != nil {
		return false, err
	}
	for _, r := range rules {
		if got, ok := userdata.GetString(r.UserData, userdata.TypeComment); ok && got == comment {
			return true, nil
		}
	}
	return false, nil
}

// Counters reads how many packets the rules have refused, over its own connection.
type Counters struct{ c *nftables.Conn }

// Counters opens a reader.
func (tbl *Table) Counters() (*Counters, error) {
	c, err := tbl.dial()
	if err != nil {
		return nil, err
	}
	return &Counters{c: c}, nil
}

// Close closes the connection.
func (c *Counters) Close() error { return c.c.CloseLasting() }

// Seen returns how many packets from each interface were refused for the reason.
func (c *Counters) Seen(reason name.Reason) (map[string]uint64, error) {
	elements, err := c.c.GetSetElements(&nftables.Set{Table: table(), Name: seenSet(reason), KeyType: nftables.TypeIFName})
	if err != nil {
		return nil, err
	}
	out := map[string]uint64{}
	for _, e := range elements {
		if e.Counter != nil {
			out[unix.ByteSliceToString(e.Key)] = e.Counter.Packets
		}
	}
	return out, nil
}
