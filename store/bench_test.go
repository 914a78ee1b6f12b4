package store

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/policy"
	"boxgate/store/history"
)

// benchmarkedStore returns a store without fsync, and a box whose policy had versions before.
func benchmarkedStore(b *testing.B, versions int) (*DB, policy.BoxID) {
	b.Helper()
	db, err := Open(Options{Dir: b.TempDir() + "/state"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	db.bolt.NoSync = true
	made, err := db.Boxes.Allocate(Box{ID: "b1", Name: "b", State: "creating"}, pools)
	if err != nil {
		b.Fatal(err)
	}
	for n := range versions {
		setBenchmarked(b, db, made.ID, uint64(n+2))
	}
	b.ResetTimer()
	return db, made.ID
}

// setBenchmarked stages and commits a policy of 20 names that no version had before.
func setBenchmarked(b *testing.B, db *DB, id policy.BoxID, version uint64) {
	b.Helper()
	p := Policy{Version: version, Spec: policy.Spec{Mode: policy.ModeCustom}}
	for n := range 20 {
		p.Spec.AllowedDomains = append(p.Spec.AllowedDomains, fmt.Sprintf("host-%d-%d.example.com", n, version))
	}
	by := history.Origin{At: time.Now(), Cause: history.Replaced, KeyID: "key_0123456789", Key: "ci", Role: "admin", Remote: "192.0.2.1", Call: "PUT /v2/box/{id}/config/network-policy"}
	if err := db.Rules.StagePolicy(id, p, by); err != nil {
		b.Fatal(err)
	}
	if err := db.Rules.CommitPolicy(id); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSetPolicy is the store's part of a change of a policy, without fsync.
func BenchmarkSetPolicy(b *testing.B) {
	db, id := benchmarkedStore(b, 200)
	before := processorTime(b)
	for n := range b.N {
		setBenchmarked(b, db, id, uint64(n+1000))
	}
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// processorTime returns the processor time that the process has used: other programs delay it, but do not count.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkVersions reads a page of a policy with many versions.
func BenchmarkVersions(b *testing.B) {
	db, id := benchmarkedStore(b, 1000)
	for range b.N {
		if list, err := db.History.Versions(history.ID{Owner: string(id), Kind: history.Policy}, 0, 20); err != nil || len(list.Versions) != 20 {
			b.Fatal(len(list.Versions), err)
		}
	}
}
