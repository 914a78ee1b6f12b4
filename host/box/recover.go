package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/enforce"
	"boxgate/host/state"
	"boxgate/internal/fault"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// Recover recovers the boxes of an earlier run. Running boxes stay up and are reconnected under their committed policy.
// Boxes without processes, because the host was restarted, become paused until they are used. Boxes that were being
// created or deleted when the gateway died are removed, as are interfaces without a stored box.
func (l *Service) Recover(ctx context.Context) error {
	running, err := l.sandboxes.Recover(ctx)
	if err != nil {
		return fmt.Errorf("recovering containers: %w", err)
	}
	records, err := l.records.All()
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
	if err := l.snapshots.manager.Recover(); err != nil {
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

// removeUnknown removes containers without a stored box.
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

// pickUp adds the stored boxes to the table and connects them. A box that cannot be recovered is closed and in state
// error; it does not prevent the others or the gateway from starting.
func (l *Service) pickUp(ctx context.Context, records []store.Box, running map[policy.BoxID]launcher.Status) {
	var ready []*provisioning
	spent := l.quota.SpentOf(records)
	for _, r := range records {
		b, err := l.loadBox(r)
		b.Spent.Store(spent[r.ID])
		b.Lock()
		defer b.Unlock()
		l.boxes.Add(b)
		if b.Status == api.StatusDeleted || b.Status == api.StatusCreating && !r.Promised {
			l.reapOrphan(ctx, b)
			continue
		}
		l.lifetimes.follow(b)
		l.lifetimes.keep(b)
		if b.Status == api.StatusCreating {
			l.failInterrupted(ctx, b)
		}
		if b.Status == api.StatusError {
			continue
		}
		if b.Attached != nil {
			pin, _ := l.sandboxes.AttachedNamespace(b.ID) // "" if the namespace is gone
			b.Follow(pin)
		}
		p := &provisioning{box: b, running: running}
		steps := recoverSteps
		if stopped := running[r.ID].State == launcher.StateStopped; stopped {
			steps = stoppedSteps
		}
		if b.IsRemote() {
			steps = recoverRemoteSteps
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
			l.showUnrecovered(b, err)
			continue
		}
		if p.compiled == nil { // disconnected until it is started
			b.Status, b.Problem = api.StatusPaused, ""
			b.Publish()
			continue
		}
		ready = append(ready, p)
	}
	l.rejoin(ctx, ready)
}

// rejoin connects boxes, all together first. Boxes for which that failed are then connected one by one, because another
// box may have caused the failure. The caller holds the locks of all of them.
func (l *Service) rejoin(ctx context.Context, ready []*provisioning) {
	connected := map[policy.BoxID]bool{}
	err := change.Contain(l.log, func() error { return l.rejoinTogether(ctx, ready, connected) })
	if err != nil {
		l.log.Warn("some boxes could not be connected together, and are connected one by one", zap.Error(err))
	}
	for _, p := range ready {
		if !connected[p.box.ID] {
			if err := l.provision(ctx, p, rejoinSteps); err != nil {
				l.showUnrecovered(p.box, err)
				continue
			}
		}
		l.restoreState(ctx, p)
	}
}

// restoreState sets the state of a recovered box to that of its container. A box that the gateway was pausing or resuming when
// it died ends up running, unless its pause was stored. The caller holds the lock of b.
func (l *Service) restoreState(ctx context.Context, p *provisioning) {
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

// rejoinTogether connects boxes, and cuts connections that the kernel may have accepted under a policy that was never
// committed. It adds the boxes that succeeded to connected.
func (l *Service) rejoinTogether(ctx context.Context, ready []*provisioning, connected map[policy.BoxID]bool) error {
	var list []enforce.Joining
	for _, p := range ready {
		list = append(list, enforce.Joining{Box: &p.box.Box, At: p.location(), Compiled: p.compiled})
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

// recoverGone recovers an attached box whose namespace was gone before this start. The caller holds the lock of b.
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

// showUnrecovered puts a box that could not be recovered in state error. The caller holds the lock of b.
func (l *Service) showUnrecovered(b *state.Box, err error) {
	l.log.Error("a box could not be recovered; it stays closed", zap.String("box", string(b.ID)), zap.Error(err))
	b.Ended = errors.Is(err, state.ErrEnded)
	b.ShowError("it could not be recovered after a restart of the gateway: " + err.Error())
}

// loadBox loads a box from its record. With an error the box denies everything, and exists only to be shown and deleted.
func (l *Service) loadBox(r store.Box) (*state.Box, error) {
	b, err := l.readBox(r)
	if err != nil {
		b = state.NewBox(r, store.Policy{Spec: policy.Spec{Mode: policy.ModeDenyAll}}, store.Headers{}, api.Hosted{}, 0)
	}
	l.describeTap(b)
	return b, err
}

func (l *Service) readBox(r store.Box) (*state.Box, error) {
	p, err := l.rules.Policy(r.ID)
	// A box that was still being allocated has no policy yet. For any other box a missing policy is an error; the default
	// policy must not replace it.
	if unfinished := r.State == string(api.StatusCreating); err != nil && (!unfinished || !errors.Is(err, store.ErrNotFound)) {
		return nil, err
	}
	headers, err := l.rules.Headers(r.ID)
	if err != nil {
		return nil, err
	}
	var hosted api.Hosted
	if err := json.Unmarshal(r.Extra, &hosted); err != nil {
		return nil, fmt.Errorf("its record is damaged: %w", err)
	}
	if r.PlaceholderKey.Reveal() == "" { // created by an older version
		r.PlaceholderKey = store.NewKey()
		if err := l.records.Update(r); err != nil {
			return nil, err
		}
	}
	if p.Named != "" { // a no-op: a named policy and its followers' copies are committed together
		if p.Spec, err = l.shared.Named(p.Named, ""); err != nil {
			return nil, err
		}
	}
	p.Leases = l.shared.RebaseLeases(p.Leases)
	last, err := l.shared.LastVersion(l.rules, r.ID, p.Leases)
	if err != nil {
		return nil, err
	}
	return state.NewBox(r, p, headers, hosted, last), nil
}

// errCreationInterrupted is the cause for a box whose creation was interrupted by the end of the gateway.
var errCreationInterrupted = errors.New("the gateway was restarted while the box was being created")

// failInterrupted removes the remains of a box whose creation was interrupted after it had been promised to its caller. The
// caller holds the lock of b.
func (l *Service) failInterrupted(ctx context.Context, b *state.Box) {
	cause := errCreationInterrupted
	if err := l.sandboxes.Release(ctx, b); err != nil {
		cause = errors.Join(cause, err)
	}
	_ = l.keepFailed(b, cause)
}

// reapOrphan removes a box that was half created or half deleted when the gateway ended. Its interface, if any, is
// closed, and is pruned later. The caller holds the lock of b.
func (l *Service) reapOrphan(ctx context.Context, b *state.Box) {
	err := l.sandboxes.Release(ctx, b)
	if err == nil {
		err = l.removeBox(b)
	}
	if err != nil {
		l.log.Error("a box that was half made or half deleted could not be removed", zap.String("box", string(b.ID)), zap.Error(err))
		b.ShowError("it was half made or half deleted when the gateway ended, and could not be removed; delete it")
	}
}

// restartSteps start a box again with its files: after a reboot, or when its first process has ended. As for a new box,
// the namespace comes first, then the policy, then the first process.
var restartSteps = []step{
	(*provisioning).disconnect, (*provisioning).renewNamespace, // releases the lock, so the policy is compiled afterwards
	(*provisioning).compile, (*provisioning).addAuthority, (*provisioning).makeReachable, (*provisioning).connect, (*provisioning).awaitNetwork,
	(*provisioning).restartProcess,
}

// Restart takes a box through restartSteps. If one fails, the box is left without processes. The caller holds the lock of
// b, and has begun a change of its state.
func (l *Provisioner) Restart(ctx context.Context, b *state.Box) error {
	if err := l.provision(ctx, &provisioning{box: b}, restartSteps); err != nil {
		return err
	}
	l.log.Info("a box was started again", zap.String("box", string(b.ID)))
	return nil
}

// disconnect removes the remains of an ended box's network.
func (p *provisioning) disconnect(ctx context.Context) error {
	p.reach.Remove(p.box.ID)
	if !p.box.Connected() {
		return nil
	}
	return p.net.Disconnect(ctx, &p.box.Box)
}

// renewNamespace makes a new network namespace for the box, without any process in it.
func (p *provisioning) renewNamespace(ctx context.Context) error {
	p.undo.Add(func(ctx context.Context) error {
		return p.box.Unlocked(func() error { return p.sandboxes.Stop(ctx, p.box.ID) })
	})
	return p.box.Unlocked(func() (err error) {
		p.netns, err = p.sandboxes.Renew(ctx, p.box.ID)
		return err
	})
}

// restartProcess starts the first process of the box.
func (p *provisioning) restartProcess(ctx context.Context) error {
	if err := p.unlockedStep(func() error { return p.sandboxes.Restart(ctx, p.launchSpec()) }); err != nil {
		return err
	}
	p.box.Rooted = p.sandboxes.GivesRoot()
	return fault.At(ctx, "restart: box runs")
}

// concurrentStarts is how many boxes are started concurrently.
const concurrentStarts = 4

// StartKept starts the paused boxes that are configured to be kept alive.
func (l *Service) StartKept(ctx context.Context) error {
	var group errgroup.Group
	group.SetLimit(concurrentStarts)
	for _, b := range l.boxes.All() {
		if v := b.Shown.Load(); !v.KeepAlive || v.Status != api.StatusPaused || ctx.Err() != nil {
			continue
		}
		group.Go(func() error {
			if err := l.usage.Wake(ctx, b.ID); err != nil {
				l.log.Error("a box that is to be kept alive could not be started", zap.String("box", string(b.ID)), zap.Error(err))
			}
			return nil
		})
	}
	return group.Wait()
}
