package firewall

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
)

// socketBuffer is what a transaction may need at most: the kernel queues an acknowledgement for every message before
// the first is read, and answers ENOBUFS when they do not fit, though it has committed. It is a limit, not memory.
const socketBuffer = 64 << 20

// txn collects changes of the table that the kernel makes all at once or not at all.
type txn struct {
	c      *nftables.Conn
	table  *nftables.Table
	nextID uint32
	errs   []error
}

// dial opens a connection to nftables.
func (f *Firewall) dial() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(int(f.ns)), nftables.WithSockOptions(
		f.remember,
		func(c *netlink.Conn) error { return c.SetReadBuffer(socketBuffer) },
		func(c *netlink.Conn) error { return c.SetWriteBuffer(socketBuffer) }))
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return c, nil
}

// connection returns the connection that all work under mu shares. It stays open: closing one makes the kernel wait
// until it has freed what the last transaction replaced, some 15 ms.
func (f *Firewall) connection() (*nftables.Conn, error) {
	if f.nft != nil {
		return f.nft, nil
	}
	c, err := f.dial()
	f.nft = c
	return c, err
}

// dropConnection forgets the connection after an error: it may hold answers nobody read.
func (f *Firewall) dropConnection() {
	if f.nft != nil {
		c := f.nft
		f.nft = nil
		go func() { _ = c.CloseLasting() }()
	}
}

// transact runs build and sends what it collected as one transaction. An error of the kernel does not tell whether it
// has committed, so committed is asked on a new connection, and its answer counts. mu is held.
func (f *Firewall) transact(build func(*txn), committed func(*nftables.Conn) (bool, error)) error {
	c, err := f.connection()
	if err != nil {
		return err
	}
	t := &txn{c: c, table: table()}
	build(t)
	if err := errors.Join(t.errs...); err != nil {
		f.dropConnection()
		return fmt.Errorf("nftables: %w", err)
	}
	if err = c.Flush(); err == nil {
		return nil
	}
	f.dropConnection()
	if again, dialErr := f.connection(); dialErr == nil {
		if done, readErr := committed(again); readErr == nil && done {
			return nil
		}
	}
	return fmt.Errorf("nftables: %w", err)
}

func table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
}

func (t *txn) fail(err error) {
	if err != nil {
		t.errs = append(t.errs, err)
	}
}

// rule appends a rule made of the pieces to the chain. The comment is shown by nft; at most 128 bytes.
func (t *txn) rule(chain, comment string, pieces ...match) {
	var all []expr.Any
	for _, p := range pieces {
		all = append(all, p...)
	}
	r := &nftables.Rule{Table: t.table, Chain: &nftables.Chain{Name: chain, Table: t.table}, Exprs: all}
	if comment != "" {
		r.UserData = userdata.AppendString(nil, userdata.TypeComment, comment)
	}
	t.c.AddRule(r)
}

// chain makes the chain if it is missing, and empties it.
func (t *txn) chain(name string) {
	c := t.c.AddChain(&nftables.Chain{Name: name, Table: t.table})
	t.c.FlushChain(c)
}

// hook makes a chain that the kernel calls, and empties it. Its policy accepts: what is not a box's is not ours.
func (t *txn) hook(name string, kind nftables.ChainType, num *nftables.ChainHook, priority nftables.ChainPriority) {
	policy := nftables.ChainPolicyAccept
	c := t.c.AddChain(&nftables.Chain{Name: name, Table: t.table, Type: kind, Hooknum: num, Priority: &priority,
		Policy: &policy})
	t.c.FlushChain(c)
}

// set makes a named set if it is missing.
func (t *txn) set(s *nftables.Set) *nftables.Set {
	t.nextID++
	s.ID, s.Table = t.nextID, t.table
	t.fail(t.c.AddSet(s, nil))
	return s
}

// anonymous makes a constant set that lives in one rule.
func (t *txn) anonymous(key nftables.SetDatatype, elements []nftables.SetElement) *nftables.Set {
	t.nextID++
	s := &nftables.Set{Table: t.table, ID: t.nextID, Name: "__set%d", Anonymous: true, Constant: true, KeyType: key}
	t.fail(t.c.AddSet(s, elements))
	return s
}

// elementsPerMessage keeps a message far below the 64 KiB at which the length of a netlink attribute wraps around and
// elements are lost without an error.
const elementsPerMessage = 400

func (t *txn) addElements(s *nftables.Set, elements []nftables.SetElement) {
	for len(elements) > 0 {
		n := min(len(elements), elementsPerMessage)
		t.fail(t.c.SetAddElements(s, elements[:n]))
		elements = elements[n:]
	}
}

func (t *txn) deleteElements(s *nftables.Set, elements ...nftables.SetElement) {
	if len(elements) > 0 {
		t.fail(t.c.SetDeleteElements(s, elements))
	}
}

// stamped reports whether a rule of the chain carries the comment. A transaction writes a comment of its own to one
// chain, so finding it proves that the whole was committed.
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
