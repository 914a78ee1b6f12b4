package box

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/lease"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/store"
)

// lifetimes deletes boxes at their ends, which can be moved while the boxes exist. Safe for concurrent use.
type lifetimes struct {
	log     *zap.Logger
	records interface{ Update(store.Box) error }
	boxes   *state.Table
	delete  func(ctx context.Context, b *state.Box) error // deletes a box whose lock the caller holds
	most    time.Duration                                 // launcher.max_ttl; 0: boxes may have no end
	now     func() lease.Now                              // [lease.System]
}

// expiryRetry is the time between two attempts to delete a box that has reached its end.
const expiryRetry = time.Minute

// lookInterval is the longest time between two looks at the end of a box. Timers stand still while the host is suspended, and do not follow
// a clock that is set.
const lookInterval = time.Minute

// within returns a record whose box ends after a time, by both clocks.
func within(r store.Box, left time.Duration, now lease.Now) store.Box {
	r.ExpiresAt, r.Boot, r.BootEnd = now.Wall.Add(left).Round(0), now.Boot, now.Since+left
	return r
}

// never returns a record whose box has no end.
func never(r store.Box) store.Box {
	r.ExpiresAt, r.Boot, r.BootEnd = time.Time{}, "", 0
	return r
}

// left returns the time until the end of a record that has one. It counts on the boot clock, which cannot be set and counts while the host
// is suspended. After a restart of the host only the wall clock is left.
func left(r store.Box, now lease.Now) time.Duration {
	if now.Boot != "" && r.Boot == now.Boot {
		return r.BootEnd - now.Since
	}
	return r.ExpiresAt.Round(0).Sub(now.Wall)
}

// endOf returns the end of a record by the present wall clock; zero: never. The two clocks drift apart slowly, and that is ignored.
func endOf(r store.Box, now lease.Now) time.Time {
	if r.ExpiresAt.IsZero() {
		return time.Time{}
	}
	stored, end := r.ExpiresAt.Round(0), now.Wall.Add(left(r, now)).Round(0)
	if end.Sub(stored).Abs() < time.Second {
		return stored
	}
	return end
}

// keep has a box deleted at its end, in place of an earlier end. The caller holds the lock of b.
func (l *lifetimes) keep(b *state.Box) { l.wait(b, min(left(b.Record, l.now()), lookInterval)) }

// follow shows the end of a box by a wall clock that was set, and stores it for the next start of the host. If that fails, the next look
// tries again. The caller holds the lock of b.
func (l *lifetimes) follow(b *state.Box) {
	record := b.Record
	if record.ExpiresAt = endOf(record, l.now()); record.ExpiresAt.Equal(b.Record.ExpiresAt) || b.Deleting || l.boxes.HandedOver.Load() {
		return
	}
	if err := l.records.Update(record); err != nil {
		l.log.Warn("the end of a box by the clock that was set could not be stored", zap.String("box", string(b.ID)), zap.Error(err))
		return
	}
	b.Record = record
	b.Publish()
}

// wait looks at the end of a box after a time. A box has one timer at most. The caller holds the lock of b.
func (l *lifetimes) wait(b *state.Box, after time.Duration) {
	if b.Expiry != nil {
		b.Expiry.Stop() // one that has fired waits for the lock, and then reads the end
	}
	if b.Expiry = nil; !b.Record.ExpiresAt.IsZero() {
		b.Expiry = time.AfterFunc(after, func() { l.end(b) })
	}
}

// forget stops the timer of a deleted box. The caller holds the lock of b.
func (l *lifetimes) forget(b *state.Box) {
	if b.Expiry != nil {
		b.Expiry.Stop()
	}
}

// end deletes a box that has reached its end, and retries until it is gone. The end that counts is the one of the box once it is
// locked: a box whose end was moved in the meantime is left as it is.
func (l *lifetimes) end(b *state.Box) {
	b.Lock()
	defer b.Unlock()
	switch {
	case b.Deleted || b.Record.ExpiresAt.IsZero():
		return
	case left(b.Record, l.now()) > 0: // not yet, or moved
		l.follow(b)
		l.keep(b)
		return
	case l.boxes.HandedOver.Load(): // the next process deletes it, unless the replacement fails
		l.wait(b, expiryRetry)
		return
	}
	ctx, cancel := change.Detach(context.Background())
	defer cancel()
	if err := l.delete(ctx, b); err != nil && !b.Deleted {
		l.log.Error("a box was not deleted at its end", zap.String("box", string(b.ID)), zap.Error(err))
		l.wait(b, expiryRetry)
	}
}

