package host

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/store"
)

// errFault stands for a panic.
var errFault = errors.New("a fault of the gateway; its log says where")

// caught runs one step and makes an error of a panic, so that whoever takes failed steps back takes this one back too.
func (h *Host) caught(b *box, step func() error) error {
	return contained(h.log, step, zap.String("box", string(b.ID)))
}

// contained makes an error of a panic of f. Where it happened is logged, not its text.
func contained(log *zap.Logger, f func() error, about ...zap.Field) (err error) {
	defer func() {
		if v := recover(); v != nil {
			log.Error("panic", append(about, zap.Stack("stack"))...)
			err = errFault
		}
	}()
	return f()
}

// guarded runs a change of a box that is stored. If it panics, nobody knows how far it came: then what the store holds
// is put in force. The caller holds b.mu.
func (h *Host) guarded(b *box, change func() error) error {
	err := h.caught(b, change)
	if errors.Is(err, errFault) {
		return api.Errorf(api.ErrUnavailable, "the change may have been taken back; ask for the present state: %w", errors.Join(err, h.settle(b)))
	}
	return err
}

// settle puts what the store holds of a box in force. If that fails, the box is closed. The caller holds b.mu.
func (h *Host) settle(b *box) error {
	err := h.caught(b, func() error { return h.takeStored(b) })
	if err == nil {
		return nil
	}
	return errors.Join(err, h.shut(b))
}

// takeStored reads a box's policy and header rules anew.
func (h *Host) takeStored(b *box) error {
	if err := h.store.AbortPolicy(b.ID); err != nil { // as on a full disk; the next update replaces it, the next start drops it
		h.log.Warn("a staged policy stays in the store", zap.String("box", string(b.ID)), zap.Error(err))
	}
	p, err := h.store.Policy(b.ID)
	if err != nil {
		return err
	}
	headers, err := h.store.Headers(b.ID)
	if err != nil {
		return err
	}
	in := h.inputs(b)
	in.spec, in.version, in.headers = p.Spec, p.Version, headers.Rules
	next, err := in.compile()
	if err != nil {
		return err
	}
	b.spec, b.version, b.headers, b.headersVersion = p.Spec, p.Version, headers.Rules, headers.Version
	b.lastVersion = max(b.lastVersion, p.Version)
	b.publish()
	return h.restore(b, next)
}

// shut takes a box off the network because its policy cannot be enforced. The caller holds b.mu.
func (h *Host) shut(b *box) error {
	ctx, cancel := context.WithTimeout(context.Background(), restoreTimeout)
	defer cancel()
	err := h.caught(b, func() error { return h.disconnect(ctx, b) })
	h.log.Error("a box is closed: its policy could not be put in force", zap.String("box", string(b.ID)), zap.Error(err))
	h.showError(b, "its policy could not be put in force, so it is closed; restart the gateway, or delete it")
	if err != nil {
		return fmt.Errorf("closing the box: %w", err)
	}
	return nil
}

// notStored is the answer when the store cannot be written: what did not happen, and what to do about it.
func (h *Host) notStored(what string, err error) error {
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return err
	}
	h.log.Error("the store could not be written", zap.Error(err))
	advice := "see the gateway's log"
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		advice = "the disk of state_dir is full: make room there and try again"
	case errors.Is(err, unix.EROFS):
		advice = "the disk of state_dir can only be read: mount it for writing and try again"
	case errors.Is(err, unix.EIO):
		advice = "the disk of state_dir fails: replace it"
	}
	return &api.Error{Kind: api.ErrUnavailable, Message: what + ": " + advice, Cause: err}
}
