package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
)

// The first packet of a connection that the kernel forwards for a box adds the box's interface to a set, before the
// connection is marked as forwarded. If the set is full, the connection is not marked, and its answers are dropped. After
// erasing a note, the caller must look for connections that it stood for.

// notesSet returns the set of noted interfaces.
func notesSet() *nftables.Set {
	return &nftables.Set{Table: table(), Name: "notes", Dynamic: true, KeyType: nftables.TypeIFName,
		KeyByteOrder: binaryutil.NativeEndian}
}

// addNote adds the interface in register 1 to the set. If that fails it ends the rule.
func addNote(s *nftables.Set) expr.Any {
	return &expr.Dynset{SrcRegKey: r1, SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_ADD}
}

// eraseNote erases the note of an interface. It need not exist.
func (t *txn) eraseNote(link string) {
	key := nftables.SetElement{Key: ifname(link)}
	t.addElements(notesSet(), []nftables.SetElement{key})
	t.deleteElements(notesSet(), key)
}

// EraseNotes erases the notes of interfaces.
func (tbl *Table) EraseNotes(links []string) error {
	return tbl.transact(func(t *txn) {
		for _, link := range links {
			t.eraseNote(link)
		}
	}, func(*nftables.Conn) (bool, error) { return false, nil })
}

// HasNote reports whether a connection was forwarded for the interface since its note was last erased or the table was made.
// It queries a single element, so that the number of boxes does not matter.
func (tbl *Table) HasNote(link string) (bool, error) {
	c, err := tbl.forQueries()
	if err != nil {
		return true, err
	}
	found, err := hasNote(c, link)
	if err == nil && !found {
		// The set has no note either when another program has deleted the notes or the table. In that case notesKeeper is
		// missing as well.
		if found, err = hasNote(c, notesKeeper); err == nil {
			return !found, nil
		}
	}
	if err == nil {
		return true, nil
	}
	tbl.queries = nil
	go func() { _ = c.Close() }()
	return true, fmt.Errorf("nftables: %w", err)
}

// notesKeeper is an element that stays in the set unless another program empties it. No packet of a box comes from
// loopback.
const notesKeeper = "lo"

// hasNote reports whether an interface is in the set.
func hasNote(c *netlink.Conn, link string) (bool, error) {
	request, err := noteRequest(link)
	if err != nil {
		return false, err
	}
	_, err = c.Execute(request)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// noteRequest returns the request for one element, which the nftables library lacks.
func noteRequest(link string) (netlink.Message, error) {
	e := netlink.NewAttributeEncoder()
	e.String(unix.NFTA_SET_ELEM_LIST_TABLE, network.TableName)
	e.String(unix.NFTA_SET_ELEM_LIST_SET, notesSet().Name)
	e.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(e *netlink.AttributeEncoder) error {
		e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
			e.Nested(unix.NFTA_SET_ELEM_KEY, func(e *netlink.AttributeEncoder) error {
				e.Bytes(unix.NFTA_DATA_VALUE, ifname(link))
				return nil
			})
			return nil
		})
		return nil
	})
	attrs, err := e.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM, Flags: netlink.Request},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}, err
}
