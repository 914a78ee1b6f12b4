package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/internal/fault"
	"boxgate/launcher"
	"boxgate/store"
)

// recoverBoxes picks up the boxes of an earlier run: those that run stay up and get their network back under their
// committed policy; those that were being created or deleted when the gateway died are removed. Interfaces that belong to
// no stored box are taken away.
func (l *lifecycle) recoverBoxes(ctx context.Context) error {
	running, err := l.sandboxes.Recover(ctx)
	if err != nil {
		return fmt.Errorf("recovering containers: %w", err)
	}
	records, err := l.store.Boxes()
	if err = errors.Join(err, fault.At(ctx, "recover: containers known")); err != nil {
		return err
	}
	for _, r := range records {
		if err := l.recoverBox(ctx, r); err != nil {
			return fmt.Errorf("recovering box %s: %w", r.ID, err)
		}
	}
	if err := fault.At(ctx, "recover: boxes picked up"); err != nil {
		return err
	}
	l.removeUnknown(ctx, running)
	if err := l.sandboxes.pruneAttached(l.boxes); err != nil {
		return fmt.Errorf("releasing network namespaces: %w", err)
	}
	if err := l.firewall.Prune(ctx); err != nil {
		return fmt.Errorf("removing interfaces of boxes that are gone: %w", err)
	}
	return nil
}

// removeUnknown removes containers that belong to no box.
func (l *lifecycle) removeUnknown(ctx context.Context, running []launcher.Status) {
	for _, status := range running {
		if _, err := l.boxes.find(status.ID); err == nil {
			continue
		}
		l.log.Warn("a container without a box is removed", zap.String("box", string(status.ID)))
		if err := l.sandboxes.Delete(ctx, status.ID); err != nil {
			l.log.Error("it could not be removed; it has no network", zap.String("box", string(status.ID)), zap.Error(err))
		}
	}
}

// recoverBox picks up one box. A box that cannot be recovered is closed and in state error; it does not keep the gateway
// from starting.
func (l *lifecycle) recoverBox(ctx context.Context, r store.Box) error {
	b, err := l.stored(r)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l.boxes.add(b)
	if b.status == api.StatusCreating || b.status == api.StatusDeleted {
		l.reapOrphan(ctx, b)
		return nil
	}
	l.expireLater(b, time.Until(b.record.ExpiresAt))
	if err := l.provision(ctx, &provisioning{box: b}, recoverSteps); err != nil {
		l.log.Error("a box could not be recovered; it stays closed", zap.String("box", string(b.ID)), zap.Error(err))
		b.showError("it could not be recovered after a restart of the gateway: " + err.Error())
		return nil
	}
	return l.urls.recover(b)
}

// stored makes a box of what the store holds of it.
func (l *lifecycle) stored(r store.Box) (*box, error) {
	p, err := l.store.Policy(r.ID)
	// A box that was being allocated has none yet. Of any other it is missing: no policy would be that of a new box.
	if unfinished := r.State == string(api.StatusCreating); err != nil && (!unfinished || !errors.Is(err, store.ErrNotFound)) {
		return nil, err
	}
	headers, err := l.store.Headers(r.ID)
	if err != nil {
		return nil, err
	}
	var hosted api.Hosted
	if err := json.Unmarshal(r.Extra, &hosted); err != nil {
		return nil, fmt.Errorf("its record is damaged: %w", err)
	}
	if r.PlaceholderKey.Reveal() == "" { // made by an older version
		r.PlaceholderKey = store.NewKey()
		if err := l.store.UpdateBox(r); err != nil {
			return nil, err
		}
	}
	return newBox(r, p, headers, hosted), nil
}

// reapOrphan removes a box that was half made or half deleted when the gateway ended. Its interface, if it has one, is
// closed and is pruned. The caller holds b.mu.
func (l *lifecycle) reapOrphan(ctx context.Context, b *box) {
	err := l.sandboxes.release(ctx, b)
	if err == nil {
		err = l.forget(b)
	}
	if err != nil {
		l.log.Error("a box that was half made or half deleted could not be removed", zap.String("box", string(b.ID)), zap.Error(err))
		b.showError("it was half made or half deleted when the gateway ended, and could not be removed; delete it")
	}
}
