package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/enforce"
	"boxgate/host/state"
	"boxgate/internal/fault"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// Recover picks up the boxes of an earlier run: those that run stay up and get their network back under their
// committed policy; those that nothing runs of, because the host was restarted, count as paused until they are used; those that were being created or deleted when the gateway died are removed. Interfaces that belong to
// no stored box are taken away.
func (l *Service) Recover(ctx context.Context) error {
	running, err := l.sandboxes.Recover(ctx)
	if err != nil {
		return fmt.Errorf("recovering containers: %w", err)
	}
	records, err := l.store.Boxes()
	if err = errors.Join(err, fault.At(ctx, "recover: containers known")); err != nil {
		return err
	}
	statuses := map[policy.BoxID]launcher.Status{}
	for _, status := range running {
		statuses[status.ID] = status
	}
	l.pickUp(ctx, records, statuses)
	if err := fault.At(ctx, "recover: boxes picked up"); err != nil {
		return err
	}
	l.removeUnknown(ctx, running)
	if err := l.snapshots.shelf.Recover(); err != nil {
		return fmt.Errorf("recovering snapshots: %w", err)
	}
	if err := l.sandboxes.PruneAttached(l.boxes); err != nil {
		return fmt.Errorf("releasing network namespaces: %w", err)
	}
	if err := l.firewall.Prune(ctx); err != nil {
		return fmt.Errorf("removing interfaces of boxes that are gone: %w", err)
	}
	return nil
}

// removeUnknown removes containers that belong to no box.
func (l *Service) removeUnknown(ctx context.Context, running []launcher.Status) {
	for _, status := range running {
		if _, err := l.boxes.Find(status.ID); err == nil {
			continue
		}
		l.log.Warn("a container without a box is removed", zap.String("box", string(status.ID)))
		if err := l.sandboxes.Delete(ctx, status.ID); err != nil {
			l.log.Error("it could not be removed; it has no network", zap.String("box", string(status.ID)), zap.Error(err))
		}
	}
}

// pickUp makes the stored boxes known and gives them their network. A box that cannot be recovered is closed and in state
// error; it keeps neither the others nor the gateway from starting.
func (l *Service) pickUp(ctx context.Context, records []store.Box, running map[policy.BoxID]launcher.Status) {
	var ready []*provisioning
	spent := l.quota.SpentOf(records)
	for _, r := range records {
		b, err := l.stored(r)
		b.Spent.Store(spent[r.ID])
		b.Lock()
		defer b.Unlock()
		l.boxes.Add(b)
		if b.Status == api.StatusDeleted || b.Status == api.StatusCreating && !r.Promised {
			l.reapOrphan(ctx, b)
			continue
		}
		l.expireLater(b, time.Until(b.Record.ExpiresAt))
		if b.Status == api.StatusCreating {
			l.breakOff(ctx, b)
		}
		if b.Status == api.StatusError {
			continue
		}
		if b.Attached != nil {
			pin, _ := l.sandboxes.AttachedNamespace(b.ID) // "" if it is gone
			b.Follow(pin)
		}
		p := &provisioning{box: b, running: running}
		steps := recoverSteps
		if stopped := running[r.ID].State == launcher.StateStopped; stopped {
			steps = stoppedSteps
		}
		if err == nil {
			err = l.provision(ctx, p, steps)
		}
		if errors.Is(err, launcher.ErrNamespaceGone) {
			err = l.recoverGone(ctx, b)
			if err == nil {
				continue
			}
		}
		if err != nil {
			l.giveUp(b, err)
			continue
		}
		if p.compiled == nil { // it has no network until it is started
			b.Status, b.Problem = api.StatusPaused, ""
			b.Publish()
			continue
		}
		ready = append(ready, p)
	}
	l.rejoin(ctx, ready)
}

// rejoin gives boxes their network: all of them together, and then those for which that failed one by one, since the fault
// may have been another's. The caller holds the locks of all.
func (l *Service) rejoin(ctx context.Context, ready []*provisioning) {
	connected := map[policy.BoxID]bool{}
	err := change.Contain(l.log, func() error { return l.rejoinTogether(ctx, ready, connected) })
	if err != nil {
		l.log.Warn("some boxes could not be connected together, and are connected one by one", zap.Error(err))
	}
	for _, p := range ready {
		if !connected[p.box.ID] {
			if err := l.provision(ctx, p, rejoinSteps); err != nil {
				l.giveUp(p.box, err)
				continue
			}
		}
		l.wakeUp(ctx, p)
	}
}