// SetLifetime implements the Host of [boxgate/api/boxes].
func (l *Service) SetLifetime(ctx context.Context, id policy.BoxID, set api.Lifetime) (is api.Box, was time.Time, err error) {
	return l.lifetimes.set(ctx, id, set)
}

// bounds reports whether launcher.max_ttl applies to the caller.
func (l *lifetimes) bounds(ctx context.Context) bool {
	return l.most > 0 && api.CallerOf(ctx).Role != api.RoleAdmin
}

// ofNew returns the time to live of a new box; 0: it has no end. Within launcher.max_ttl, each box has one. [api.MaxTTL], which
// is also the default of ephemeral boxes, becomes launcher.max_ttl.
func (l *lifetimes) ofNew(ctx context.Context, asked time.Duration) (time.Duration, error) {
	switch {
	case !l.bounds(ctx) || asked > 0 && asked <= l.most:
		return asked, nil
	case asked == 0 || asked == api.MaxTTL:
		return l.most, nil
	}
	return 0, change.InvalidAt("/ttl", "must be at most "+l.most.String()+", the operator's limit (launcher.max_ttl)")
}

// permit refuses an end that the caller may not give a box; was is the present one.
func (l *lifetimes) permit(ctx context.Context, end, was, now time.Time) error {
	switch {
	case !was.IsZero() && !isLater(end, was): // brought forward
		return nil
	case api.CallerOf(ctx).Role == api.RoleBox && isLater(end, was):
		return api.Errorf(api.ErrForbidden, "a key for one box can bring its end forward, but neither put it off nor remove it; use a key that creates boxes")
	case l.bounds(ctx) && (end.IsZero() || end.Sub(now) > l.most):
		return api.Errorf(api.ErrForbidden, "the end would be later than %v from now, the operator's limit (launcher.max_ttl); use an admin key, or an earlier end", l.most)
	}
	return nil
}

// set moves the end of a box. A box whose deletion has begun is gone; any other box exists for at least as
// long as the end that this returns.
func (l *lifetimes) set(ctx context.Context, id policy.BoxID, to api.Lifetime) (is api.Box, was time.Time, err error) {
	b, err := l.boxes.Lock(id)
	if err != nil {
		return api.Box{}, time.Time{}, err
	}
	defer b.Unlock()
	now := l.now()
	was = endOf(b.Record, now)
	switch {
	case b.Deleting:
		return api.Box{}, was, api.ErrNotFound
	case b.Record.Attached != nil:
		return api.Box{}, was, api.Errorf(api.ErrConflict, "an attached box has no end of its own; detach it when its sandbox ends")
	case b.Status == api.StatusCreating:
		return api.Box{}, was, api.Errorf(api.ErrConflict, "the box is being created; try again when it is there")
	}
	end, err := endAfter(was, to, now.Wall)
	if err == nil {
		err = l.permit(ctx, end, was, now.Wall)
	}
	if err != nil {
		return api.Box{}, was, err
	}
	record := never(b.Record)
	if !end.IsZero() {
		record = within(record, end.Sub(now.Wall), now)
	}
	record.Ephemeral = record.Ephemeral && !end.IsZero() // an ephemeral box is one with an end
	record.UpdatedAt = now.Wall
	if err := l.records.Update(record); err != nil {
		return api.Box{}, was, change.NotStored(l.log, "the end of the box could not be stored, and has not moved", err)
	}
	b.Record = record
	l.keep(b)
	b.Publish()
	return b.View(), was, nil
}

// endAfter returns the end of a box after a change; zero: never.
func endAfter(was time.Time, set api.Lifetime, now time.Time) (time.Time, error) {
	var end time.Time
	switch {
	case set.TTL > 0:
		end = now.Add(set.TTL)
	case set.Extend > 0 && was.IsZero():
		return end, api.Errorf(api.ErrConflict, "the box has no end that could be put off; give it one with ttl")
	case set.Extend > 0:
		end = was.Add(set.Extend)
	case set.Unlimited:
		return end, nil
	default:
		return was, errNoLifetime
	}
	if left := end.Sub(now); left > api.MaxTTL {
		return was, change.InvalidAt("/extend", "the box would end in "+left.Round(time.Second).String()+"; the limit is "+api.MaxTTL.String()+" from now")
	}
	return end, nil
}

// errNoLifetime refuses a change without any of the ways to set an end.
var errNoLifetime = errors.New("a change of a lifetime without an end")

// isLater reports whether an end is after another; zero: never.
func isLater(end, other time.Time) bool {
	return !other.IsZero() && (end.IsZero() || end.After(other))
}
