package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/layout"
	"boxgate/store/pages"
	"boxgate/store/private"
)

// Check finds problems that would keep [Open] from opening the store, without changing anything. A store that is open
// in another process is fine, and so is a missing one that may be created.
func Check(o Options) error {
	if err := private.CheckDir(o.Dir); errors.Is(err, os.ErrNotExist) {
		return nil // created along with the store
	} else if err != nil {
		return err
	}
	path := filepath.Join(o.Dir, layout.FileDB)
	if missing, err := checkFile(o, path); err != nil || missing {
		return err
	}
	b, err := pages.Open(path, bolt.Options{ReadOnly: true, Timeout: cmp.Or(o.LockTimeout, time.Second)})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the store %s cannot be opened: %w", path, err)
	}
	return errors.Join(o.checkOpen(b, path), b.Close())
}

// checkFile reports whether the store is missing, or returns why the file cannot be a store.
func checkFile(o Options, path string) (missing bool, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return true, checkLost(o, path)
	case err != nil:
		return false, err
	case info.Size() == 0:
		return false, emptyStoreError(o, path)
	}
	return false, private.Check(path, info)
}

// checkOpen checks a store that is open for reading: its key, its layout and its documents.
func (o Options) checkOpen(b *bolt.DB, path string) error {
	keyFile := filepath.Join(o.Dir, layout.FileSecret)
	if _, err := os.Lstat(keyFile); errors.Is(err, os.ErrNotExist) {
		if _, err := os.Lstat(keyFile + layout.NewSuffix); err == nil {
			return nil // of an interrupted first start, which the next one completes
		}
	}
	k, err := openKey(b, o.Dir, cmp.Or(o.Passphrase.Reveal(), os.Getenv(o.PassphraseEnv)), o.PassphraseEnv, path)
	if err != nil {
		return err
	}
	defer clear(k.content)
	version, err := schemaOf(b)
	if err != nil {
		return fmt.Errorf("the store %s: %w", path, err)
	}
	if err := tooNew(path, max(version, k.schema)); err != nil {
		return err
	}
	if version < layout.SchemaTagged {
		return nil // tagged by the next Open
	}
	s := document.NewSealer()
	if err := s.AddKey(k.wrapped, k.key); err != nil {
		return err
	}
	if err := b.View(s.Check); err != nil {
		return fmt.Errorf("the store %s: %w; %w", path, err, pages.ErrDamaged)
	}
	return nil
}

// VerifyReport is the result of [DB.Verify].
type VerifyReport struct {
	Documents int      `json:"documents" doc:"number of documents"`
	Problems  []string `json:"problems" doc:"documents that are unreadable or misplaced; empty if the store is intact"`

	// HistoryLost is set by [Restore] if the history of policies since the backup could not be read from the replaced store.
	HistoryLost bool `json:"history_lost,omitempty"`
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
		readers := slices.Concat(plainReaders(boxes, follow.read), sealedReaders(db.seal, tx), newerReaders(db.seal, tx), checkHistory(), indexReaders(boxes), []bucketReader{{layout.Models, decodeThen(checkModels(boxes))}})
		for _, each := range readers {
			table, err := db.seal.Table(tx, each.bucket)
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
		{layout.Approvals, func(key, value []byte) error {
			var a Approval
			err := s.OpenJSON(tx, layout.Approvals, string(key), value, &a)
			return errors.Join(err, checkKey(string(key), string(approvalKey(a.Box, a.ID))))
		}},
		{layout.Layers, func([]byte, []byte) error { return nil }}, // the key contains everything
	}
}

// bucketReader checks the documents of one bucket.
type bucketReader struct {
	bucket []byte
	check  func(key, value []byte) error
}

// checkAll reads every document of a store of schema 1, where damage is visible only in the documents: each must be complete
// and well-formed, stored under the right key, and accompanied by its related documents.
func checkAll(s *document.Sealer, tx *bolt.Tx) error {
	boxes := map[string]Box{}
	for _, r := range slices.Concat(plainReaders(boxes, checkPolicy), sealedReaders(s, tx), indexReaders(boxes)) {
		bucket := tx.Bucket(r.bucket)
		if bucket == nil {
			return fmt.Errorf("it has no %s", r.bucket)
		}
		if err := bucket.ForEach(r.check); err != nil {
			return fmt.Errorf("%s: %w", r.bucket, err)
		}
	}
	for id, b := range boxes {
		if err := checkComplete(tx, id, b); err != nil {
			return err
		}
	}
	return nil
}

