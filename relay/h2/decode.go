package h2

import (
	"errors"
	"hash/maphash"

	"golang.org/x/net/http2/hpack"
)

// TableSize is the size of the compression tables that peers may use: the default (RFC 7541, 4.2).
const TableSize = 4096

var (
	errMore    = errors.New("incomplete") // never returned to users
	errDecode  = errors.New("a header block that cannot be decoded")
	errTooLong = errors.New("a string in a header block is too long")
)

// Decoder decodes the header blocks of one direction of a connection (RFC 7541). Package hpack decodes the Huffman strings.
// The table is this package's, as it is never searched, and so is a cache of recent literals, as many peers repeat the same
// ones. Create it with [NewDecoder]. Not safe for concurrent use.
type Decoder struct {
	longest int // string
	emit    func(f hpack.HeaderField, known bool) (sound bool)
	table   table
	recent  recent
	begun   bool   // something of the block was decoded
	pending []byte // an incomplete representation at the end of the last fragment
}

// NewDecoder returns a decoder that calls emit for each field. emit reports whether the field is well-formed. known is set if
// emit accepted the same literal before. No string may be longer than longest.
func NewDecoder(longest int, emit func(f hpack.HeaderField, known bool) (sound bool)) *Decoder {
	return &Decoder{longest: longest, emit: emit, table: table{max: TableSize}}
}

// Write decodes a fragment of a header block.
func (d *Decoder) Write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if len(d.pending) > 0 {
		d.pending = append(d.pending, p...)
		p = d.pending
	}
	for len(p) > 0 {
		n, err := d.representation(p)
		if errors.Is(err, errMore) {
			return d.keep(p)
		}
		if err != nil {
			return err
		}
		d.begun = true
		p = p[n:]
	}
	d.pending = d.pending[:0]
	return nil
}

// keep keeps an incomplete representation: at most a name and a value.
func (d *Decoder) keep(p []byte) error {
	const lengths = 8 // bytes of the length of a string, at most
	if len(p) > 2*(d.longest+lengths) {
		return errTooLong
	}
	d.pending = append(d.pending[:0], p...)
	return nil
}

// Close ends a header block.
func (d *Decoder) Close() error {
	whole := len(d.pending) == 0
	d.pending, d.begun = nil, false
	if !whole {
		return errDecode
	}
	return nil
}

// representation decodes the representation at the beginning of p and returns its length.
func (d *Decoder) representation(p []byte) (n int, err error) {
	switch b := p[0]; {
	case b&0x80 != 0:
		return d.indexed(p)
	case b&0xc0 == 0x40:
		return d.literal(p, 6)
	case b&0xe0 == 0x20:
		return d.resize(p)
	}
	return d.literal(p, 4)
}

// indexed decodes an index (6.1).
func (d *Decoder) indexed(p []byte) (int, error) {
	i, n, err := integer(p, 7)
	if err != nil {
		return 0, err
	}
	f, ok := d.table.at(i)
	if !ok {
		return 0, errDecode
	}
	d.emit(f, false)
	return n, nil
}

// literal decodes a literal, whose name may be an index with a prefix of some bits (6.2).
func (d *Decoder) literal(p []byte, bits int) (int, error) {
	i, n, err := integer(p, bits)
	if err != nil {
		return 0, err
	}
	named, ok := d.table.at(i)
	if i > 0 && !ok {
		return 0, errDecode
	}
	var name, value text
	if i == 0 {
		if name, n, err = d.text(p, n); err != nil {
			return 0, err
		}
	}
	if value, n, err = d.text(p, n); err != nil {
		return 0, err
	}
	raw, never := p[:n], p[0]&0xf0 == 0x10
	lasting := !never && n <= recentBytes && i < uint64(len(static))
	if lasting {
		if f := d.recent.find(raw); f != nil {
			d.add(*f, bits)
			d.emit(*f, true)
			return n, nil
		}
	}
	f := hpack.HeaderField{Name: named.Name}
	if i == 0 {
		if f.Name, err = name.decode(d.longest); err != nil {
			return 0, err
		}
	}
	if f.Value, err = value.decode(d.longest); err != nil {
		return 0, err
	}
	d.add(f, bits)
	f.Sensitive = never
	if d.emit(f, false) && lasting {
		d.recent.add(raw, f)
	}
	return n, nil
}

// add adds the field of a literal to the table, if the literal is one with incremental indexing.
func (d *Decoder) add(f hpack.HeaderField, bits int) {
	if bits == 6 {
		d.table.add(f)
	}
}

// resize changes the size of the table (6.3). A change must come first in a block, unless the table is empty.
func (d *Decoder) resize(p []byte) (int, error) {
	if d.begun && d.table.size > 0 {
		return 0, errDecode
	}
	size, n, err := integer(p, 5)
	if err != nil {
		return 0, err
	}
	if size > TableSize {
		return 0, errDecode
	}
	d.table.max = int(size)
	d.table.shrink(d.table.max)
	return n, nil
}

// text is a string as it was sent.
type text struct {
	raw     []byte
	huffman bool
}

// text returns the string that begins at n in p, and where it ends.
func (d *Decoder) text(p []byte, n int) (text, int, error) {
	if n == len(p) {
		return text{}, 0, errMore
	}
	length, m, err := integer(p[n:], 7)
	if err != nil {
		return text{}, 0, err
	}
	if length > uint64(d.longest) {
		return text{}, 0, errTooLong
	}
	start := n + m
	end := start + int(length)
	if end > len(p) {
		return text{}, 0, errMore
	}
	return text{p[start:end], p[n]&0x80 != 0}, end, nil
}

func (t text) decode(longest int) (string, error) {
	if !t.huffman {
		return string(t.raw), nil
	}
	s, err := hpack.HuffmanDecodeToString(t.raw)
	if err == nil && len(s) > longest {
		err = errTooLong
	}
	return s, err
}

const integerMax = 9 // bytes behind the prefix: it cannot overflow

// integer decodes an integer with a prefix of some bits, and returns its length (5.1).
func integer(p []byte, bits int) (i uint64, n int, err error) {
	limit := uint64(1)<<bits - 1
	if i = uint64(p[0]) & limit; i < limit {
		return i, 1, nil
	}
	for n = 1; n < len(p); n++ {
		if i += uint64(p[n]&0x7f) << (7 * (n - 1)); p[n] < 0x80 {
			return i, n + 1, nil
		}
		if n == integerMax {
			return 0, 0, errDecode
		}
	}
	return 0, 0, errMore
}

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
