package box

import (
	"context"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/state"
)

// makingMost bounds the making of a box, an image that has to be pulled for it included.
const makingMost = time.Hour

// creation is a box being made.
type creation struct {
	*Service
	box      *state.Box
	ended    chan error // gets the outcome
	promised bool       // the caller was told that the box is being made; guarded by the box's lock
}

// run makes the box. The caller holds the box's lock, which run releases.
func (m *creation) run(ctx context.Context) error {
	b := m.box
	defer b.Unlock()
	defer b.BeginMove()()
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

// keepFailed shows whoever asks for the box why it could not be made. Nothing of it runs.
func (l *Service) keepFailed(b *state.Box, cause error) error {
	l.log.Error("a box could not be created", zap.String("box", string(b.ID)), zap.Error(cause))
	problem := "it could not be created; delete it, and create it again: " + cause.Error()
	if err := b.SetState(l.store, api.StatusError, problem); err != nil {
		b.ShowError(problem)
	}
	return cause
}

// await waits for the box, and for at most that time. After that the box is said to be in the making. A caller who has gone
// before has it undone.
func (m *creation) await(ctx context.Context, most time.Duration, cancel func()) (api.Box, error) {
	limit := time.NewTimer(most)
	defer limit.Stop()
	select {
	case err := <-m.ended:
		return m.answer(err)
	case <-ctx.Done():
		cancel()
	case <-limit.C:
		if box, ok, err := m.promise(); ok || err != nil {
			return box, err
		}
	}
	return m.answer(<-m.ended)
}

func (m *creation) answer(err error) (api.Box, error) {
	if err != nil {
		return api.Box{}, err
	}
	m.box.Lock()
	defer m.box.Unlock()
	return m.box.ViewWithWarnings(), nil
}

// promise stores that the box will be there, or say why not, unless its making has ended by now.
func (m *creation) promise() (box api.Box, ok bool, err error) {
	b := m.box
	b.Lock()
	defer b.Unlock()
	if b.Deleting || b.Status != api.StatusCreating {
		return api.Box{}, false, nil
	}
	record := b.Record
	record.Promised = true
	if err := m.store.UpdateBox(record); err != nil {
		return api.Box{}, false, change.NotStored(m.log, "that the box is being made could not be stored; it goes on, or is removed when the gateway is started anew", err)
	}
	b.Record, m.promised = record, true
	return b.ViewWithWarnings(), true, nil
}
