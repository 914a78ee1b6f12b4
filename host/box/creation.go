package box

import (
	"context"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/state"
)

// creationTimeout is the time limit for creating a box, including the pull of its image.
const creationTimeout = time.Hour

// creation is a box that is being created.
type creation struct {
	*Service
	box      *state.Box
	result   chan error // receives the result
	promised bool       // the caller was answered before the box was complete; guarded by the box's lock
}

// run creates the box. The caller holds the box's lock, which run releases.
func (m *creation) run(ctx context.Context) error {
	b := m.box
	defer b.Unlock()
	defer b.BeginStateChange()()
	err := m.provision(ctx, &provisioning{box: b}, launchSteps)
	switch {
	case err == nil:
		m.usage.Watch(b)
		m.usage.RunInit(b)
		m.expireLater(b, time.Until(b.Record.ExpiresAt))
		return nil
	case m.promised && !b.Deleting:
		m.expireLater(b, time.Until(b.Record.ExpiresAt))
		return m.keepFailed(b, err)
	}
	return m.discard(b, err)
}

// keepFailed keeps a box that could not be created, in state error with the cause. It has no processes.
func (l *Service) keepFailed(b *state.Box, cause error) error {
	l.log.Error("a box could not be created", zap.String("box", string(b.ID)), zap.Error(cause))
	problem := "it could not be created; delete it, and create it again: " + cause.Error()
	if err := b.SetState(l.records, api.StatusError, problem); err != nil {
		b.ShowError(problem)
	}
	return cause
}

// awaitOrPromise waits up to most for the box, and then returns it, in state creating if it is not complete. If ctx is
// canceled earlier, the creation is undone.
func (m *creation) awaitOrPromise(ctx context.Context, most time.Duration, cancel func()) (api.Box, error) {
	limit := time.NewTimer(most)
	defer limit.Stop()
	select {
	case err := <-m.result:
		return m.finish(err)
	case <-ctx.Done():
		cancel()
	case <-limit.C:
		if box, ok, err := m.promiseBox(); ok || err != nil {
			return box, err
		}
	}
	return m.finish(<-m.result)
}

func (m *creation) finish(err error) (api.Box, error) {
	if err != nil {
		return api.Box{}, err
	}
	m.box.Lock()
	defer m.box.Unlock()
	return m.box.ViewWithWarnings(), nil
}

// promiseBox stores that the box has been promised to the caller, so that it is kept even if it fails. ok is false if its
// creation has already ended.
func (m *creation) promiseBox() (box api.Box, ok bool, err error) {
	b := m.box
	b.Lock()
	defer b.Unlock()
	if b.Deleting || b.Status != api.StatusCreating {
		return api.Box{}, false, nil
	}
	record := b.Record
	record.Promised = true
	if err := m.records.Update(record); err != nil {
		return api.Box{}, false, change.NotStored(m.log, "the state of the box could not be stored; its creation continues, but the box is removed if the gateway restarts", err)
	}
	b.Record, m.promised = record, true
	return b.ViewWithWarnings(), true, nil
}