// wakeUp shows a box that has its network. What the runtime says of it counts: a gateway that died while it paused or resumed
// the box leaves it awake, unless its sleep was stored. The caller holds the lock of b.
func (l *Service) wakeUp(ctx context.Context, p *provisioning) {
	b, asleep := p.box, p.running[p.box.ID].State == launcher.StatePaused
	if asleep && b.Status == api.StatusIdle {
		if err := l.sandboxes.Resume(ctx, b.ID); err == nil {
			asleep = false
		} else {
			l.log.Error("a box that was frozen could not be resumed", zap.String("box", string(b.ID)), zap.Error(err))
		}
	}
	b.Status, b.Problem = api.StatusIdle, ""
	if asleep {
		b.Status = api.StatusPaused
	}
	b.Publish()
	if b.Attached == nil {
		l.usage.Watch(b)
	}
}

// rejoinTogether connects boxes, cuts connections that the kernel may have let through under a policy that was never
// committed, and notes for which boxes that succeeded.
func (l *Service) rejoinTogether(ctx context.Context, ready []*provisioning, connected map[policy.BoxID]bool) error {
	var list []enforce.Joining
	for _, p := range ready {
		list = append(list, enforce.Joining{Box: &p.box.Box, At: p.at(), Compiled: p.compiled})
	}
	errs := l.net.ConnectAll(ctx, list)
	var joined []*policy.Box
	for i, err := range errs {
		if err == nil {
			joined = append(joined, list[i].Box)
		}
	}
	if err := l.net.CutAllFlows(ctx, joined); err != nil {
		return err
	}
	for _, b := range joined {
		connected[b.ID] = true
	}
	return errors.Join(errs...)
}

// recoverGone picks up an attached box whose namespace was gone before this start. The caller holds the lock of b.
func (l *Service) recoverGone(ctx context.Context, b *state.Box) error {
	problem := b.Record.Error
	if b.Status != api.StatusGone {
		problem = "its network namespace is gone, as after a restart of the host: attach it again with `gateway box reattach`"
	}
	if err := l.provision(ctx, &provisioning{box: b}, []step{(*provisioning).findURLs}); err != nil {
		return err
	}
	b.ShowGone(problem)
	return nil
}

// giveUp shows that a box could not be recovered. The caller holds the lock of b.
func (l *Service) giveUp(b *state.Box, err error) {
	l.log.Error("a box could not be recovered; it stays closed", zap.String("box", string(b.ID)), zap.Error(err))
	b.Ended = errors.Is(err, state.ErrEnded)
	b.ShowError("it could not be recovered after a restart of the gateway: " + err.Error())
}

// stored makes a box of what the store holds of it. After an error it is one that may reach nothing, to be shown and deleted.
func (l *Service) stored(r store.Box) (*state.Box, error) {
	b, err := l.readStored(r)
	if err != nil {
		b = state.NewBox(r, store.Policy{Spec: policy.Spec{Mode: policy.ModeDenyAll}}, store.Headers{}, api.Hosted{})
	}
	return b, err
}

func (l *Service) readStored(r store.Box) (*state.Box, error) {
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
	if p.Named != "" { // as at every moment but those of a change, which was committed as a whole
		if p.Spec, err = l.shared.Named(p.Named, ""); err != nil {
			return nil, err
		}
	}
	p.Leases = l.shared.Anchored(p.Leases)
	return state.NewBox(r, p, headers, hosted), nil
}

// errBrokenOff is why a box could not be made that the gateway did not live to complete.
var errBrokenOff = errors.New("the gateway was started anew while it was being made")

// breakOff removes what there is of a box that was being made when the gateway ended, and that its caller asks for. The caller
// holds b.mu.
func (l *Service) breakOff(ctx context.Context, b *state.Box) {
	cause := errBrokenOff
	if err := l.sandboxes.Release(ctx, b); err != nil {
		cause = errors.Join(cause, err)
	}
	_ = l.keepFailed(b, cause)
}

// reapOrphan removes a box that was half made or half deleted when the gateway ended. Its interface, if it has one, is
// closed and is pruned. The caller holds the lock of b.
func (l *Service) reapOrphan(ctx context.Context, b *state.Box) {
	err := l.sandboxes.Release(ctx, b)
	if err == nil {
		err = l.forget(b)
	}
	if err != nil {
		l.log.Error("a box that was half made or half deleted could not be removed", zap.String("box", string(b.ID)), zap.Error(err))
		b.ShowError("it was half made or half deleted when the gateway ended, and could not be removed; delete it")
	}
}
