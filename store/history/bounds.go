package history

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"boxgate/store/document"
)

// Bounds limit a history. Each line of an existing box keeps the version in force and the last one whatever the bounds, so that a
// history has at most about twice the bytes of the policies themselves beyond its bound. It also keeps its first version, unless
// the total is exceeded without it.
type Bounds struct {
	Versions int   // of a line
	Bytes    int64 // of a line, where each version counts with its whole text
	Total    int64 // in all, in bytes, where each text counts once
	Deleted  int   // lines of deleted boxes, in all
}

// Default are the bounds of a store.
var Default = Bounds{Versions: 1024, Bytes: 8 << 20, Total: 128 << 20, Deleted: 8192}

// totals are the sums over all lines.
type totals struct {
	Bytes   int64 `json:"bytes"`           // of all versions and texts
	Deleted int   `json:"deleted"`         // lines of deleted boxes
	Least   int64 `json:"least,omitempty"` // the bytes that the last removal left, if it could not keep the bound
}

// totalsKey is the key of the totals among the lines. It is the key of no line, as owners are not empty.
var totalsKey = []byte{0}

func (b Book) totals() (t totals, err error) {
	_, err = get(b.Lines, totalsKey, &t)
	return t, err
}

func (b Book) setTotals(t totals) error {
	if t == (totals{}) {
		return b.Lines.Delete(totalsKey)
	}
	_, err := put(b.Lines, totalsKey, t)
	return err
}

// trim removes the oldest versions of a line, except the ones it keeps, until it has at most so many versions and bytes.
// The caller writes the line and the totals.
func (b Book) trim(id ID, l *Line, t *totals, versions int, bytes int64) error {
	for l.Count > versions || l.Bytes > bytes {
		number, ok := b.removable(id, l)
		if !ok {
			return nil
		}
		if err := b.remove(id, l, t, number); err != nil {
			return err
		}
		l.Dropped++
	}
	return nil
}

// removable returns the number of the oldest version that is neither the first one, nor in force, nor the last one, which
// may be staged.
func (b Book) removable(id ID, l *Line) (number uint64, ok bool) {
	prefix, c := id.Key(), b.Versions.Cursor()
	c.Seek(prefix)
	for key, _ := c.Next(); bytes.HasPrefix(key, prefix); key, _ = c.Next() {
		if number := binary.BigEndian.Uint64(key[len(prefix):]); number != l.Current && number != l.Last {
			return number, true
		}
	}
	return 0, false
}

// Delete notes that a box was deleted. Its lines stay until [Book.Expire].
func (b Book) Delete(owner string, at time.Time) error {
	t, err := b.totals()
	if err != nil {
		return err
	}
	for _, id := range []ID{{owner, Policy}, {owner, Headers}} {
		l, known, err := b.Find(id)
		if err != nil {
			return err
		}
		if !known || !l.Deleted.IsZero() {
			continue
		}
		l.Deleted = at
		t.Deleted++
		if _, err := put(b.Lines, id.Key(), l); err != nil {
			return err
		}
	}
	return b.relieve(t)
}