// plainReaders check documents that are not encrypted, and collect the boxes.
func plainReaders(boxes map[string]Box, policy func(key string, p Policy) error) []bucketReader {
	return []bucketReader{
		{layout.Boxes, decodeThen(func(key string, b Box) error {
			boxes[key] = b
			return checkKey(key, string(b.ID))
		})},
		{layout.Policies, decodeThen(policy)},
		{layout.Usage, decodeThen(func(string, Usage) error { return nil })},
		{layout.APIKeys, decodeThen(func(key string, k APIKey) error { return checkKey(key, string(k.Hash[:])) })},
	}
}

// sealedReaders check documents that are encrypted in full or in part.
func sealedReaders(s *document.Sealer, tx *bolt.Tx) []bucketReader {
	return []bucketReader{
		{layout.Secrets, func(key, value []byte) error {
			return s.OpenJSON(tx, layout.Secrets, string(key), value, new(sealedBoxFields))
		}},
		{layout.Headers, func(key, value []byte) error {
			return s.OpenJSON(tx, layout.Headers, string(key), value, new(headersRecord))
		}},
		{layout.Staged, func(key, value []byte) error {
			if !bytes.HasPrefix(key, []byte(stagedHeaders)) {
				return decodeThen(checkPolicy)(key, value)
			}
			return s.OpenJSON(tx, layout.Staged, string(key), value, new(headersRecord))
		}},
		{layout.URLs, decodeThen(func(key string, u urlRecord) error {
			if err := checkKey(key, string(urlKey(u.Box, u.Port))); err != nil || u.Sealed == nil {
				return err
			}
			return s.OpenJSON(tx, layout.URLs, key, u.Sealed, new([]byte))
		})},
		{layout.Settings, func(key, value []byte) error {
			var stored map[string]string
			err := s.OpenJSON(tx, layout.Settings, string(key), value, &stored)
			return errors.Join(err, checkKeySecret(string(key), stored))
		}},
		{layout.Schedules, func(key, value []byte) error {
			var sch Schedule
			err := s.OpenJSON(tx, layout.Schedules, string(key), value, &sch)
			return errors.Join(err, checkKey(string(key), string(scheduleKey(sch.Box, sch.ID))))
		}},
		{layout.CAs, decodeThen(func(key string, rec caRecord) error {
			return s.OpenJSON(tx, layout.CAs, key, rec.Key, new(string))
		})},
	}
}

// indexReaders check the indexes of the boxes, which must have been collected.
func indexReaders(boxes map[string]Box) []bucketReader {
	return []bucketReader{
		{layout.Names, func(key, value []byte) error { return checkKey(string(key), boxes[string(value)].Name) }},
		{layout.Indexes, func(key, value []byte) error {
			return checkKey(string(key), string(binary.BigEndian.AppendUint32(nil, boxes[string(value)].Index)))
		}},
		{layout.Addrs, func(key, value []byte) error {
			a, _ := netip.AddrFromSlice(key)
			if b := boxes[string(value)]; b.V4 != a && b.V6 != a {
				return fmt.Errorf("%s is not an address of box %s", a, value)
			}
			return nil
		}},
	}
}

// decodeThen decodes a document for a check.
func decodeThen[T any](check func(key string, document T) error) func(key, value []byte) error {
	return func(key, value []byte) error {
		var v T
		if err := document.Decode(value, &v); err != nil {
			return err
		}
		return check(string(key), v)
	}
}

func checkKey(key, want string) error {
	if key != want {
		return fmt.Errorf("the document at %q belongs at %q", key, want)
	}
	return nil
}

func checkPolicy(_ string, p Policy) error {
	_, err := policy.Compile(p.Spec, policy.Options{Version: p.Version})
	return err
}

// checkComplete requires the documents that every box has from the beginning, and its policy once it has run.
func checkComplete(tx *bolt.Tx, id string, b Box) error {
	wants := map[string]string{string(layout.Secrets): id, string(layout.Indexes): string(binary.BigEndian.AppendUint32(nil, b.Index))}
	if b.Name != "" {
		wants[string(layout.Names)] = b.Name
	}
	if !slices.Contains([]string{"", "creating", "deleted"}, strings.ToLower(b.State)) {
		wants[string(layout.Policies)] = id
	}
	for bucket, key := range wants {
		if tx.Bucket([]byte(bucket)).Get([]byte(key)) == nil {
			return fmt.Errorf("box %s has no document in %s", id, bucket)
		}
	}
	return nil
}
