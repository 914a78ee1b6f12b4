// Package archive keeps decisions on disk, within a size and an age, and finds them again after a restart.
//
// The size is divided into shares: decisions about a box within its share outlive floods of other boxes
// ([Store.moveOldest]). Dropped decisions are recorded, so that a reader can find out from when on the history is
// complete ([Store.CompleteSince]).
//
// Lines come from a [lines.Writer], which never blocks its callers: a disk that is full or fails loses lines, which are
// counted, but does not affect traffic.
package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/audit"
	"boxgate/audit/segments"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Store keeps lines of decisions in files: the latest in main, older ones in kept. It is the sink of one
// [lines.Writer], and safe for concurrent readers.
type Store struct {
	main, kept   *segments.Files
	size         int64
	age          time.Duration
	next         uint64                   // number of the next file
	amounts      map[policy.BoxID]*amount // nil: not counted; used only by the writer
	completeness completeness

	moving   sync.RWMutex // held while lines are moved from main to kept
	released atomic.Bool

	// CheckSpace returns an error if the disk cannot take n more bytes without using its reserve. nil: no reserve.
	CheckSpace func(n int64) error
	// grantedBytes is the number of bytes that may be written until then without calling CheckSpace again; used only by the
	// writer.
	grantedBytes int64
	grantedUntil time.Time
}

// CheckSpace is called for this many bytes at a time, and at least this often.
const (
	roomAhead = 1 << 20
	roomEvery = 200 * time.Millisecond
)

// errBatch is returned for a batch that exceeds the size of the whole store.
var errBatch = errors.New("the history of decisions is smaller than what is to be written")

// keptDir is the directory of kept, below that of the history.
const keptDir = "kept"

