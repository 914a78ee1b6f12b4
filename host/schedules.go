package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"net/http"
	"slices"
	"strings"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/schedules"
	"boxgate/host/change"
	"boxgate/host/errand"
	"boxgate/host/keys"
	"boxgate/host/schedule"
	"boxgate/host/state"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/proxy"
	quotas "boxgate/quota"
	"boxgate/store"
)

// scheduled keeps the schedules of boxes and makes their runs.
type scheduled struct {
	log         *zap.Logger
	store       *store.DB
	boxes       *state.Table
	commands    *commands
	history     *history.History
	authorities *authorities
	proxy       *proxy.Proxy
	roots       *x509.CertPool // of webhooks
	holdings    *keys.Holdings
	scheduler   *schedule.Scheduler
}

// newScheduled completes s with its scheduler.
func newScheduled(s scheduled) *scheduled {
	webhooks := &schedule.Webhooks{Client: s.ErrandClient, Note: s.noteDelivery}
	s.scheduler = &schedule.Scheduler{Log: s.log, Store: s.store, Runner: &scheduledRuns{s.commands, s.history}, Now: fault.Now, Deliver: webhooks.Deliver}
	return &s
}

// ErrandClient implements the Host of [boxgate/api/harness]: its requests are those of the box.
func (s *scheduled) ErrandClient(id policy.BoxID) (*http.Client, error) {
	b, err := s.boxes.Find(id)
	if err != nil {
		return nil, err
	}
	ca, err := s.authorities.CA(context.Background(), id)
	if err != nil {
		return nil, err
	}
	roots := s.roots.Clone()
	roots.AppendCertsFromPEM(ca)
	return errand.Client(s.proxy, &b.Box, roots), nil
}

func (s *scheduled) noteDelivery(of store.Schedule, err error) {
	if err != nil {
		s.history.Log(of.Box, "error", "system", "the webhook of schedule %s did not get the result: %v", of.ID, err)
		return
	}
	s.history.Log(of.Box, "info", "system", "the webhook of schedule %s got the result", of.ID)
}

// Schedules implements the Host of [boxgate/api/schedules].
func (s *scheduled) Schedules(_ context.Context, id policy.BoxID) ([]schedules.Schedule, error) {
	list, err := s.store.Schedules(id)
	if err != nil {
		return nil, err
	}
	var out []schedules.Schedule
	for _, one := range list {
		out = append(out, shownSchedule(one))
	}
	slices.SortFunc(out, func(a, b schedules.Schedule) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return out, nil
}

// AddSchedule implements the Host of [boxgate/api/schedules].
func (s *scheduled) AddSchedule(ctx context.Context, id policy.BoxID, spec schedules.Spec) (schedules.Schedule, error) {
	b, err := s.boxes.Find(id)
	if err != nil {
		return schedules.Schedule{}, err
	}
	if b.Attached != nil {
		return schedules.Schedule{}, state.ErrAttached
	}
	if err := checkSchedule(spec); err != nil {
		return schedules.Schedule{}, err
	}
	done, err := s.holdings.Reserve(ctx, quotas.Schedules, 1)
	if err != nil {
		return schedules.Schedule{}, err
	}
	defer done()
	made := store.Schedule{ID: "sched_" + strings.ToLower(rand.Text()), Box: id, CreatedBy: keys.CreatorOf(ctx)}
	writeSchedule(&made, spec)
	made, err = s.scheduler.Add(made)
	return shownSchedule(made), s.answer(err)
}

// ChangeSchedule implements the Host of [boxgate/api/schedules].
func (s *scheduled) ChangeSchedule(_ context.Context, box policy.BoxID, id string, change func(*schedules.Spec) error) (schedules.Schedule, error) {
	return s.change(box, id, func(now *store.Schedule) error {
		spec := shownSchedule(*now).Spec
		if err := change(&spec); err != nil {
			return err
		}
		if err := checkSchedule(spec); err != nil {
			return err
		}
		writeSchedule(now, spec)
		return nil
	})
}

// PauseSchedule implements the Host of [boxgate/api/schedules].
func (s *scheduled) PauseSchedule(_ context.Context, box policy.BoxID, id string, paused bool) (schedules.Schedule, error) {
	return s.change(box, id, func(now *store.Schedule) error {
		now.Paused = paused
		return nil
	})
}

func (s *scheduled) change(box policy.BoxID, id string, change func(*store.Schedule) error) (schedules.Schedule, error) {
	changed, err := s.scheduler.Change(box, id, change)
	return shownSchedule(changed), s.answer(err)
}

// DeleteSchedule implements the Host of [boxgate/api/schedules].
func (s *scheduled) DeleteSchedule(_ context.Context, box policy.BoxID, id string) error {
	return s.answer(s.scheduler.Delete(box, id))
}

// answer is the answer to a change of a schedule that ended with err.
func (s *scheduled) answer(err error) error {
	refused := (*document.InvalidError)(nil)
	switch {
	case err == nil, errors.As(err, &refused):
		return err
	case errors.Is(err, store.ErrNotFound):
		return api.Errorf(api.ErrNotFound, "the box has no such schedule")
	case errors.Is(err, store.ErrTooMany):
		return api.Errorf(api.ErrLimit, "the box has %d schedules, which is the limit; delete one", schedule.Most)
	}
	return change.NotStored(s.log, "the schedule could not be stored", err)
}

// checkSchedule finds mistakes in what a schedule is made of.
func checkSchedule(s schedules.Spec) error {
	var problems []document.Problem
	if _, err := schedule.Parse(s.Cron, s.TimeZone); err != nil {
		at := "/cron"
		if schedule.IsZoneError(err) {
			at = "/time_zone"
		}
		problems = append(problems, document.Problem{Pointer: at, Message: err.Error()})
	}
	if s.WebhookURL != "" {
		if err := schedule.CheckURL(s.WebhookURL); err != nil {
			problems = append(problems, document.Problem{Pointer: "/webhook_url", Message: err.Error()})
		}
	}
	if problems != nil {
		return &document.InvalidError{Problems: problems}
	}
	return nil
}

// writeSchedule takes over what is written of a schedule.
func writeSchedule(to *store.Schedule, s schedules.Spec) {
	to.Type, to.Cron, to.TimeZone, to.Command, to.Prompt, to.Folder = s.Type, s.Cron, s.TimeZone, s.Command, s.Prompt, s.Folder
	to.Model, to.AgentOptions, to.Timeout = s.Model, s.AgentOptions, s.Timeout
	to.WebhookURL, to.WebhookHeaders = s.WebhookURL, s.WebhookHeaders
}

func shownSchedule(s store.Schedule) schedules.Schedule {
	return schedules.Schedule{
		Spec: schedules.Spec{
			Type: s.Type, Cron: s.Cron, TimeZone: s.TimeZone, Command: s.Command, Prompt: s.Prompt, Folder: s.Folder, Model: s.Model,
			AgentOptions: s.AgentOptions, Timeout: s.Timeout, WebhookURL: s.WebhookURL, WebhookHeaders: s.WebhookHeaders,
		},
		ID: s.ID, Box: s.Box, Paused: s.Paused, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, NextRunAt: schedule.Next(s),
		LastRunAt: s.LastRunAt, LastRunStatus: s.LastRunStatus, LastRunID: s.LastRunID, LastError: s.LastError,
		Runs: s.Runs, Failures: s.Failures,
	}
}
