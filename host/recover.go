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
	"boxgate/store"
)

// recoverBoxes picks up the boxes of an earlier run: those that run stay up, their network is put back under their
// stored policy; those that were being created or deleted when the gateway died are removed. Interfaces that belong to
// no stored box are taken away.
func (h *Host) recoverBoxes(ctx context.Context) error {
	running, err := h.launcher.Recover(ctx)
	if err != nil {
		return fmt.Errorf("picking up containers: %w", err)
	}
	records, err := h.store.Boxes()
	if err = errors.Join(err, fault.At(ctx, "recover: containers known")); err != nil {
		return err
	}
	for _, r := range records {
		if err := h.recoverBox(ctx, r); err != nil {
			return fmt.Errorf("picking up box %s: %w", r.ID, err)
		}
	}
	if err := fault.At(ctx, "recover: boxes picked up"); err != nil {
		return err
	}
	for _, status := range running {
		if _, err := h.find(status.ID); err != nil {
			h.log.Warn("a container without a box is removed", zap.String("box", string(status.ID)))
			if err := h.launcher.Delete(ctx, status.ID); err != nil {
				h.log.Error("it could not be removed; it has no network", zap.String("box", string(status.ID)), zap.Error(err))
			}
		}
	}
	if err := h.pruneAttached(); err != nil {
		return fmt.Errorf("letting network namespaces go: %w", err)
	}
	if err := h.firewall.Prune(ctx); err != nil {
		return fmt.Errorf("removing interfaces of boxes that are gone: %w", err)
	}
	return nil
}

// recoverBox picks one box up. A box that cannot be picked up is closed and in error; it does not keep the gateway from
// starting.
func (h *Host) recoverBox(ctx context.Context, r store.Box) error {
	p, err := h.store.Policy(r.ID)
	// A box that was being allocated has none yet. Of any other it is missing: no policy would be that of a new box.
	if unfinished := r.State == string(api.StatusCreating); err != nil && (!unfinished || !errors.Is(err, store.ErrNotFound)) {
		return err
	}
	headers, err := h.store.Headers(r.ID)
	if err != nil {
		return err
	}
	var hosted api.Hosted
	if err := json.Unmarshal(r.Extra, &hosted); err != nil {
		return fmt.Errorf("its record is damaged: %w", err)
	}
	if r.PlaceholderKey.Reveal() == "" { // made by an older version
		r.PlaceholderKey = store.NewKey()
		if err := h.store.UpdateBox(r); err != nil {
			return err
		}
	}
	b := newBox(r, p, headers, hosted)
	b.mu.Lock()
	defer b.mu.Unlock()
	h.mu.Lock()
	h.boxes[b.ID] = b
	h.mu.Unlock()
	if b.status == api.StatusCreating || b.status == api.StatusDeleted {
		// Its interface, if it has one, is closed and goes with Prune.
		err := h.release(ctx, b)
		if err == nil {
			err = h.forget(b)
		}
		if err != nil {
			h.log.Error("a box that was half made or half deleted could not be removed", zap.String("box", string(b.ID)), zap.Error(err))
			h.showError(b, "it was half made or half deleted when the gateway ended, and could not be removed; delete it")
		}
		return nil
	}
	h.expireLater(b, time.Until(b.record.ExpiresAt))
	if err := h.caught(b, func() error { return h.reconnect(ctx, b) }); err != nil {
		if errors.Is(err, errFault) {
			err = errors.Join(err, h.shut(b))
		}
		h.log.Error("a box could not be picked up; it stays closed", zap.String("box", string(b.ID)), zap.Error(err))
		h.showError(b, "it could not be picked up after a restart of the gateway: "+err.Error())
		return nil
	}
	return h.recoverURLs(b)
}

// reconnect puts the network of a running box back in force.
func (h *Host) reconnect(ctx context.Context, b *box) error {
	compiled, err := h.inputs(b).compile()
	if err != nil {
		return err
	}
	netns, err := h.namespace(ctx, b)
	if err != nil {
		return err
	}
	ca, err := h.authority(b.ID)
	if err != nil {
		return err
	}
	if err := h.minter.Add(b.ID, ca); err != nil {
		return err
	}
	var back undo
	if err := h.connect(ctx, b, compiled, netns, &back); err != nil {
		return errors.Join(err, back.run(ctx))
	}
	// The kernel may have forwarded under a policy that was never committed.
	if err := h.cutFlows(ctx, b); err != nil {
		return errors.Join(err, back.run(ctx))
	}
	b.status, b.problem = api.StatusIdle, ""
	b.publish()
	return nil
}

func (h *Host) recoverURLs(b *box) error {
	records, err := h.store.URLs(b.ID)
	if err != nil {
		return err
	}
	for _, r := range records {
		h.urls.set(h.urlHost(b.ID, r.Port), urlTarget(r, b.V4))
	}
	return nil
}
