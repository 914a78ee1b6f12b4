package host

import (
	"context"
	"encoding/json"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"boxgate/audit/trail"
	"boxgate/config"
	"boxgate/internal/buildinfo"
	"boxgate/store"
)

// auditTrail is the audit trail of the API, whose head is kept in the store.
type auditTrail struct {
	log   *zap.Logger
	store *store.DB
	dir   string
	trail *trail.Trail
}

// openTrail opens the audit trail. Without it nothing could be changed, so that it not opening is an error.
func (p *parts) openTrail(context.Context) (err error) {
	dir, bounds := filepath.Join(p.cfg.StateDir, config.TrailDir), p.cfg.Admin.Audit
	t := &auditTrail{log: p.log, store: p.store, dir: dir}
	t.trail, err = trail.Open(dir, trail.Options{Size: int64(bounds.Size), Age: bounds.Age()}, "gateway "+buildinfo.Get().Version+" started")
	p.trail = t
	return err
}

// known returns the head that the store knows; the zero value if none.
func (t *auditTrail) known() (known trail.Head, err error) {
	text, err := t.store.TrailHead()
	if err != nil || text == "" {
		return trail.Head{}, err
	}
	return known, json.Unmarshal([]byte(text), &known)
}

// ReadTrail implements the Host of [boxgate/api/trail].
func (t *auditTrail) ReadTrail(ctx context.Context, f trail.Filter, follow bool, do func(line []byte) error) error {
	return t.trail.Read(ctx, f, follow, do)
}

// VerifyTrail implements the Host of [boxgate/api/trail].
func (t *auditTrail) VerifyTrail(context.Context) (trail.Report, error) {
	known, err := t.known()
	if err != nil {
		return trail.Report{}, err
	}
	return trail.Verify(t.dir, known)
}

// keepHead keeps the head of the trail in the store from time to time, until ctx ends. A trail that was changed while the gateway
// was down is reported first, and keeps the head that shows it.
func (t *auditTrail) keepHead(ctx context.Context) {
	report, err := t.VerifyTrail(ctx)
	if err != nil || len(report.Problems) > 0 {
		t.log.Error("the audit trail of the API is not as it was written; see gateway audit verify", zap.Strings("problems", report.Problems), zap.Error(err))
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