// Expire removes at most most of the lines of boxes that were deleted before a time, and returns their number.
func (b Book) Expire(before time.Time, most int) (n int, err error) {
	lines, err := b.all()
	if err != nil {
		return 0, err
	}
	t, err := b.totals()
	if err != nil {
		return 0, err
	}
	for _, l := range lines {
		if n < most && !l.Deleted.IsZero() && l.Deleted.Before(before) {
			if err := b.drop(l, &t); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, b.setTotals(t)
}

// identified is a line with its ID.
type identified struct {
	ID
	Line
}

// All returns the IDs of all lines.
func (b Book) All() (ids []ID, err error) {
	list, err := b.all()
	for _, l := range list {
		ids = append(ids, l.ID)
	}
	return ids, err
}

func (b Book) all() (list []identified, err error) {
	err = b.Lines.Each(nil, func(key, data []byte) error {
		if bytes.Equal(key, totalsKey) {
			return nil
		}
		id, err := parseKey(key)
		if err != nil {
			return err
		}
		var l Line
		if err := document.Decode(data, &l); err != nil {
			return fmt.Errorf("the history of %s is damaged: %w", id.Owner, err)
		}
		list = append(list, identified{id, l})
		return nil
	})
	return list, err
}

// parseKey parses the key of a line.
func parseKey(key []byte) (ID, error) {
	owner, kind, ok := bytes.Cut(key, []byte{0})
	if !ok || len(owner) == 0 || len(kind) != 1 {
		return ID{}, fmt.Errorf("the history has no line at %q", key)
	}
	return ID{string(owner), Kind(kind[0])}, nil
}

// drop removes a line with all its versions. The caller writes the totals.
func (b Book) drop(l identified, t *totals) error {
	prefix := l.Key()
	for _, key := range b.Versions.Keys(prefix) {
		if err := b.remove(l.ID, &l.Line, t, binary.BigEndian.Uint64(key[len(prefix):])); err != nil {
			return err
		}
	}
	if !l.Deleted.IsZero() {
		t.Deleted--
	}
	return b.Lines.Delete(prefix)
}

// relieve writes the totals, and if they exceed the bounds, removes versions until they are a tenth below: always of the API
// key that has the most, first the lines of its deleted boxes, then the older half of its largest line, and if that is not
// enough, the first versions of its lines. So a key that
// fills the history loses its own versions, and not the versions of others: no key with less than an equal part of the total loses any,
// even if the versions that each line keeps exceed it. Then the next removal waits until another tenth was added.
func (b Book) relieve(t totals) error {
	if t.Bytes <= max(b.Bounds.Total, t.Least+b.Bounds.Total/10) && t.Deleted <= b.Bounds.Deleted {
		return b.setTotals(t)
	}
	list, err := b.all()
	if err != nil {
		return err
	}
	if err := b.recharge(list, t.Bytes); err != nil {
		return err
	}
	shares := sharesOf(list)
	for t.Deleted > b.Bounds.Deleted/10*9 {
		s := slices.MaxFunc(shares, func(a, b *share) int { return cmp.Compare(len(a.deleted), len(b.deleted)) })
		if len(s.deleted) == 0 {
			break
		}
		if err := b.dropOldest(s, &t); err != nil {
			return err
		}
	}
	if err := b.relieveBytes(shares, &t, b.halve); err != nil {
		return err
	}
	if t.Bytes > b.Bounds.Total { // the versions that each line keeps exceed it
		if list, err = b.all(); err != nil {
			return err
		}
		if err := b.relieveBytes(sharesOf(list), &t, b.removeFirst); err != nil {
			return err
		}
	}
	if t.Least = 0; t.Bytes > b.Bounds.Total {
		t.Least = t.Bytes
	}
	return b.setTotals(t)
}

// recharge charges each text to the first line that has it, if the charges differ from the total by more than a tenth of it. They
// differ when a line that was charged for a text, or that removed it last, no longer exists: other lines may then have texts that no
// key is charged for, or a charge for texts that were removed.
func (b Book) recharge(list []identified, total int64) error {
	sum := int64(0)
	for _, l := range list {
		sum += l.Stored
	}
	if max(sum-total, total-sum) <= total/10 {
		return nil
	}
	charged := map[string]bool{}
	for i := range list {
		l := &list[i]
		l.Stored = 0
		err := b.Versions.Each(l.Key(), func(_, data []byte) error {
			var v Version
			if err := document.DecodeOwn(data, &v); err != nil {
				return err
			}
			if l.Stored += int64(len(data)); !charged[v.Digest] {
				charged[v.Digest], l.Stored = true, l.Stored+v.Size
			}
			return nil
		})
		if err != nil {
			return err
		}
		if _, err := put(b.Lines, l.Key(), l.Line); err != nil {
			return err
		}
	}
	return nil
}

// relieveBytes is the part of relieve about bytes. shorten removes versions of the largest line of a share.
func (b Book) relieveBytes(shares []*share, t *totals, shorten func(*share, *totals) error) (err error) {
	least := b.Bounds.Total / 10 * 9 / int64(max(1, len(shares)))
	for t.Bytes > b.Bounds.Total/10*9 && len(shares) > 0 {
		s := slices.MaxFunc(shares, func(a, b *share) int { return cmp.Compare(a.bytes, b.bytes) })
		switch {
		case s.bytes <= least:
			return nil
		case len(s.deleted) > 0:
			err = b.dropOldest(s, t)
		case len(s.lines) > 0:
			err = shorten(s, t)
		default:
			shares = slices.DeleteFunc(shares, func(of *share) bool { return of == s })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// share is the part of a history that one API key is charged for.
type share struct {
	bytes   int64
	deleted []identified // lines of deleted boxes, the latest first
	lines   []identified // others that may have versions to remove, the largest last
}

func sharesOf(list []identified) (shares []*share) {
	holders := map[string]*share{}
	for _, l := range list {
		s := holders[l.Holder]
		if s == nil {
			s = &share{}
			holders[l.Holder], shares = s, append(shares, s)
		}
		s.bytes += l.Stored
		if l.Deleted.IsZero() {
			s.lines = append(s.lines, l)
		} else {
			s.deleted = append(s.deleted, l)
		}
	}
	for _, s := range shares {
		slices.SortFunc(s.deleted, func(a, b identified) int { return b.Deleted.Compare(a.Deleted) })
		slices.SortFunc(s.lines, func(a, b identified) int { return cmp.Compare(a.Stored, b.Stored) })
	}
	return shares
}

// dropOldest removes the line of the box that was deleted first.
func (b Book) dropOldest(s *share, t *totals) error {
	l := s.deleted[len(s.deleted)-1]
	s.deleted, s.bytes = s.deleted[:len(s.deleted)-1], s.bytes-l.Stored
	return b.drop(l, t)
}

// halve removes the older half of the largest line. A line without removable versions is no longer considered.
func (b Book) halve(s *share, t *totals) error {
	last := len(s.lines) - 1
	l := s.lines[last]
	count, before := l.Count, l.Stored
	if err := b.trim(l.ID, &l.Line, t, l.Count/2, l.Bytes/2); err != nil {
		return err
	}
	if l.Count == count {
		s.lines = s.lines[:last]
		return nil
	}
	s.bytes -= before - l.Stored
	s.lines[last] = l
	slices.SortFunc(s.lines, func(a, b identified) int { return cmp.Compare(a.Stored, b.Stored) })
	_, err := put(b.Lines, l.Key(), l.Line)
	return err
}

// removeFirst removes the first version of the largest line, unless it is in force or the last one. The line is then no longer
// considered.
func (b Book) removeFirst(s *share, t *totals) error {
	last := len(s.lines) - 1
	l := s.lines[last]
	s.lines = s.lines[:last]
	prefix := l.Key()
	key, _ := b.Versions.Cursor().Seek(prefix)
	if !bytes.HasPrefix(key, prefix) {
		return nil
	}
	number := binary.BigEndian.Uint64(key[len(prefix):])
	if number == l.Current || number == l.Last {
		return nil
	}
	before := l.Stored
	if err := b.remove(l.ID, &l.Line, t, number); err != nil {
		return err
	}
	l.Dropped++
	s.bytes -= before - l.Stored
	_, err := put(b.Lines, prefix, l.Line)
	return err
}
