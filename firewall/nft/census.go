package nft

import (
	"errors"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The kernel counts connections by listing them, and walks the list for the first new connection in each clock tick. A box
// therefore has many short lists that take its connections in turn, and one for connections whose list is full. The
// capacities add up to the limit, so a box never has more connections, and a burst fills all of them. As connections end
// unevenly, some lists are full before others, and a connection in the last list keeps its place in the first one too: a
// box close to its limit may be refused a connection while it has up to rest fewer than the limit.

const (
	listCapacity = 64  // about the capacity of a short list
	mostLists    = 251 // a prime, so that regular traffic uses all lists evenly
)

// divideLimit divides the limit into lists of a capacity each, and the capacity of the last list. For a low limit, and with
// OneList, there is only the last one.
func (c *Config) divideLimit() (lists, each, rest uint32) {
	const spare = 50 // at least one connection of so many goes to the last list
	limit := c.FlowLimit
	lists = min(limit/listCapacity|1, mostLists)
	if lists < 16 || c.OneList {
		return 0, 0, limit
	}
	each = (limit - limit/spare) / lists
	return lists, each, limit - lists*each
}

// moreThan matches if a connection is one too many. It adds the connection to the list either way.
func moreThan(limit uint32) *expr.Connlimit {
	return &expr.Connlimit{Count: limit, Flags: expr.NFT_CONNLIMIT_F_INV}
}

// unconfirmed matches the first packet of a connection. Later packets may be "new" too, until an answer arrives, and the
// kernel would count each of them as another connection.
func unconfirmed() match {
	const confirmed = 1 << 3 // IPS_CONFIRMED (linux/netfilter/nf_conntrack_common.h)
	return match{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: r1},
		&expr.Bitwise{SourceRegister: r1, DestRegister: r1, Len: 4, Mask: native32(confirmed), Xor: native32(0)},
		eq(native32(0)),
	}
}

// census is where the kernel lists the connections of boxes, see divideLimit. It removes a list when its last connection is
// gone, so there is no timeout (and cannot be).
type census struct {
	lists *nftables.Set // per interface and number
	rest  *nftables.Set // per interface
}

// census creates the sets of a census.
func (t *txn) census(name string) census {
	return census{
		lists: t.set(&nftables.Set{Name: name + "_lists", Dynamic: true, Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeMark)}),
		rest: t.set(&nftables.Set{Name: name, Dynamic: true, KeyType: nftables.TypeIFName,
			KeyByteOrder: binaryutil.NativeEndian}),
	}
}

// HasNumgen reports whether the kernel can choose a list for each connection, see Config.OneList. It asks the kernel, which
// loads the module nft_numgen if there is one, by a rule in a table that the same transaction deletes.
func HasNumgen(ns netns.NsHandle) (bool, error) {
	return supports(ns, &expr.Numgen{Register: r1, Modulus: mostLists, Type: unix.NFT_NG_INCREMENTAL})
}

// supports reports whether the kernel has an expression.
func supports(ns netns.NsHandle, e expr.Any) (bool, error) {
	k := &conn{ns: ns}
	err := k.transact(func(t *txn) {
		t.table = &nftables.Table{Family: nftables.TableFamilyINet, Name: "boxgate_probe"}
		t.c.AddTable(t.table)
		t.chain("probe")
		t.rule("probe", "", match{e})
		t.c.DelTable(t.table)
	}, func(*nftables.Conn) (bool, error) { return false, nil })
	if k.changes != nil {
		_ = k.changes.CloseLasting()
	}
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}
