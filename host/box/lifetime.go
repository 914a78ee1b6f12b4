package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/lease"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/store"
)

// lifetimes deletes or pauses boxes at their ends, which can be moved while the boxes exist. Safe for concurrent use.
type lifetimes struct {
	log     *zap.Logger
	records interface{ Update(store.Box) error }
	boxes   *state.Table
	delete  func(ctx context.Context, b *state.Box) error // deletes a box whose lock the caller holds
	pause   func(ctx context.Context, b *state.Box) error // pauses a box whose lock the caller holds, or ends its processes
	most    time.Duration                                 // launcher.max_ttl; 0: boxes may have no end
	kept    time.Duration                                 // launcher.max_paused; 0: boxes that were paused at their ends are kept
	history interface {
		Log(box policy.BoxID, level, source, format string, args ...any)
	}
	now func() lease.Now // [lease.System]
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
	what, act := "deleted", l.delete
	if l.pauses(b) {
		what, act = "paused", l.suspend
	}
	if err := act(ctx, b); err != nil && !b.Deleted {
		l.log.Error("a box was not "+what+" at its end", zap.String("box", string(b.ID)), zap.Error(err))
		l.wait(b, expiryRetry)
	}
}

// pauses reports whether a box is paused at its end, instead of deleted. One that could not be created is deleted. The caller
// holds the lock of b.
func (l *lifetimes) pauses(b *state.Box) bool {
	return b.Record.OnEnd == api.EndPause && !b.Record.PausedAtEnd && !b.Deleting && b.Record.State != string(api.StatusError)
}

// suspend pauses a box that has reached its end, unless the end is moved before the pause begins. From then on the box has another end, at
// which it is deleted. The caller holds the lock of b.
func (l *lifetimes) suspend(ctx context.Context, b *state.Box) error {
	if err := b.AwaitStateChange(ctx); err != nil {
		return err
	}
	if !l.pauses(b) || left(b.Record, l.now()) > 0 || b.Record.ExpiresAt.IsZero() { // changed while it waited
		l.keep(b)
		return nil
	}
	if err := l.pause(ctx, b); err != nil {
		return err
	}
	if err := l.hold(b); err != nil {
		return err
	}
	l.history.Log(b.ID, "info", "system", "the box was paused at its end")
	return nil
}

// hold records that a paused box has reached its end. The caller holds the lock of b.
func (l *lifetimes) hold(b *state.Box) error {
	now := l.now()
	record := never(b.Record)
	if l.kept > 0 {
		record = within(record, l.kept, now)
	}
	record.PausedAtEnd, record.UpdatedAt = true, now.Wall
	if err := l.records.Update(record); err != nil {
		return change.NotStored(l.log, "the box is paused at its end, which could not be stored", err)
	}
	b.Record = record
	l.keep(b)
	b.Publish()
	return nil
}

// SuspendBox implements the Host of [boxgate/api/boxes].
func (l *Service) SuspendBox(ctx context.Context, id policy.BoxID) (api.Box, error) {
	return l.lifetimes.suspendNow(ctx, id, l.usage.Pause)
}

// suspendNow pauses a box as at its end. A box that freeze cannot pause goes on, unlike at its end.
func (l *lifetimes) suspendNow(ctx context.Context, id policy.BoxID, freeze func(context.Context, *state.Box) error) (api.Box, error) {
	b, err := l.boxes.Lock(id)
	if err != nil {
		return api.Box{}, err
	}
	defer b.Unlock()
	if b.Attached != nil {
		return api.Box{}, state.ErrAttached
	}
	if err := b.AwaitStateChange(ctx); err != nil {
		return api.Box{}, err
	}
	switch {
	case b.Deleting:
		return api.Box{}, api.ErrNotFound
	case b.Record.PausedAtEnd:
		return b.View(), nil
	case b.Record.KeepAlive:
		return api.Box{}, api.Errorf(api.ErrConflict, "the box has keep_alive and cannot be paused")
	case b.Record.ExpiresAt.IsZero():
		return api.Box{}, api.Errorf(api.ErrConflict, "the box has no end that could be put off; pause it instead")
	case api.CallerOf(ctx).Role == api.RoleBox:
		return api.Box{}, api.Errorf(api.ErrForbidden, "a key for one box cannot keep the box beyond its end; pause it instead, or use a key that creates boxes")
	case b.Status == api.StatusIdle:
		err = freeze(ctx, b)
	case b.Status != api.StatusPaused:
		err = api.Errorf(api.ErrConflict, "the box is in state %s and cannot be paused: %s", b.Status, b.Problem)
	}
	if err == nil {
		err = l.hold(b)
	}
	return b.View(), err
}

// leastByUse is the least time to live that a box gets when it is resumed by a key for one box, or without a call of the API, by a visitor or a
// schedule: each resumption and each pause writes to the store, and they come as often as they like. A key for one box cannot shorten it.
const leastByUse = time.Minute

// notBefore returns the end that a caller may give a box in place of a present one, was.
func (l *lifetimes) notBefore(ctx context.Context, b *state.Box, end, was time.Time, now lease.Now) time.Time {
	if api.CallerOf(ctx).Role != api.RoleBox || b.RenewedAt == 0 || b.Record.OnEnd != api.EndPause || end.IsZero() {
		return end
	}
	if least := now.Wall.Add(b.RenewedAt + leastByUse - now.Since); end.Before(least) && end.Before(was) {
		if least.Before(was) {
			return least
		}
		return was
	}
	return end
}

