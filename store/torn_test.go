package store

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/store/history"
	"boxgate/store/layout"
)

const pageSize = 4096

// aroundAWrite returns the file before and after a policy of many domains was committed, and a directory to open it in.
func aroundAWrite(t *testing.T) (dir string, before, after []byte) {
	t.Helper()
	dir = newDir(t)
	db, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	b := allocate(t, db, Box{ID: "b1", Name: "one"})
	spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"old.example.com"}}
	write := func(version uint64) {
		if err := db.Rules.StagePolicy(b.ID, Policy{Spec: spec, Version: version}, history.Origin{}); err != nil {
			t.Fatal(err)
		}
		if err := db.Rules.CommitPolicy(b.ID); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	path := filepath.Join(dir, layout.FileDB)
	spec.AllowedDomains = []string{"new.example.com"}
	for range 600 {
		spec.AllowedDomains = append(spec.AllowedDomains, "filler.example.com")
	}
	if err := db.Rules.StagePolicy(b.ID, Policy{Spec: spec, Version: 2}, history.Origin{}); err != nil {
		t.Fatal(err)
	}
	if before, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	if err := db.Rules.CommitPolicy(b.ID); err != nil { // the last write: one transaction
		t.Fatal(err)
	}
	if after, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, before, after
}

// versionIn opens a file as the store of dir and returns the version of its policy. An error means that it was refused.
func versionIn(t *testing.T, dir string, file []byte) (uint64, error) {
	t.Helper()
	other := filepath.Join(t.TempDir(), "state")
	key, err := os.ReadFile(filepath.Join(dir, layout.FileSecret))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{layout.FileDB: file, layout.FileSecret: key} {
		if err := os.MkdirAll(other, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(other, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	db, err := Open(Options{Dir: other})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	if _, err := db.Boxes.All(); err != nil {
		return 0, err
	}
	p, err := db.Rules.Policy("b1")
	if err != nil {
		return 0, err
	}
	want := map[uint64]string{1: "old.example.com", 2: "new.example.com"}
	if len(p.Spec.AllowedDomains) == 0 || p.Spec.AllowedDomains[0] != want[p.Version] {
		t.Errorf("version %d has the domains %.60q", p.Version, p.Spec.AllowedDomains)
	}
	return p.Version, nil
}

// changedPages returns the pages that differ, separated into data pages and headers (0 and 1).
func changedPages(before, after []byte) (data, meta []int) {
	for at := 0; at < len(after); at += pageSize {
		if at+pageSize <= len(before) && bytes.Equal(before[at:at+pageSize], after[at:at+pageSize]) {
			continue
		}
		if at < 2*pageSize {
			meta = append(meta, at)
		} else {
			data = append(data, at)
		}
	}
	return data, meta
}

// The power fails during the last write: any part of its pages has reached the disk, but not the header. The old state
// is intact. A partially written header is refused: a disk writes it atomically, so the change was acknowledged and
// then damaged, and a box that it closed must not be open again.
func TestPowerLossDuringTheLastWriteLeavesTheOldState(t *testing.T) {
	t.Parallel()
	dir, before, after := aroundAWrite(t)
	data, meta := changedPages(before, after)
	if len(data) < 3 || len(meta) != 1 {
		t.Fatalf("the write changed pages %v and headers %v", data, meta)
	}
	for written := 0; written <= len(data); written++ {
		file := bytes.Clone(before)
		if written > 0 && len(file) < len(after) {
			file = append(file, make([]byte, len(after)-len(file))...)
		}
		for _, at := range data[:written] {
			copy(file[at:at+pageSize], after[at:])
		}
		if written > 0 { // the last of them only half
			clear(file[data[written-1]+pageSize/2 : data[written-1]+pageSize])
		}
		if v, err := versionIn(t, dir, file); v != 1 {
			t.Errorf("%d of %d pages written: version %d %v", written, len(data), v, err)
		}
	}
	for cut := 16; cut < 80; cut += 8 {
		file := bytes.Clone(after)
		copy(file[meta[0]+cut:meta[0]+pageSize], before[meta[0]+cut:])
		if bytes.Equal(file[meta[0]:meta[0]+pageSize], before[meta[0]:meta[0]+pageSize]) {
			continue
		}
		if v, err := versionIn(t, dir, file); v != 2 && (err == nil || !strings.Contains(err.Error(), "last change may be lost")) {
			t.Errorf("header torn at %d: version %d %v", cut, v, err)
		}
	}
	if v, err := versionIn(t, dir, after); v != 2 {
		t.Errorf("all written: version %d %v", v, err)
	}
}

// A page is garbled or the file is truncated by a faulty disk. The store is unchanged, or refused with an error
// message; it never opens with other content, and never crashes the process.
func TestDamagedPagesAreRefused(t *testing.T) {
	t.Parallel()
	dir, before, after := aroundAWrite(t)
	refused := 0
	try := func(what string, at int, file []byte) {
		v, err := versionIn(t, dir, file)
		if err != nil {
			refused++
		} else if v == 0 {
			t.Errorf("%s at %d: version %d", what, at, v)
		}
	}
	for at := 0; at < len(after); at += pageSize {
		end := min(at+pageSize, len(after))
		zero, noise := bytes.Clone(after), bytes.Clone(after)
		clear(zero[at:end])
		for i := at; i < end; i++ {
			noise[i] ^= byte(i*7 + 13)
		}
		try("zeros", at, zero)
		try("noise", at, noise)
		if at > 0 {
			try("cut", at, bytes.Clone(after[:at]))
		}
	}
	if data, _ := changedPages(before, after); refused < len(data) {
		t.Errorf("only %d damages were noticed", refused)
	}
}
