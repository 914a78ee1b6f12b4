package trail

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"boxgate/audit/segments"
)

// Entries of keys that are within their share of the trail outlive the removal of an old file. Otherwise one key could
// displace the entries of all others by calling often.

// gatewayOwner is the owner of entries without a call.
const gatewayOwner = "the gateway"

// owner returns the owner of a line: the ID of an API key, or "" for calls without a valid key. No other text of an
// entry can be mistaken for the ID, because quotes in it are escaped.
func owner(line []byte) string {
	if bytes.Contains(line, []byte(`"kind":"start"`)) || bytes.Contains(line, []byte(`"kind":"removed"`)) {
		return gatewayOwner
	}
	_, rest, ok := bytes.Cut(line, []byte(`,"key_id":"`))
	switch {
	case ok:
	case bytes.Contains(line, []byte(`"kind":"policy"`)):
		return gatewayOwner // temporary entries of a version that did not record who gave them
	default:
		return ""
	}
	id, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(id)
}

// countLocked adds up the bytes of each owner. It runs once, before the first file is removed.
func (t *Trail) countLocked() error {
	if t.ownerBytes != nil {
		return nil
	}
	held := map[string]int64{}
	for _, s := range t.files.Segments() {
		if _, err := s.Read(0, func(line []byte) error {
			held[owner(line)] += int64(len(line)) + 1
			return nil
		}); err != nil && !isDamaged(err) {
			return err
		}
	}
	t.ownerBytes = held
	return nil
}

// removeLocked removes the oldest file. Before that, its entries of keys within their share are written again, as
// [Kept]. If the disk is full the file is removed anyway, because a full trail would block every change. For the same
// reason a damaged file is set aside.
func (t *Trail) removeLocked(oldest segments.Segment, next uint64) (err error) {
	if err := t.countLocked(); err != nil {
		return err
	}
	defer func() {
		if err != nil { // the file stays, with wrong counts
			t.ownerBytes = nil
		}
	}()
	most := segments.Share(slices.Collect(maps.Values(t.ownerBytes)), t.opts.Size/2)
	over, full, n := map[string]bool{}, false, 0
	_, err = oldest.Read(0, func(line []byte) error {
		by := owner(line)
		t.ownerBytes[by] -= int64(len(line)) + 1
		if n++; n <= t.processed || full {
			return nil
		}
		if t.ownerBytes[by]+int64(len(line)) >= most {
			over[by] = true
		} else if e, ok := t.keptEntry(line); ok {
			if _, err := t.writeLocked(e); err != nil {
				full = true
				return nil //nolint:nilerr // the disk is full: the rest is not kept either
			}
		}
		t.processed = n
		return nil
	})
	if err != nil && !isDamaged(err) {
		return err
	}
	note, drop := removalNote(over, full), t.files.RemoveOldest
	if err != nil {
		note, drop = strings.TrimPrefix(note+"; not all could be read, and "+oldest.DamagedName()+" is set aside", "; "), t.files.SetAsideOldest
	}
	if _, err := t.writeLocked(Entry{Kind: Removed, First: next, Note: note}); err != nil {
		return err
	}
	if err := t.files.Sync(); err != nil {
		return err
	}
	if err := drop(); err != nil {
		return err
	}
	if t.processed = 0; err != nil {
		t.ownerBytes = nil // unreadable lines were not subtracted
	}
	return nil
}

// keptEntry returns the Kept entry for a line; false if the entry is too old, was tampered with, or is about a removal.
func (t *Trail) keptEntry(line []byte) (Entry, bool) {
	e, _, err := openLine(line)
	if err == nil && e.Kind == Kept {
		line = e.Original.RawMessage
		e, _, err = openLine(line)
	}
	if err != nil || e.Kind == Removed || t.opts.Age > 0 && time.Since(e.Time) > t.opts.Age {
		return Entry{}, false
	}
	return Entry{Kind: Kept, Original: Change{json.RawMessage(bytes.Clone(line))}}, true
}

// removalNote describes whose entries are not kept.
func removalNote(over map[string]bool, full bool) string {
	const named = 8
	names := slices.Sorted(maps.Keys(over))
	for i, name := range names {
		if name == "" {
			names[i] = "calls without a valid key"
		}
	}
	note := ""
	if len(names) > 0 {
		note = "with more than their share: " + strings.Join(names[:min(len(names), named)], ", ")
	}
	if full {
		note = strings.TrimPrefix(note+"; others because the disk is full", "; ")
	}
	return note
}
