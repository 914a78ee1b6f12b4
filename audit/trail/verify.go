package trail

import (
	"fmt"

	"boxgate/audit/segments"
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
