package nft

import (
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"boxgate/policy/name"
)

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
