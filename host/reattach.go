package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/foreign"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/store"
)

// ReattachBox attaches a box to a sandbox again: to the one that it names (nil: the one it was attached to). What belongs to
// the box stays: its ID and addresses, policy, header rules, public URLs and CA.
func (l *lifecycle) ReattachBox(ctx context.Context, id policy.BoxID, to *api.Attached) (api.Box, error) {
	b, err := l.boxes.find(id)
	if err != nil {
		return api.Box{}, err
	}
	if b.attached == nil {
		return api.Box{}, api.Errorf(api.ErrConflict, "box %s was launched here: it is not attached to anything", id)
	}
	now := b.sandbox.Load()
	if now == nil {
		return api.Box{}, api.Errorf(api.ErrConflict, "box %s is being attached already", id)
	}
	if to == nil {
		to = &api.Attached{Kind: now.Kind, Ref: now.Ref, Container: now.Container}
		to.PID, _ = strconv.Atoi(now.Ref)
	}
	found, err := foreign.Open(ctx, *to, func(path string) error { return l.checkSandbox(b, path) })
	if err != nil {
		return api.Box{}, err
	}
	defer found.NS.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.gone(); err != nil {
		return api.Box{}, err
	}
	defer l.follower.Look(id)
	target := store.Attached{Kind: to.Kind, Ref: to.Ref, Container: found.Container, Stack: b.attached.Stack}
	if err := l.move(ctx, b, target, found.NS); err != nil {
		return api.Box{}, api.Errorf(api.ErrUnavailable, "box %s could not be attached again, and has no network: %w", id, err)
	}
	return b.viewWithWarnings(), nil
}

// checkSandbox returns why a box cannot be attached to a network namespace, other than the one that it is attached to.
func (l *lifecycle) checkSandbox(b *box, path string) error {
	if now := b.sandbox.Load(); now != nil && b.connected() && foreign.Same(now.Pin, path) {
		return nil
	}
	return l.firewall.CheckForeign(path)
}

// move attaches a box to another network namespace. It is off the network from when it leaves the one that it has until its
// policy is in force in the other. The caller holds b.mu.
func (l *lifecycle) move(ctx context.Context, b *box, to store.Attached, ns *os.File) error {
	ctx, cancel := begun(ctx)
	defer cancel()
	if now := b.sandbox.Load(); b.connected() && foreign.Same(now.Pin, foreign.PathOf(ns)) {
		return l.rename(b, to, now.Pin)
	}
	if err := l.leave(ctx, b, to, "it is being attached"); err != nil {
		return err
	}
	p := &provisioning{box: b, foreign: ns}
	err := l.provision(ctx, p, reattachSteps)
	switch {
	case err == nil:
		b.follows(p.netns)
		l.log.Info("a box was attached again", zap.String("box", string(b.ID)), zap.String("sandbox", to.Kind+" "+to.Ref))
	case b.deleted || errors.Is(err, errDeletedMeanwhile): // or its sandbox has ended, which is shown
	default:
		b.showGone("it could not be attached: " + err.Error())
	}
	return err
}

// rename notes another name of the sandbox that a box is attached to. The caller holds b.mu.
func (l *lifecycle) rename(b *box, to store.Attached, pin string) error {
	if err := l.storeAttached(b, to, api.StatusIdle, ""); err != nil {
		return err
	}
	b.follows(pin)
	return nil
}

// leave takes an attached box off the network and lets go of the namespace that it has. From then on it is attached to
// something that has no namespace yet, or no more. It can be repeated. The caller holds b.mu.
func (l *lifecycle) leave(ctx context.Context, b *box, to store.Attached, why string) error {
	err := contained(l.log, func() error { return l.leaveSteps(ctx, b, to, why) }, zap.String("box", string(b.ID)))
	if err != nil {
		b.showGone("it could not be taken off the network in full, and is tried again")
	}
	return err
}

func (l *lifecycle) leaveSteps(ctx context.Context, b *box, to store.Attached, why string) error {
	l.urls.reach.Remove(b.ID)
	if err := l.net.Disconnect(ctx, &b.Box); err != nil {
		return fmt.Errorf("taking it off the network: %w", err)
	}
	l.urls.ingress.CloseBox(b.ID) // connections to its loopback, which keep the namespace
	if err := fault.At(ctx, "leave: off the network"); err != nil {
		return err
	}
	if err := l.sandboxes.DetachNamespace(b.ID); err != nil {
		return err
	}
	if err := fault.At(ctx, "leave: namespace released"); err != nil {
		return err
	}
	if err := l.storeAttached(b, to, api.StatusGone, why); err != nil {
		return err
	}
	b.follows("")
	return fault.At(ctx, "leave: stored")
}

// storeAttached stores what a box is attached to, with its state. The caller holds b.mu.
func (l *lifecycle) storeAttached(b *box, to store.Attached, s api.Status, problem string) error {
	record := b.record
	to.Search = b.attached.Search // as when it was attached first
	record.Attached, record.State, record.Error, record.UpdatedAt = &to, string(s), problem, time.Now()
	if err := l.store.UpdateBox(record); err != nil {
		return notStored(l.log, "what the box is attached to could not be stored", err)
	}
	b.record, b.status, b.problem = record, s, problem
	b.publish()
	return nil
}

// followed is what the follower knows of the boxes.
type followed struct{ *lifecycle }

// Attached implements [follow.Owner].
func (l followed) Attached() []policy.BoxID {
	var ids []policy.BoxID
	for _, b := range l.boxes.all() {
		if b.sandbox.Load() != nil {
			ids = append(ids, b.ID)
		}
	}
	return ids
}

// Sandbox implements [follow.Owner].
func (l followed) Sandbox(id policy.BoxID) (foreign.Sandbox, uint64, bool) {
	b, err := l.boxes.find(id)
	if err != nil {
		return foreign.Sandbox{}, 0, false
	}
	now := b.sandbox.Load()
	if now == nil {
		return foreign.Sandbox{}, 0, false
	}
	return now.Sandbox, now.turn, true
}

// Lose implements [follow.Owner].
func (l followed) Lose(ctx context.Context, id policy.BoxID, turn uint64, why string) error {
	return l.inTurn(id, turn, func(b *box) error {
		if b.status == api.StatusGone && b.problem == why {
			return nil
		}
		ctx, cancel := begun(ctx)
		defer cancel()
		if err := l.leave(ctx, b, *b.record.Attached, why); err != nil {
			return err
		}
		l.log.Warn("a box is gone: it has no network until it is attached again", zap.String("box", string(id)),
			zap.String("status", string(api.StatusGone)), zap.String("reason", why))
		return nil
	})
}

// Move implements [follow.Owner].
func (l followed) Move(ctx context.Context, id policy.BoxID, turn uint64, to foreign.Found) error {
	return l.inTurn(id, turn, func(b *box) error {
		if err := l.checkSandbox(b, foreign.PathOf(to.NS)); err != nil {
			err = fmt.Errorf("its container runs, but cannot be attached: %w", err)
			if b.status == api.StatusGone {
				b.showGone(err.Error())
			}
			return err
		}
		return l.move(ctx, b, *b.record.Attached, to.NS)
	})
}

// inTurn does something with a box whose sandbox has not changed since turn.
func (l followed) inTurn(id policy.BoxID, turn uint64, do func(*box) error) error {
	b, err := l.boxes.lock(id)
	if errors.Is(err, api.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer b.mu.Unlock()
	if b.sandbox.Load().turn != turn {
		return nil // and it is looked at again
	}
	return do(b)
}
