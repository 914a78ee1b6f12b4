package trail

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/audit/segments"
	"boxgate/policy"
)

// Report is the result of [Verify].
type Report struct {
	Entries  int      `json:"entries"`
	First    uint64   `json:"first,omitempty" doc:"seq of the oldest remaining entry"`
	Head     Head     `json:"head" doc:"the last entry; store it elsewhere: a later trail must contain it"`
	Problems []string `json:"problems" doc:"entries that were changed, inserted or removed; empty if the trail is intact"`
}

// maxProblems bounds a report.
const maxProblems = 20

func (r *Report) problem(format string, args ...any) {
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// Verify reads the trail in a directory and checks that each entry is unchanged and follows the previous one, that the
// gateway itself removed all entries missing at the beginning, and that the trail contains known, an earlier head (zero
// value: unknown).
func Verify(dir string, known Head) (Report, error) {
	list, err := segments.List(dir)
	if err != nil {
		return Report{}, err
	}
	r := Report{Problems: []string{}}
	var before Head
	var kept uint64 = 1 // the first entry that the trail claims to keep
	met := known.Seq == 0
	for _, s := range list {
		_, err := s.Read(0, func(line []byte) error {
			e, hash, err := openLine(line)
			if err != nil {
				r.problem("the entry after %d was changed: %v", before.Seq, err)
				return nil
			}
			switch {
			case r.Entries == 0:
				r.First = e.Seq
			case e.Seq != before.Seq+1:
				r.problem("entry %d follows entry %d: entries were taken out, put in, or moved", e.Seq, before.Seq)
			case e.Prev != before.Hash:
				r.problem("entry %d does not continue entry %d: one of them was replaced", e.Seq, before.Seq)
			}
			if e.Kind == Kept {
				if _, _, err := openLine(e.Original.RawMessage); err != nil {
					r.problem("entry %d keeps one that was changed: %v", e.Seq, err)
				}
			}
			if e.Kind == Removed {
				kept = max(kept, e.First)
			}
			if e.Seq == known.Seq && hash != known.Hash {
				r.problem("entry %d differs from the one recorded in the store: the trail was replaced from there or earlier", e.Seq)
			}
			met = met || e.Seq == known.Seq
			before = Head{e.Seq, hash}
			r.Entries++
			return nil
		})
		if err != nil && !isDamaged(err) {
			return r, err
		}
		if err != nil {
			r.problem("a file cannot be read beyond entry %d: %v", before.Seq, err)
		}
	}
	if r.First > kept {
		r.problem("the trail begins with entry %d, but should have all entries from %d on: its beginning was cut off", r.First, kept)
	}
	if !met {
		r.problem("entry %d, which the store has recorded, is missing: the end of the trail was cut off after entry %d", known.Seq, before.Seq)
	}
	r.Head = before
	return r, nil
}

// Filter selects entries. The zero value selects all.
type Filter struct {
	Since time.Time    // at or after this time; zero: no limit
	Until time.Time    // before this time; zero: no limit
	Key   string       // ID or name of the API key; "" for all
	Box   policy.BoxID // "" for all
	// PolicyVersion selects the entry of the change that gave the box this version of its policy. 0: any.
	PolicyVersion uint64
}

func (f Filter) matches(e Entry) bool {
	if e.Kind == Kept {
		e = e.Origin()
	}
	return !e.Time.Before(f.Since) && (f.Until.IsZero() || e.Time.Before(f.Until)) && (f.Key == "" || f.Key == e.KeyID || f.Key == e.Key) && (f.Box == "" || f.Box == e.Box) &&
		(f.PolicyVersion == 0 || f.PolicyVersion == e.PolicyVersion)
}

// Read calls do with the lines of the entries that the filter selects, oldest first. With follow it continues with
// appended entries until ctx ends. It includes lines that were tampered with, and the readable part of a damaged file;
// [Verify] detects both.
func (t *Trail) Read(ctx context.Context, f Filter, follow bool, do func(line []byte) error) error {
	var at uint64 // number of the segment being read
	var offset int64
	for {
		t.mu.Lock()
		more := t.appended
		t.mu.Unlock()
		for _, s := range segmentsSince(t.files.Segments(), f.Since) {
			if s.Number < at {
				continue
			}
			if s.Number > at {
				at, offset = s.Number, 0
			}
			var err error
			offset, err = s.Read(offset, func(line []byte) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				if e, _, err := openLine(line); err == nil && !f.matches(e) {
					return nil
				}
				return do(line)
			})
			if err != nil && !isDamaged(err) {
				return err
			}
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-more:
		}
	}
}

// segmentsSince skips segments that end before a time.
func segmentsSince(list []segments.Segment, since time.Time) []segments.Segment {
	for len(list) > 1 && list[1].Begun.Before(since) {
		list = list[1:]
	}
	return list
}

// isDamaged reports whether an error means that the file itself is damaged, so that reading it again would not help.
func isDamaged(err error) bool {
	return errors.Is(err, segments.ErrLine) || errors.Is(err, unix.EIO)
}

// openError explains why a trail cannot be opened and, if its latest entry cannot be read, what to do. The trail is not
// written then: entries after unreadable ones would not be found, and an entry in their place would hide that they
// existed.
func openError(dir string, err error) error {
	file, ok := errors.AsType[*segments.FileError](err)
	if !ok || !isDamaged(err) {
		return fmt.Errorf("the audit trail in %s: %w", dir, err)
	}
	why := "the disk fails"
	if errors.Is(err, segments.ErrLine) {
		why = "the file was changed by something else"
	}
	return fmt.Errorf("the audit trail in %s cannot be continued, because its latest entries cannot be read: %s (%w). Keep a copy of %s, as much of it as can be read, "+
		"and then rename it to %s: the next start continues with the entry before it, and gateway audit verify reports what is missing",
		dir, why, err, file.Segment.Name(), file.Segment.DamagedName())
}
