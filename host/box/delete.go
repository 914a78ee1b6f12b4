package box

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// DeleteBox implements the Host of [boxgate/api/boxes]. The network is removed first, so that no traffic leaves while
// processes are being stopped. The record is removed last: if the gateway dies half-way, its next start deletes the rest.
// The box's files are removed later (see [boxgate/launcher.Launcher.KeepTrashEmpty]). The deletion continues if the
// caller disconnects.
func (l *Service) DeleteBox(ctx context.Context, id policy.BoxID) error {
	ctx, cancel := change.Detach(ctx)
	defer cancel()
	b, err := l.boxes.Lock(id)
	if err != nil {
		return err
	}
	defer b.Unlock()
	if err := change.Contain(l.log, func() error { return l.tearDown(ctx, b) }, zap.String("box", string(id))); err != nil {
		l.log.Error("a box could not be deleted", zap.String("box", string(id)), zap.Error(err))
		if b.Deleted {
			return nil
		}
		b.ShowError("it could not be fully deleted; delete it again")
		return api.Errorf(api.ErrUnavailable, "deleting box %s: %w", id, err)
	}
	return nil
}

// tearDown deletes a box step by step. It can be repeated after a failure. The caller holds the lock of b.
func (l *Service) tearDown(ctx context.Context, b *state.Box) error {
	b.Deleting = true
	l.urls.Drop(b.ID)
	if err := fault.At(ctx, "delete: begun"); err != nil {
		return err
	}
	if err := l.net.Disconnect(ctx, &b.Box); err != nil {
		return fmt.Errorf("its network: %w", err)
	}
	// A store that cannot be written does not keep a box alive. It is written again at the end.
	if err := b.SetState(l.records, api.StatusDeleted, ""); err != nil {
		l.log.Error("the deletion of a box was not stored", zap.String("box", string(b.ID)), zap.Error(err))
	}
	if err := fault.At(ctx, "delete: deletion stored"); err != nil {
		return err
	}
	if err := b.Unlocked(func() error { return l.sandboxes.Release(ctx, b) }); err != nil {
		return err
	}
	if err := fault.At(ctx, "delete: nothing runs"); err != nil {
		return err
	}
	return l.removeBox(b)
}

// removeBox removes a box from the store and from memory. If the store fails, the box stays in the table. The caller holds the lock of b.
func (l *Service) removeBox(b *state.Box) error {
	if b.Deleted { // by another request
		return nil
	}
	l.urls.Drop(b.ID)
	if err := l.records.Delete(b.ID); err != nil {
		return change.NotStored(l.log, "its deletion could not be stored", err)
	}
	b.Deleted = true
	defer func() {
		l.snapshots.sweepLayers(b)
		l.boxes.Remove(b.ID)
		l.follower.Look(b.ID)
		l.audit.Forget(b.ID)
		l.history.Forget(b.ID)
		l.meter.Forget(b.ID)
		l.schedules.Forget(b.ID)
	}()
	fault.Mark(context.Background(), "delete: record gone")
	return nil
}
