package usage

import (
	"context"
	"errors"
	"strings"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/launcher"
	"boxgate/policy"
)

// Renewed is the result of [Service.RenewRoots].
type Renewed struct {
	Trusting int          `json:"trusting"` // running launched boxes that trust all configured roots
	Failed   []NotRenewed `json:"failed,omitempty"`
}

// NotRenewed is a box that does not trust all configured roots.
type NotRenewed struct {
	ID    policy.BoxID `json:"id"`
	Name  string       `json:"name,omitempty"`
	Error string       `json:"error"` // may contain names of files that the box chose
}

// renewedTogether is how many boxes get new roots at the same time.
const renewedTogether = 4

// RenewRoots adds the configured roots to the certificates of all running launched boxes that do not have them yet. Paused boxes are
// not woken: they get the roots when they are resumed. Failures are logged, and tried again by the next call. It needs at most some
// seconds for each box.
func (u *Service) RenewRoots(ctx context.Context) Renewed {
	u.renewing.Lock()
	defer u.renewing.Unlock()
	var mu sync.Mutex
	var done Renewed
	var all errgroup.Group
	all.SetLimit(renewedTogether)
	for _, b := range u.boxes.All() {
		if ctx.Err() != nil || u.boxes.HandedOver.Load() {
			break
		}
		if b.Attached != nil || !b.Gate.Enter() {
			continue
		}
		all.Go(func() error {
			defer b.Gate.Leave()
			err := u.renewRoots(ctx, b)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				done.Trusting++
			} else if !errors.Is(err, launcher.ErrNotRunning) && !errors.Is(err, launcher.ErrNotFound) {
				done.Failed = append(done.Failed, NotRenewed{ID: b.ID, Name: b.Name, Error: err.Error()})
			}
			return nil
		})
	}
	_ = all.Wait() // errors are in done
	return done
}

// errRootsAtStart replaces [launcher.ErrNoFiles].
var errRootsAtStart = errors.New("with this OCI runtime a box gets new roots only when it is started again")

// maxWhy bounds the text of an error that the box may have influenced.
const maxWhy = 500

// renewRoots adds the configured roots to the certificates of a box that is awake. A failure is logged.
func (u *Service) renewRoots(ctx context.Context, b *state.Box) error {
	err := change.Contain(u.log, func() error { return u.starter.RenewRoots(ctx, b.ID) }, zap.String("box", string(b.ID)))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, launcher.ErrNoFiles):
		err = errRootsAtStart
	case len(err.Error()) > maxWhy:
		err = errors.New(strings.ToValidUTF8(err.Error()[:maxWhy], "") + "…")
	}
	u.log.Warn("a running box does not trust all configured roots", zap.String("box", string(b.ID)), zap.Error(err))
	return err
}
