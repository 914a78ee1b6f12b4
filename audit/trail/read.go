package trail

import (
	"context"
	"time"

	"boxgate/audit/segments"
	"boxgate/policy"
)

// Filter selects entries. The zero value selects all.
type Filter struct {
	Since time.Time    // at or after this time; zero: no limit
	Key   string       // ID or name of the API key; "" for all
	Box   policy.BoxID // "" for all
	// PolicyVersion selects the entry of the change that gave the box this version of its policy. 0: any.
	PolicyVersion uint64
}

func (f Filter) matches(e Entry) bool {
	if e.Kind == Kept {
		e = e.Origin()
	}
	return !e.Time.Before(f.Since) && (f.Key == "" || f.Key == e.KeyID || f.Key == e.Key) && (f.Box == "" || f.Box == e.Box) &&
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
