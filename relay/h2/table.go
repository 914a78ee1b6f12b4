package h2

import (
	"hash/maphash"

	"golang.org/x/net/http2/hpack"
)

// table is a compression table (RFC 7541, 2.3).
type table struct {
	entries []hpack.HeaderField // the dropped ones, then the others, oldest first
	dropped int
	size    int // as 4.1 counts it
	max     int
}

// at returns the field at an index. The indices of the static table come first, then the entries from the latest on.
func (t *table) at(i uint64) (hpack.HeaderField, bool) {
	if i < uint64(len(static)) {
		return static[i], i > 0
	}
	if i -= uint64(len(static)); i >= uint64(len(t.entries)-t.dropped) {
		return hpack.HeaderField{}, false
	}
	return t.entries[len(t.entries)-1-int(i)], true
}

// add adds a field and drops the oldest ones to make room. A field larger than the table empties it.
func (t *table) add(f hpack.HeaderField) {
	size := int(f.Size())
	if t.shrink(t.max - size); size > t.max {
		return
	}
	if t.dropped > 0 && len(t.entries) == cap(t.entries) {
		n := copy(t.entries, t.entries[t.dropped:])
		clear(t.entries[n:])
		t.entries, t.dropped = t.entries[:n], 0
	}
	t.entries = append(t.entries, f)
	t.size += size
}

// shrink drops the oldest fields until the others have at most some size.
func (t *table) shrink(size int) {
	for t.dropped < len(t.entries) && t.size > size {
		oldest := &t.entries[t.dropped]
		t.size -= int(oldest.Size())
		*oldest = hpack.HeaderField{}
		t.dropped++
	}
}

// static is the static table, from 1 on.
var static = func() (fields [62]hpack.HeaderField) {
	d := hpack.NewDecoder(0, nil)
	for i := 1; i < len(fields); i++ {
		entry, err := d.DecodeFull([]byte{0x80 | byte(i)})
		if err != nil {
			panic(err)
		}
		fields[i] = entry[0]
	}
	return fields
}()

const (
	recentSets  = 32 // a power of two
	recentBytes = 64 // bytes; longer literals are not cached
)

// recent caches literals that do not depend on the table, with their fields. The zero value is an empty cache.
type recent struct {
	sets *[recentSets][2]known // nil until there is one
}

// known is a literal as it was sent, and its field.
type known struct {
	raw   string
	field hpack.HeaderField
}

var recentSeed = maphash.MakeSeed()

func (r *recent) set(raw []byte) *[2]known {
	return &r.sets[maphash.Bytes(recentSeed, raw)%recentSets]
}

// find returns the field of a literal, or nil.
func (r *recent) find(raw []byte) *hpack.HeaderField {
	if r.sets == nil {
		return nil
	}
	set := r.set(raw)
	for i := range set {
		if set[i].raw == string(raw) {
			return &set[i].field
		}
	}
	return nil
}

// add caches a literal instead of the older of the two in its set.
func (r *recent) add(raw []byte, f hpack.HeaderField) {
	if r.sets == nil {
		r.sets = &[recentSets][2]known{}
	}
	set := r.set(raw)
	set[1] = set[0]
	set[0] = known{string(raw), f}
}
