package nft

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

// txn collects changes of the table for one atomic transaction.
type txn struct {
	c      *nftables.Conn
	table  *nftables.Table
	nextID uint32
	errs   []error
}

func (t *txn) fail(err error) {
	if err != nil {
		t.errs = append(t.errs, err)
	}
}

// rule appends a rule made of the pieces to the chain. nft shows the comment, which may have at most 128 bytes.
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

// chain creates the chain if it is missing, and empties it.
func (t *txn) chain(name string) {
	c := t.c.AddChain(&nftables.Chain{Name: name, Table: t.table})
	t.c.FlushChain(c)
}

// hook creates a base chain and empties it. Its policy is accept, because it also sees packets that are not from boxes.
func (t *txn) hook(name string, kind nftables.ChainType, num *nftables.ChainHook, priority nftables.ChainPriority) {
	policy := nftables.ChainPolicyAccept
	c := t.c.AddChain(&nftables.Chain{Name: name, Table: t.table, Type: kind, Hooknum: num, Priority: &priority,
		Policy: &policy})
	t.c.FlushChain(c)
}

// set creates a named set if it is missing.
func (t *txn) set(s *nftables.Set) *nftables.Set {
	t.nextID++
	s.ID, s.Table = t.nextID, t.table
	t.fail(t.c.AddSet(s, nil))
	return s
}

// anonymous creates a constant set that belongs to one rule.
func (t *txn) anonymous(key nftables.SetDatatype, elements []nftables.SetElement) *nftables.Set {
	t.nextID++
	s := &nftables.Set{Table: t.table, ID: t.nextID, Name: "__set%d", Anonymous: true, Constant: true, KeyType: key}
	t.fail(t.c.AddSet(s, elements))
	return s
}

// elementsPerMessage keeps a message far below 64 KiB, where the length of a netlink attribute overflows and elements are
// silently lost.
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
