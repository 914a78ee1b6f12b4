package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// Pools are the address pools of [Boxes.Allocate]. A family with an invalid prefix gets no addresses.
type Pools struct {
	V4, V6 netip.Prefix
	// Reserved is the number of addresses kept free at the beginning of each pool, including the network address. The
	// box with index i gets address Reserved+i.
	Reserved uint32
	// Max bounds the number of boxes; 0: the size of the pools, at most 65536.
	Max uint32
}

// maxBoxes is the maximum number of boxes on a host: each box has 65536 of the 2^32 user IDs.
const maxBoxes = 1 << 16

// Allocate stores a new box and returns it with the lowest free index and addresses. It ignores those fields of b.
// The errors are [ErrNameTaken], [ErrExhausted], [ErrConflict] for an ID that exists, and [ErrNotFound] for layers that
// no longer exist.
func (db Boxes) Allocate(b Box, pools Pools) (Box, error) {
	if err := checkID(b.ID); err != nil {
		return Box{}, err
	}
	err := db.update(func(tx *transaction) error {
		if tx.Bucket(layout.Boxes).Get([]byte(b.ID)) != nil {
			return fmt.Errorf("box %s: %w", b.ID, ErrConflict)
		}
		if err := assignIndex(tx, &b, pools); err != nil {
			return err
		}
		if err := errors.Join(claimName(tx, b), claimLayers(tx, b)); err != nil {
			return err
		}
		return putBox(tx, b)
	})
	if err != nil {
		return Box{}, err
	}
	return b, nil
}

// assignIndex gives the box the lowest free index whose addresses are free too: the pools may have changed since older
// boxes got theirs.
func assignIndex(tx *transaction, b *Box, pools Pools) error {
	limit := uint32(maxBoxes)
	if pools.Max != 0 {
		limit = min(limit, pools.Max)
	}
	indexes, err := tx.table(layout.Indexes)
	if err != nil {
		return err
	}
	addrs, err := tx.table(layout.Addrs)
	if err != nil {
		return err
	}
	taken := indexes.Cursor()
	used, _ := taken.First()
	for i := range limit {
		if used != nil && binary.BigEndian.Uint32(used) == i {
			used, _ = taken.Next()
			continue
		}
		v4, ok4 := poolAddress(pools.V4, pools.Reserved+i)
		v6, ok6 := poolAddress(pools.V6, pools.Reserved+i)
		if !ok4 || !ok6 {
			break
		}
		if isAssigned(addrs, v4) || isAssigned(addrs, v6) {
			continue
		}
		b.Index, b.V4, b.V6 = i, v4, v6
		for _, a := range []netip.Addr{v4, v6} {
			if !a.IsValid() {
				continue
			}
			if err := addrs.Put(a.AsSlice(), []byte(b.ID)); err != nil {
				return err
			}
		}
		return indexes.Put(binary.BigEndian.AppendUint32(nil, i), []byte(b.ID))
	}
	return ErrExhausted
}

func isAssigned(addrs document.Table, a netip.Addr) bool {
	return a.IsValid() && addrs.Has(a.AsSlice())
}

// poolAddress returns address n of a pool, and whether the pool reaches that far. The last address of an IPv4 pool is its
// broadcast address and never given out. An invalid pool has no addresses and no end.
func poolAddress(pool netip.Prefix, n uint32) (netip.Addr, bool) {
	if !pool.IsValid() {
		return netip.Addr{}, true
	}
	a := pool.Masked().Addr()
	if a.Is4() {
		size := uint64(1) << (32 - pool.Bits())
		if uint64(n)+1 >= size {
			return netip.Addr{}, false
		}
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
		return netip.AddrFrom4(b), true
	}
	b := a.As16()
	low := binary.BigEndian.Uint64(b[8:]) // includes the host part of a pool of 64 bits or less
	if host := 128 - pool.Bits(); host < 64 && uint64(n) >= uint64(1)<<host {
		return netip.Addr{}, false
	}
	binary.BigEndian.PutUint64(b[8:], low+uint64(n))
	return netip.AddrFrom16(b), true
}

// checkID refuses text that is not an ID, because it could be mistaken for another key.
func checkID(id policy.BoxID) error {
	if id == "" || len(id) > 32 {
		return fmt.Errorf("%q is not a box ID", string(id))
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return fmt.Errorf("%q is not a box ID", string(id))
		}
	}
	return nil
}
