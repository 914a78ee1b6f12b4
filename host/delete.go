package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// DeleteBox implements [api.Host]. The network goes first, so that nothing leaves while processes are being stopped. The
// record goes last: a gateway that dies half-way deletes the rest at its next start. The box's files are removed later
// (see [launcher.Launcher.KeepTrashEmpty]). It is carried through although the caller hangs up.
func (h *Host) DeleteBox(ctx context.Context, id policy.BoxID) error {
	ctx, cancel := begun(ctx)
	defer cancel()
	b, err := h.find(id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.gone(); err != nil {
		return err
	}
	if err := h.caught(b, func() error { return h.takeDown(ctx, b) }); err != nil {
		h.log.Error("a box could not be deleted", zap.String("box", string(id)), zap.Error(err))
		if b.deleted {
			return nil
		}
		h.showError(b, "it could not be fully deleted; delete it again")
		return api.Errorf(api.ErrUnavailable, "deleting box %s: %w", id, err)
	}
	return nil
}

// takeDown deletes a box step by step; it can be done again if it fails. The caller holds b.mu.
func (h *Host) takeDown(ctx context.Context, b *box) error {
	h.dropURLs(b.ID)
	if err := fault.At(ctx, "delete: begun"); err != nil {
		return err
	}
	if err := h.disconnect(ctx, b); err != nil {
		return fmt.Errorf("its network: %w", err)
	}
	// A store that cannot be written keeps no box alive; it is asked again at the end.
	if err := h.setState(b, api.StatusDeleted, ""); err != nil {
		h.log.Error("the deletion of a box was not stored", zap.String("box", string(b.ID)), zap.Error(err))
	}
	if err := fault.At(ctx, "delete: deletion stored"); err != nil {
		return err
	}
	if err := b.unlocked(func() error { return h.release(ctx, b) }); err != nil {
		return err
	}
	if err := fault.At(ctx, "delete: nothing runs"); err != nil {
		return err
	}
	return h.forget(b)
}

// forget removes a box from the store and from memory. If the store fails, the box stays known. The caller holds b.mu.
func (h *Host) forget(b *box) error {
	if b.deleted { // by somebody else
		return nil
	}
	h.dropURLs(b.ID)
	if err := h.store.DeleteBox(b.ID); err != nil {
		return h.notStored("its deletion could not be stored", err)
	}
	b.deleted = true
	defer func() {
		h.mu.Lock()
		delete(h.boxes, b.ID)
		h.mu.Unlock()
		h.audit.Forget(b.ID)
	}()
	fault.Mark(context.Background(), "delete: record gone")
	return nil
}

// setState stores the state of a box and takes it over. The caller holds b.mu.
func (h *Host) setState(b *box, s api.Status, problem string) error {
	record := b.record
	record.State, record.Error, record.UpdatedAt = string(s), problem, time.Now()
	if err := h.store.UpdateBox(record); err != nil {
		return err
	}
	b.record, b.status, b.problem = record, s, problem
	b.publish()
	return nil
}

// showError puts a box into the state error for as long as this gateway runs: at the next start the stored state decides.
// The caller holds b.mu.
func (h *Host) showError(b *box, problem string) {
	b.status, b.problem = api.StatusError, problem
	b.publish()
}

// expiryRetry is how long after a failed deletion an ephemeral box is tried again.
const expiryRetry = time.Minute

// expireLater deletes an ephemeral box after that time, and tries again until it is gone.
func (h *Host) expireLater(b *box, after time.Duration) {
	if b.record.ExpiresAt.IsZero() {
		return
	}
	time.AfterFunc(after, func() {
		err := h.DeleteBox(context.Background(), b.ID)
		if err == nil || errors.Is(err, api.ErrNotFound) {
			return
		}
		h.log.Error("an ephemeral box was not deleted at its end", zap.String("box", string(b.ID)), zap.Error(err))
		h.expireLater(b, expiryRetry)
	})
}
