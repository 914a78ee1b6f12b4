package box

import (
	"context"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/internal/fault"
)

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
