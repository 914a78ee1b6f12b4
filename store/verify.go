package store

import (
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"boxgate/store/document"
	"boxgate/store/layout"
)

// VerifyReport is the result of [DB.Verify].
type VerifyReport struct {
	Documents int      `json:"documents" doc:"number of documents"`
	Problems  []string `json:"problems" doc:"documents that are unreadable or misplaced; empty if the store is intact"`
}

// maxProblems bounds the problems in a report.
const maxProblems = 100

func (r *VerifyReport) problem(format string, args ...any) {
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// Verify reads every document of the store in one transaction: it checks the tag, decodes and decrypts the document,
// and checks that it is stored under the right key. It continues after a problem, and quotes no content.
func (db *DB) Verify() (VerifyReport, error) {
	r := VerifyReport{Problems: []string{}}
	err := db.bolt.View(func(tx *bolt.Tx) error {
		boxes, follow := map[string]Box{}, policyFollowers{map[string]Policy{}, map[string]Policy{}}
		readers := slices.Concat(plainReaders(boxes, follow.read), sealedReaders(db.seal, tx), newerReaders(db.seal, tx), indexReaders(boxes))
		for _, each := range readers {
			table, err := db.table(tx, each.bucket)
			if err != nil {
				r.problem("%s: %v", each.bucket, err)
				continue
			}
			for _, key := range table.Keys(nil) {
				r.Documents++
				value, err := table.Get(key)
				if err == nil {
					err = each.check(key, value)
				}
				if err != nil {
					r.problem("%s, %q: %v", each.bucket, key, err)
				}
			}
		}
		for id, b := range boxes {
			if err := checkComplete(tx, id, b); err != nil {
				r.problem("%v", err)
			}
		}
		for _, p := range follow.problems() {
			r.problem("%s", p)
		}
		if err := db.seal.Check(tx); err != nil {
			r.problem("%v", err)
		}
		return nil
	})
	slices.Sort(r.Problems)
	return r, err
}

// newerReaders check the documents that stores of schema 1 did not have.
func newerReaders(s *document.Sealer, tx *bolt.Tx) []bucketReader {
	return []bucketReader{
		{layout.Snapshots, func(key, value []byte) error {
			var snapshot Snapshot
			if err := s.OpenJSON(tx, layout.Snapshots, string(key), value, &snapshot); err != nil {
				return err
			}
			return checkKey(string(key), snapshot.ID)
		}},
		{layout.Layers, func([]byte, []byte) error { return nil }}, // the key contains everything
	}
}
