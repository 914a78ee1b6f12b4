// Package past keeps decisions on disk, within a size and an age, and finds them again after a restart.
//
// What is written comes from a [lines.Writer], which neither waits nor lets anybody wait: a disk that is full or fails loses lines,
// which are counted, and no traffic.
package past

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"boxgate/audit"
	"boxgate/audit/segments"
	"boxgate/policy"
)

// Store keeps lines of decisions in files. It is the sink of one [lines.Writer]; reading is safe meanwhile.
type Store struct {
	files *segments.Files
	size  int64
	age   time.Duration
	next  uint64 // number of the next file
}

// errBatch is a batch that does not fit into the whole store.
var errBatch = errors.New("the history of decisions is smaller than what is to be written")

// Open opens the history of a directory, which it makes if need be. A line that a crash has cut short is removed.
func Open(dir string, size int64, age time.Duration) (*Store, error) {
	files, _, err := segments.Open(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{files: files, size: size, age: age, next: 1}
	if list := files.Segments(); len(list) > 0 {
		s.next = list[len(list)-1].Number + 1
	}
	return s, s.makeRoom(0)
}

// makeRoom removes the oldest files until there is room for n more bytes, and those that are too old.
func (s *Store) makeRoom(n int) error {
	if int64(n) > s.size {
		return errBatch
	}
	if err := s.files.Next(max(s.size/16, 64<<10), min(24*time.Hour, max(s.age/8, time.Minute))); err != nil {
		return err
	}
	for {
		list := s.files.Segments()
		old := len(list) > 1 && time.Since(list[1].Begun) > s.age
		if len(list) == 0 || s.files.Size()+int64(n) <= s.size && !old {
			return nil
		}
		if len(list) == 1 { // the file that is written: it can only go once it is closed
			if err := s.files.Next(0, 0); err != nil {
				return err
			}
		}
		before := len(list)
		if err := s.files.RemoveOldest(); err != nil {
			return err
		}
		if len(s.files.Segments()) == before {
			return nil // within a line
		}
	}
}

// Write implements the sink of a [lines.Writer]: whole lines, or what is left of one after a write that was cut short.
func (s *Store) Write(b []byte) (int, error) {
	if err := s.makeRoom(len(b)); err != nil {
		return 0, err
	}
	n, err := s.files.Write(b, s.next)
	s.next++
	return n, err
}

// TryWrite implements the sink of a [lines.Writer]. It writes nothing: what is urgent for a log is not for the history, and whoever
// decides does not wait for the disk.
func (s *Store) TryWrite([]byte) (int, bool, error) { return 0, false, nil }

// Close closes the files.
func (s *Store) Close() error { return s.files.Close() }

// Release closes the files for good: another process may write them from now on, and a write is an error.
func (s *Store) Release() error { return s.files.Release() }

// Filter selects decisions. The zero value selects all.
type Filter struct {
	Box          policy.BoxID
	Since, Until time.Time // zero: no limit
	Host         string    // the name, or *.name for those below it; "" for every one
	Reason       policy.Reason
	Denied       bool
}

func (f Filter) matches(e *audit.Event) bool {
	return (f.Box == "" || e.Box == f.Box) && !e.Time.Before(f.Since) && (f.Until.IsZero() || e.Time.Before(f.Until)) &&
		(f.Reason == "" || e.Reason == f.Reason) && (!f.Denied || e.Verdict != policy.Allow) && f.names(e)
}

// names reports whether the decision is about the host of the filter: by name, or by address.
func (f Filter) names(e *audit.Event) bool {
	if f.Host == "" || strings.EqualFold(e.Name, f.Host) || e.Addr.IsValid() && e.Addr.String() == f.Host {
		return true
	}
	below, ok := strings.CutPrefix(strings.ToLower(f.Host), "*")
	return ok && len(below) > 1 && strings.HasSuffix(strings.ToLower(e.Name), below)
}

// worthReading leaves out most lines without decoding them: those that lack a text that a match has.
func (f Filter) worthReading(line []byte) bool {
	return (f.Box == "" || bytes.Contains(line, []byte(f.Box))) && (f.Reason == "" || bytes.Contains(line, []byte(f.Reason)))
}

// Search calls do with the decisions that the filter selects, in the order in which they were written. Lines that cannot be read are
// left out.
func (s *Store) Search(ctx context.Context, f Filter, do func(audit.Event) error) error {
	list := s.files.Segments()
	for len(list) > 1 && list[1].Begun.Before(f.Since.Add(-time.Minute)) {
		list = list[1:]
	}
	for _, segment := range list {
		_, err := segment.Read(0, func(line []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			var e audit.Event
			if !f.worthReading(line) || json.Unmarshal(line, &e) != nil || e.Time.IsZero() || !f.matches(&e) {
				return nil //nolint:nilerr // a line that was cut off
			}
			return do(e)
		})
		if err != nil && !errors.Is(err, segments.ErrLine) {
			return err
		}
	}
	return nil
}
