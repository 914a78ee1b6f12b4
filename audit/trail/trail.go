// Package trail keeps the audit trail of the admin API: who changed what. Entries are appended to files, each with the
// hash of the previous one, so that [Verify] detects an entry that was changed, inserted or removed. An entry is
// durable before [Trail.Append] returns.
//
// A chain alone does not reveal that its end was cut off. Its head is therefore stored elsewhere from time to time
// ([Trail.Head]), and the trail is compared with it.
package trail

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/audit/segments"
)

// Options bound a trail.
type Options struct {
	Size int64         // of all files, in bytes
	Age  time.Duration // maximum age of entries; 0: no limit
}

// Head identifies the last entry of a trail.
type Head struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// Trail is an audit trail. Safe for concurrent use; only one process may append to it.
type Trail struct {
	opts  Options
	files *segments.Files

	mu         sync.Mutex
	head       Head
	appended   chan struct{}    // closed when an entry is appended
	ownerBytes map[string]int64 // bytes of each owner; nil: not counted yet
	processed  int              // number of lines of the oldest file that an earlier, failed removal has already processed
	unanswered map[uint64]Entry // calls without an answer
	answered   map[uint64]bool  // calls that Release has answered
	writeErr   error            // part of an entry could not be removed: writes fail until the trail is opened again

	syncing sync.Mutex
	synced  uint64 // the last entry that is durable
}

// Open opens the trail in a directory, which it creates if needed, and appends a Start entry with the note.
func Open(dir string, opts Options, note string) (*Trail, error) {
	files, cut, err := segments.Open(dir)
	if err != nil {
		return nil, openError(dir, err)
	}
	files.Preallocate(reservedBytes)
	t := &Trail{opts: opts, files: files, appended: make(chan struct{}), unanswered: map[uint64]Entry{}, answered: map[uint64]bool{}}
	if t.head, err = lastOf(files.Segments()); err != nil {
		return nil, errors.Join(openError(dir, err), files.Close())
	}
	if cut {
		note += "; an entry that was not complete is gone, what it was about was not answered"
	}
	if _, err := t.Append(Entry{Kind: Start, Note: note}); err != nil {
		return nil, fmt.Errorf("the audit trail in %s cannot be written: %w", dir, err)
	}
	return t, nil
}

// reservedBytes is the disk space in bytes that the trail preallocates: a few thousand entries. Without it no policy
// could be tightened and no box deleted while something else fills the disk.
const reservedBytes = 2 << 20

// lastOf reads the last valid entry. The chain continues from it; finding faults in entries is left to Verify.
func lastOf(list []segments.Segment) (head Head, err error) {
	for i := len(list) - 1; i >= 0 && head.Seq == 0; i-- {
		_, err := list[i].Read(0, func(line []byte) error {
			if e, hash, err := openLine(line); err == nil {
				head = Head{e.Seq, hash}
			}
			return nil
		})
		if err != nil {
			return Head{}, &segments.FileError{Segment: list[i], Err: err}
		}
	}
	return head, nil
}

// Append numbers an entry, writes it, and returns its number once it is durable; 0 for the answer to a call that
// [Trail.Release] has answered. An entry without a time gets the current one. If writing fails, no part of the entry
// stays.
func (t *Trail) Append(e Entry) (uint64, error) {
	seq, err := t.write(e)
	if err != nil {
		return 0, err
	}
	return seq, t.sync(seq)
}

// AppendAll appends entries like Append, and makes them durable together. It returns the number of the first.
func (t *Trail) AppendAll(list []Entry) (first uint64, err error) {
	if len(list) == 0 {
		return 0, nil
	}
	var last uint64
	for _, e := range list {
		if last, err = t.write(e); err != nil || last == 0 {
			return 0, err // 0 without an error: Release has answered the call
		}
		if first == 0 {
			first = last
		}
	}
	return first, t.sync(last)
}

func (t *Trail) write(e Entry) (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Kind == Answer {
		delete(t.unanswered, e.Call)
		if t.answered[e.Call] {
			delete(t.answered, e.Call)
			return 0, nil
		}
	}
	if t.writeErr != nil {
		return 0, t.writeErr
	}
	if err := t.rotateLocked(); err != nil {
		return 0, err
	}
	seq, err := t.writeLocked(e)
	if err == nil && e.Kind == Call {
		t.unanswered[seq] = e
	}
	return seq, err
}

func (t *Trail) writeLocked(e Entry) (uint64, error) {
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	e.Seq, e.Prev = t.head.Seq+1, t.head.Hash
	line, hash, err := e.seal()
	if err != nil {
		return 0, err
	}
	if n, err := t.files.Write(line, e.Seq); err != nil {
		if undone := t.files.Undo(n); undone != nil {
			t.writeErr = fmt.Errorf("%w; and what was written of it stays: %w", err, undone)
			return 0, t.writeErr
		}
		return 0, err
	}
	if t.ownerBytes != nil {
		t.ownerBytes[owner(line)] += int64(len(line))
	}
	t.head = Head{e.Seq, hash}
	close(t.appended)
	t.appended = make(chan struct{})
	return e.Seq, nil
}

// rotateLocked begins a file when the last one is full or a day old, and removes files that are too many or too old. It
// removes at most the present number of files, so it ends even if all of their entries are kept.
func (t *Trail) rotateLocked() error {
	for range len(t.files.Segments()) + 1 {
		if err := t.files.Rotate(max(t.opts.Size/16, 4096), 24*time.Hour); err != nil {
			return err
		}
		list := t.files.Segments()
		over := len(list) > 2 && (t.files.Size() > t.opts.Size || t.opts.Age > 0 && time.Since(list[1].Begun) > t.opts.Age)
		if !over {
			return nil
		}
		if err := t.removeLocked(list[0], list[1].Number); err != nil {
			return err
		}
	}
	return nil
}

// sync makes an entry durable, along with others written so far.
func (t *Trail) sync(seq uint64) error {
	t.syncing.Lock()
	defer t.syncing.Unlock()
	if t.synced >= seq {
		return nil
	}
	latest := t.Head().Seq
	if err := t.files.Sync(); err != nil {
		return err
	}
	t.synced = latest
	return nil
}

// Head returns the last entry.
func (t *Trail) Head() Head {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.head
}

// Close closes the files.
func (t *Trail) Close() error { return t.files.Close() }

// noteReplaced is the outcome of a call that continues in a process that no longer writes the trail.
const noteReplaced = "the outcome is unknown: the gateway was replaced by another process while the call went on in the one before"

// Release closes the trail for good: another process may write it from now on. Unfinished calls get an answer with
// noteReplaced, if it can be written; appending their own answer is then a no-op without error. Appending any other
// entry fails.
func (t *Trail) Release() error {
	t.mu.Lock()
	for _, call := range slices.Sorted(maps.Keys(t.unanswered)) {
		e := t.unanswered[call]
		e.Kind, e.Call, e.Note, e.Time = Answer, call, noteReplaced, time.Time{}
		if _, err := t.writeLocked(e); err == nil {
			t.answered[call] = true
		}
	}
	clear(t.unanswered)
	t.mu.Unlock()
	return t.files.Release()
}

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
