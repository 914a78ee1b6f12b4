package records

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit/trail"
)

// TestAnAuditorFollowsTheTrail: a key that is not an admin key gets each entry once, past and new ones, and holds its turn only while it
// reads the past: another reads the trail while it follows.
func TestAnAuditorFollowsTheTrail(t *testing.T) {
	t.Parallel()
	log, err := trail.Open(t.TempDir(), trail.Options{Size: 1 << 20}, "started")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	tr := &Trail{trail: log, searches: newSearches()}
	for range 3 {
		if _, err := log.Append(trail.Entry{Kind: trail.Call, KeyID: "key_1", Route: "GET /"}); err != nil {
			t.Fatal(err)
		}
	}
	as := func(id string) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		t.Cleanup(cancel)
		return api.WithCaller(ctx, api.Caller{Key: id, Role: api.RoleAuditor})
	}
	done := errors.New("enough")
	var got []uint64
	err = tr.ReadTrail(as("a"), trail.Filter{}, true, func(line []byte) error {
		got = append(got, numberOf(line))
		switch len(got) {
		case 4: // all past ones: the next is new
			go func() { _, _ = log.Append(trail.Entry{Kind: trail.Call, KeyID: "key_1", Route: "GET /"}) }()
		case 5:
			n := 0
			if err := tr.ReadTrail(as("b"), trail.Filter{}, false, func([]byte) error { n++; return nil }); err != nil || n != 5 {
				t.Errorf("another auditor meanwhile: %d entries, %v", n, err)
			}
			return done
		}
		return nil
	})
	if !errors.Is(err, done) || fmt.Sprint(got) != "[1 2 3 4 5]" {
		t.Errorf("%v %v", got, err)
	}
	if len(tr.searches.keys) != 0 || len(tr.searches.turn) != 0 {
		t.Error("a turn is still held")
	}
}
