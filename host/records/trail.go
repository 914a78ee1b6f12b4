package records

import (
	"context"
	"encoding/json"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit/trail"
	"boxgate/config"
	"boxgate/internal/buildinfo"
	"boxgate/store"
)

// Trail is the audit trail of the API. Its head is also recorded in the store.
type Trail struct {
	log      *zap.Logger
	store    store.Installation
	dir      string
	trail    *trail.Trail
	searches *searches
}

// OpenTrail opens the audit trail in the state directory, and appends an entry for the start of the gateway.
func OpenTrail(log *zap.Logger, installation store.Installation, stateDir string, bounds config.Bounds) (*Trail, error) {
	dir := filepath.Join(stateDir, config.TrailDir)
	written, err := trail.Open(dir, trail.Options{Size: int64(bounds.Size), Age: bounds.Age()}, "gateway "+buildinfo.Get().Version+" started")
	if err != nil {
		return nil, err
	}
	return &Trail{log: log, store: installation, dir: dir, trail: written, searches: newSearches()}, nil
}

// Log returns the trail for appending.
func (t *Trail) Log() *trail.Trail { return t.trail }

// storedHead returns the head recorded in the store, the zero value if it has not been recorded.
func (t *Trail) storedHead() (known trail.Head, err error) {
	text, err := t.store.TrailHead()
	if err != nil || text == "" {
		return trail.Head{}, err
	}
	return known, json.Unmarshal([]byte(text), &known)
}

// ReadTrail implements the Host of [boxgate/api/trail].
func (t *Trail) ReadTrail(ctx context.Context, f trail.Filter, follow bool, do func(line []byte) error) error {
	caller := api.CallerOf(ctx).Holder()
	if caller.Operator {
		return t.trail.Read(ctx, f, follow, do)
	}
	last, began := t.trail.Head().Seq, time.Now()
	err := runSearch(ctx, t.searches, caller, func(line []byte) error {
		last = max(last, numberOf(line))
		return do(line)
	}, func(found func([]byte) error) error { return t.trail.Read(ctx, f, false, found) })
	if err != nil || !follow {
		return err
	}
	if since := began.Add(-time.Minute); f.Since.Before(since) { // what follows needs no turn: it reads only the end
		f.Since = since
	}
	return t.trail.Read(ctx, f, true, func(line []byte) error {
		if numberOf(line) <= last {
			return nil
		}
		return do(line)
	})
}

// numberOf returns the number of an entry, or 0 if the line cannot be read.
func numberOf(line []byte) uint64 {
	var e struct{ Seq uint64 }
	_ = json.Unmarshal(line, &e)
	return e.Seq
}

// VerifyTrail implements the Host of [boxgate/api/trail].
func (t *Trail) VerifyTrail(ctx context.Context) (r trail.Report, err error) {
	known, err := t.storedHead()
	if err != nil {
		return r, err
	}
	err = runSearch(ctx, t.searches, api.CallerOf(ctx).Holder(), nil, func(func(struct{}) error) (err error) {
		r, err = trail.Verify(t.dir, known)
		return err
	})
	return r, err
}

// KeepHead records the head of the trail in the store every minute, until ctx is done. It first verifies the trail: if it
// was changed while the gateway was down, KeepHead logs that, and leaves the recorded head as the evidence.
func (t *Trail) KeepHead(ctx context.Context) {
	report, err := t.VerifyTrail(api.WithCaller(ctx, api.Caller{Role: api.RoleAdmin}))
	if err != nil || len(report.Problems) > 0 {
		t.log.Error("the audit trail of the API was modified or damaged; see gateway audit verify", zap.Strings("problems", report.Problems), zap.Error(err))
	}
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	var kept trail.Head
	over := false
	for {
		head := t.trail.Head()
		if head != kept && err == nil && len(report.Problems) == 0 {
			if text, bad := json.Marshal(head); bad == nil {
				if bad = t.store.SetTrailHead(string(text)); bad != nil {
					t.log.Warn("the head of the audit trail could not be stored", zap.Error(bad))
				} else {
					kept = head
				}
			}
		}
		if over {
			return
		}
		select {
		case <-ctx.Done():
			over = true
		case <-tick.C:
		}
	}
}