// renew gives a box that was paused at its end a new time to live: the last one that it was given. It is called before the box is
// resumed, so that no box runs without an end that should have one. The caller holds the lock of b.
func (l *lifetimes) renew(ctx context.Context, b *state.Box) error {
	if !b.Record.PausedAtEnd {
		return nil
	}
	caller := api.CallerOf(ctx)
	if caller.Role == api.RoleBox && !b.Record.AutoResume {
		return api.Errorf(api.ErrForbidden, "the box was paused at its end, and a key for one box cannot put that off; use a key that creates boxes")
	}
	now := l.now()
	ttl := cmp.Or(b.Record.TTL, api.MaxTTL)
	if caller == (api.Caller{}) || caller.Role == api.RoleBox {
		ttl = max(ttl, leastByUse)
	}
	if l.bounds(ctx) {
		ttl = min(ttl, l.most)
	}
	record := within(b.Record, ttl, now)
	record.PausedAtEnd, record.UpdatedAt = false, now.Wall
	if err := l.records.Update(record); err != nil {
		return change.NotStored(l.log, "the new end of the box could not be stored, and it was not resumed", err)
	}
	b.Record, b.RenewedAt = record, max(1, now.Since)
	l.keep(b)
	return nil
}

// pauseAtEnd pauses a box. The processes of one that cannot be paused are ended, because a box can obstruct its pause: it then starts
// again when it is resumed, with its files. The caller holds the lock of b.
func (l *Service) pauseAtEnd(ctx context.Context, b *state.Box) error {
	if b.Status == api.StatusIdle {
		err := l.usage.Pause(ctx, b)
		if err == nil || b.Deleting {
			return err
		}
		l.log.Warn("a box could not be paused at its end, and its processes are ended", zap.String("box", string(b.ID)), zap.Error(err))
	}
	if b.Status == api.StatusPaused || b.Ended {
		return nil
	}
	return l.halt(ctx, b)
}

// halt ends the processes of a box, which keeps its files and starts again when it is used, as after a restart of the host. The caller
// holds the lock of b.
func (l *Service) halt(ctx context.Context, b *state.Box) error {
	defer b.BeginStateChange()()
	b.Starts++ // the end of its first process is no failure
	l.reach.Remove(b.ID)
	if b.Connected() {
		if err := l.net.Disconnect(ctx, &b.Box); err != nil {
			return fmt.Errorf("its network: %w", err)
		}
	}
	if err := b.Unlocked(func() error { return l.sandboxes.Stop(ctx, b.ID) }); err != nil {
		return err
	}
	return b.SetState(l.records, api.StatusPaused, "")
}

// SetEnd implements the Host of [boxgate/api/boxes].
func (l *Service) SetEnd(ctx context.Context, id policy.BoxID, end api.End) (is, was api.Box, err error) {
	return l.lifetimes.setEnd(ctx, id, end)
}

// setEnd sets the action at the end of a box.
func (l *lifetimes) setEnd(ctx context.Context, id policy.BoxID, end api.End) (is, was api.Box, err error) {
	b, err := l.boxes.Lock(id)
	if err != nil {
		return is, was, err
	}
	defer b.Unlock()
	was = b.View()
	more := end.OnEnd == api.EndPause && b.Record.OnEnd != api.EndPause || end.AutoResume && !b.Record.AutoResume
	switch {
	case b.Deleting:
		return is, was, api.ErrNotFound
	case b.Record.Attached != nil:
		return is, was, api.Errorf(api.ErrConflict, "an attached box has no end of its own; detach it when its sandbox ends")
	case b.Record.KeepAlive && end.OnEnd == api.EndPause:
		return is, was, api.Errorf(api.ErrConflict, "the box has keep_alive and cannot be paused")
	case more && api.CallerOf(ctx).Role == api.RoleBox:
		return is, was, api.Errorf(api.ErrForbidden, "a key for one box cannot keep the box beyond its end; use a key that creates boxes")
	}
	record := b.Record
	record.OnEnd, record.AutoResume, record.UpdatedAt = storedEnd(end.OnEnd), end.AutoResume, l.now().Wall
	switch {
	case record.OnEnd != api.EndPause:
		record.TTL = 0
	case record.TTL == 0 && !record.ExpiresAt.IsZero() && !record.PausedAtEnd:
		record.TTL = max(left(record, l.now()), time.Second)
	}
	if err := l.records.Update(record); err != nil {
		return is, was, change.NotStored(l.log, "what happens at the end of the box could not be stored, and has not changed", err)
	}
	b.Record = record
	b.Publish()
	return b.View(), was, nil
}

// storedEnd returns the form of an action at the end of a box in a record: "" for the default.
func storedEnd(onEnd string) string {
	if onEnd == api.EndDelete {
		return ""
	}
	return onEnd
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
	if b.Status != api.StatusCreating { // a pause at its end may have begun
		if err := b.AwaitStateChange(ctx); err != nil {
			return api.Box{}, time.Time{}, err
		}
	}
	now := l.now()
	was = endOf(b.Record, now)
	switch {
	case b.Deleting:
		return api.Box{}, was, api.ErrNotFound
	case b.Record.Attached != nil:
		return api.Box{}, was, api.Errorf(api.ErrConflict, "an attached box has no end of its own; detach it when its sandbox ends")
	case b.Record.PausedAtEnd:
		return api.Box{}, was, api.Errorf(api.ErrConflict, "the box was paused at its end; resume it, which gives it a new one")
	case b.Status == api.StatusCreating:
		return api.Box{}, was, api.Errorf(api.ErrConflict, "the box is being created; try again when it is there")
	}
	end, err := endAfter(was, to, now.Wall)
	if err == nil {
		end = l.notBefore(ctx, b, end, was, now)
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
	if record.OnEnd == api.EndPause {
		record.TTL = cmp.Or(to.TTL, record.TTL, to.Extend)
	}
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