// Open opens the history in a directory, which it creates if needed. It removes an incomplete line at the end, and the
// copy of a file that a crash has interrupted.
func Open(dir string, size int64, age time.Duration) (*Store, error) {
	main, _, err := segments.Open(dir)
	if err != nil {
		return nil, err
	}
	kept, _, err := segments.Open(filepath.Join(dir, keptDir))
	if err != nil {
		return nil, errors.Join(err, main.Close())
	}
	s := &Store{main: main, kept: kept, size: size, age: age, next: 1}
	if err := s.recoverMove(filepath.Join(dir, keptDir, wholeFile)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if list := s.files(); len(list) > 0 {
		s.next = list[len(list)-1].Number + 1
	}
	s.next = max(s.next, s.completeness.moved+1)
	return s, s.makeRoom(0)
}

// files returns all segments, oldest first.
func (s *Store) files() []segments.Segment { return append(s.kept.Segments(), s.main.Segments()...) }

// Write implements [lines.Sink]. b is whole lines, or the rest of one after a short write. Long batches are written in
// pieces, so that files have similar sizes.
func (s *Store) Write(b []byte) (written int, err error) {
	for len(b) > 0 {
		piece := b
		if most := int(max(s.size/32, 1)); len(b) > most {
			if end := bytes.IndexByte(b[most:], '\n'); end >= 0 {
				piece = b[:most+end+1]
			}
		}
		n, err := s.writePiece(piece)
		written += n
		if err != nil {
			return written, err
		}
		b = b[n:]
	}
	return written, nil
}

func (s *Store) writePiece(b []byte) (int, error) {
	if s.released.Load() {
		return 0, os.ErrClosed
	}
	if err := s.requestRoom(int64(len(b))); err != nil {
		return 0, err
	}
	if err := s.makeRoom(len(b)); err != nil {
		return 0, err
	}
	n, err := s.main.Write(b, s.next)
	s.next++
	if err != nil {
		s.amounts = nil // part of a line may have been written
	}
	s.count(b[:n])
	return n, err
}

// requestRoom calls CheckSpace for n more bytes. It requests roomAhead more at a time, because a call costs as much as
// writing a few lines; if that much is not available, it calls CheckSpace each time.
func (s *Store) requestRoom(n int64) error {
	if s.CheckSpace == nil {
		return nil
	}
	if s.grantedBytes -= n; s.grantedBytes >= 0 && time.Now().Before(s.grantedUntil) {
		return nil
	}
	s.grantedBytes = 0
	if s.CheckSpace(n+roomAhead) == nil {
		s.grantedBytes, s.grantedUntil = roomAhead, time.Now().Add(roomEvery)
		return nil
	}
	return s.CheckSpace(n)
}

// TryWrite implements [lines.Sink]. It never writes: the history is not urgent, and a decision must not wait for the
// disk.
func (s *Store) TryWrite([]byte) (int, bool, error) { return 0, false, nil }

// Close closes the files.
func (s *Store) Close() error { return errors.Join(s.main.Close(), s.kept.Close()) }

// Release closes the files for good: another process may write them from now on, and Write fails.
func (s *Store) Release() error {
	s.released.Store(true)
	return errors.Join(s.main.Release(), s.kept.Release())
}

// CompleteSince returns the time since when no decision about a box is missing; the empty ID stands for all boxes. Earlier
// decisions may be present too.
func (s *Store) CompleteSince(box policy.BoxID) time.Time { return s.completeness.completeSince(box) }

// RecordLoss records that a decision about a box could not be kept. It does not wait for the disk.
func (s *Store) RecordLoss(box policy.BoxID, at time.Time) {
	s.completeness.addLosses(map[policy.BoxID]time.Time{box: at})
}

// Filter selects decisions. The zero value selects all.
type Filter struct {
	Box          policy.BoxID
	Since, Until time.Time // zero: no limit
	Host         string    // the name, or *.name for its subdomains; "" for all
	Reason       name.Reason
	Denied       bool
}

func (f Filter) matches(e *audit.Event) bool {
	return (f.Box == "" || e.Box == f.Box) && !e.Time.Before(f.Since) && (f.Until.IsZero() || e.Time.Before(f.Until)) &&
		(f.Reason == "" || e.Reason == f.Reason) && (!f.Denied || e.Verdict != policy.Allow) && f.names(e)
}

// names reports whether the decision is about the filter's host, by name or by address.
func (f Filter) names(e *audit.Event) bool {
	if f.Host == "" || strings.EqualFold(e.Name, f.Host) || e.Addr.IsValid() && e.Addr.String() == f.Host {
		return true
	}
	below, ok := strings.CutPrefix(strings.ToLower(f.Host), "*")
	return ok && len(below) > 1 && strings.HasSuffix(strings.ToLower(e.Name), below)
}

// worthReading reports whether a line can match, without decoding it: it must contain the box and the reason of the filter.
func (f Filter) worthReading(line []byte) bool {
	return (f.Box == "" || bytes.Contains(line, []byte(f.Box))) && (f.Reason == "" || bytes.Contains(line, []byte(f.Reason)))
}

// Search calls do with the decisions that the filter selects, in the order in which they were written. Unreadable lines
// are skipped.
func (s *Store) Search(ctx context.Context, f Filter, do func(audit.Event) error) error {
	s.moving.RLock()
	kept, main := s.kept.Segments(), s.main.Segments()
	s.moving.RUnlock()
	each := func(line []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		var e audit.Event
		if !f.worthReading(line) || json.Unmarshal(line, &e) != nil || e.Time.IsZero() || !f.matches(&e) {
			return nil //nolint:nilerr // a truncated line
		}
		return do(e)
	}
	oldest := ^uint64(0) // of main; parts of kept from this number on are copies
	if len(main) > 0 {
		oldest = main[0].Number
	}
	list := append(kept, main...)
	for i, segment := range list {
		if i+1 < len(list) && list[i+1].Begun.Before(f.Since.Add(-time.Minute)) {
			continue
		}
		var err error
		if i < len(kept) {
			err = readParts(segment, func(part uint64) bool { return part < oldest }, each)
		} else if _, err = segment.ReadExisting(0, each); errors.Is(err, os.ErrNotExist) {
			err = s.readMoved(segment.Number, each)
		}
		if err != nil && !errors.Is(err, segments.ErrLine) {
			return err
		}
	}
	return nil
}

// readMoved reads the part of kept that was copied from a segment.
func (s *Store) readMoved(number uint64, each func(line []byte) error) error {
	for _, segment := range s.kept.Segments() {
		if err := readParts(segment, func(part uint64) bool { return part == number }, each); err != nil {
			return err
		}
	}
	return nil
}
