package host

import (
	"context"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/policy"
)

// usage lets callers work in launched boxes: run commands, reach files, answer visitors.
type usage struct{ boxes *boxes }

// use returns a launched box that is up. Until done is called it counts as running. The caller must call done, which may be
// called more than once.
func (u *usage) use(_ context.Context, id policy.BoxID) (b *box, done func(), err error) {
	b, err = u.boxes.find(id)
	if err != nil {
		return nil, nil, err
	}
	if b.attached != nil {
		return nil, nil, errAttached
	}
	if v := b.shown.Load(); v.Status != api.StatusIdle {
		return nil, nil, api.Errorf(api.ErrConflict, "the box is %s: %s", v.Status, v.Error)
	}
	b.running.Add(1)
	b.activity.Store(time.Now().UnixNano())
	return b, sync.OnceFunc(func() {
		b.running.Add(-1)
		b.activity.Store(time.Now().UnixNano())
	}), nil
}
