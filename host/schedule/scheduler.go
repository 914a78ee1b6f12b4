package schedule

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api/history"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/store"
)

// Most is the maximum number of schedules of a box.
const Most = 32

const (
	// lookInterval is the maximum interval between two looks at the clock, which may jump.
	lookInterval = 15 * time.Second
	// setBackBy is how far in the future a settled time must be to prove that the clock was set back.
	setBackBy = 5 * time.Minute
)

// Outcomes of a run.
const (
	Completed = "completed"
	Failed    = "failed"
	Skipped   = "skipped"
)

// Outcome is the result of a run.
type Outcome struct {
	Status    string          // Completed or Failed
	Error     string          // why the run failed, other than by its exit code
	Output    string          // beginning of the command's output
	Truncated bool            // the output was longer
	ExitCode  *int            // nil if no command ran to its end
	Answer    *history.Answer // of an agent
}

// Runner executes the runs. Safe for concurrent use.
type Runner interface {
	// Run executes one run and waits for its end. It calls claim once before the command starts, and fails without
	// starting it if claim fails.
	Run(ctx context.Context, s store.Schedule, claim func(runID string) error) Outcome
	// Skip records that a due time passed during a run.
	Skip(s store.Schedule)
}

// Store stores the schedules; implemented by [store.Schedules].
type Store interface {
	List(box policy.BoxID) ([]store.Schedule, error)
	Add(s store.Schedule, most int) error
	Change(box policy.BoxID, id string, change func(*store.Schedule) error) (store.Schedule, error)
	Delete(box policy.BoxID, id string) error
}

// Scheduler runs due schedules. All fields must be set. Safe for concurrent use.
type Scheduler struct {
	Log    *zap.Logger
	Store  Store
	Runner Runner
	Now    func() time.Time // the wall clock
	// Deliver sends the result of a run to the webhook of its schedule, until ctx is done.
	Deliver func(ctx context.Context, s store.Schedule, p Payload)

	mu      sync.Mutex
	entries map[key]*entry
	woken   chan struct{} // wakes Run before its timer
	running sync.WaitGroup
}

type key struct {
	box policy.BoxID
	id  string
}

// entry is the scheduler's state of a schedule.
type entry struct {
	schedule store.Schedule // as last stored; only Paused, Cron, TimeZone and Settled are used
	rule     Rule
	next     time.Time // zero: never
	busy     bool      // a run is active
}

// update takes over the stored schedule.
func (e *entry) update(s store.Schedule) {
	rule, err := Parse(s.Cron, s.TimeZone)
	if err != nil { // never stored
		rule = Rule{}
	}
	e.schedule, e.rule, e.next = s, rule, rule.Next(s.Settled)
}

// Load reads the schedules of an earlier run of the gateway. Runs that were active then are recorded as failed.
func (d *Scheduler) Load() error {
	list, err := d.Store.List("")
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.woken, d.entries = make(chan struct{}, 1), map[key]*entry{}
	for _, s := range list {
		if s.Claimed != "" {
			cut := Outcome{Status: Failed, Error: "the gateway ended during the run"}
			if s, err = d.Store.Change(s.Box, s.ID, func(s *store.Schedule) error { recordEnd(s, cut, s.Settled); return nil }); err != nil {
				return fmt.Errorf("a schedule of box %s: %w", s.Box, err)
			}
		}
		d.updateLocked(s)
	}
	return nil
}

// updateLocked takes over a stored schedule and wakes Run.
func (d *Scheduler) updateLocked(s store.Schedule) {
	at := key{s.Box, s.ID}
	if d.entries[at] == nil {
		d.entries[at] = &entry{}
	}
	d.entries[at].update(s)
	select {
	case d.woken <- struct{}{}:
	default:
	}
}

// Run runs due schedules until ctx is done, then waits for the active runs, whose contexts are canceled too.
func (d *Scheduler) Run(ctx context.Context) {
	defer d.running.Wait()
	for ctx.Err() == nil {
		t := time.NewTimer(d.due(ctx))
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-d.woken:
		}
		t.Stop()
	}
}

// due starts the due runs, and returns the delay until the next look.
func (d *Scheduler) due(ctx context.Context) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, wait := d.Now().Round(0), fault.Interval(lookInterval)
	for _, e := range d.entries {
		if e.schedule.Settled.After(now.Add(setBackBy)) {
			e.schedule.Settled = now
			e.next = e.rule.Next(now)
		}
		switch {
		case e.schedule.Paused || e.next.IsZero():
			continue
		case !e.next.After(now):
			d.beginLocked(ctx, e, now)
		}
		if !e.next.IsZero() {
			wait = min(wait, e.next.Sub(now))
		}
	}
	return max(wait, time.Millisecond)
}

// beginLocked settles all due times until now with one run, or skips them if a run is active.
func (d *Scheduler) beginLocked(ctx context.Context, e *entry, now time.Time) {
	s, skip := e.schedule, e.busy
	e.schedule.Settled, e.next, e.busy = now, e.rule.Next(now), true
	d.running.Go(func() {
		defer d.contain(s)
		if skip {
			d.skip(s, now)
			return
		}
		defer d.markIdle(key{s.Box, s.ID})
		d.run(ctx, s, now)
	})
}

// markIdle marks a schedule's run as finished.
func (d *Scheduler) markIdle(at key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[at]; e != nil {
		e.busy = false
	}
}

// contain recovers a panic of a run. The panic value is not logged, because it might quote a command.
func (d *Scheduler) contain(s store.Schedule) {
	if recover() != nil {
		d.Log.Error("panic in a run of a schedule", zap.String("box", string(s.Box)), zap.String("schedule", s.ID), zap.Stack("stack"))
	}
}

// skip stores that due times passed during a run.
func (d *Scheduler) skip(s store.Schedule, now time.Time) {
	_, err := d.Store.Change(s.Box, s.ID, func(stored *store.Schedule) error {
		if stale(s, stored) {
			return errStale
		}
		stored.Settled, stored.LastRunStatus = now, Skipped
		return nil
	})
	if err != nil {
		d.logFailure(s, "a skipped run of a schedule was not stored", err)
		return
	}
	d.Runner.Skip(s)
}

// errStale cancels a run if the schedule was paused or changed since it was found due.
var errStale = errors.New("the schedule was changed")

// stale reports whether a schedule was paused or changed since it was found due.
func stale(due store.Schedule, stored *store.Schedule) bool {
	return stored.Paused || !stored.UpdatedAt.Equal(due.UpdatedAt)
}

// run claims and executes a run. Without a stored claim, no command is started.
func (d *Scheduler) run(ctx context.Context, s store.Schedule, now time.Time) {
	var claimed store.Schedule
	out := d.Runner.Run(ctx, s, func(runID string) (err error) {
		if claimed, err = d.claim(s, runID, now); err != nil {
			d.logFailure(s, "a run of a schedule was not stored, and did not begin", err)
			return err
		}
		return fault.At(ctx, "schedule: claimed")
	})
	if claimed.Claimed == "" {
		return
	}
	if err := fault.At(ctx, "schedule: run ended"); err != nil {
		d.logFailure(s, "the end of a run was not stored", err)
		return
	}
	d.finish(ctx, claimed, out, now)
}

// claim stores that a run begins, which settles all due times until now.
func (d *Scheduler) claim(s store.Schedule, runID string, now time.Time) (store.Schedule, error) {
	return d.Store.Change(s.Box, s.ID, func(stored *store.Schedule) error {
		if stale(s, stored) {
			return errStale
		}
		stored.Settled, stored.Claimed = now, runID
		return nil
	})
}

// finish stores the end of a run, then calls the webhook.
func (d *Scheduler) finish(ctx context.Context, claimed store.Schedule, out Outcome, began time.Time) {
	s, err := d.Store.Change(claimed.Box, claimed.ID, func(s *store.Schedule) error {
		if s.Claimed == claimed.Claimed {
			recordEnd(s, out, began)
		}
		return nil
	})
	if err != nil {
		d.logFailure(claimed, "the end of a run was not stored", err)
	}
	if err != nil || s.WebhookURL == "" {
		return
	}
	d.running.Go(func() { // a slow webhook does not delay the next run
		defer d.contain(s)
		d.Deliver(ctx, s, Payload{
			BoxID: s.Box, Status: out.Status, RunID: claimed.Claimed, Output: out.Output, Error: out.Error,
			Metadata: metadataOf(s, out),
		})
	})
}

// recordEnd records the end of the claimed run.
func recordEnd(s *store.Schedule, out Outcome, began time.Time) {
	s.LastRunAt, s.LastRunStatus, s.LastRunID, s.LastError, s.Claimed = began, out.Status, s.Claimed, out.Error, ""
	s.Runs++
	if out.Status != Completed {
		s.Failures++
	}
}

// logFailure logs an error, unless the schedule or its box was deleted or changed.
func (d *Scheduler) logFailure(s store.Schedule, what string, err error) {
	if !errors.Is(err, store.ErrNotFound) && !errors.Is(err, errStale) {
		d.Log.Error(what, zap.String("box", string(s.Box)), zap.String("schedule", s.ID), zap.Error(err))
	}
}

// Add stores and starts a new schedule. It returns the errors of [store.Schedules.Add].
func (d *Scheduler) Add(s store.Schedule) (store.Schedule, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.Now().Round(0)
	s.CreatedAt, s.UpdatedAt, s.Settled = now, now, now
	if err := d.Store.Add(s, Most); err != nil {
		return store.Schedule{}, err
	}
	d.updateLocked(s)
	return s, nil
}

// Change changes a schedule. Due times that have passed count as settled. It returns the errors of
// [store.Schedules.Change].
func (d *Scheduler) Change(box policy.BoxID, id string, change func(*store.Schedule) error) (store.Schedule, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.Store.Change(box, id, func(s *store.Schedule) error {
		if err := change(s); err != nil {
			return err
		}
		now := d.Now().Round(0)
		s.UpdatedAt, s.Settled = now, now
		return nil
	})
	if err != nil {
		return store.Schedule{}, err
	}
	d.updateLocked(s)
	return s, nil
}

// Delete removes a schedule. An active run continues. It returns the errors of [store.Schedules.Delete].
func (d *Scheduler) Delete(box policy.BoxID, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Store.Delete(box, id); err != nil {
		return err
	}
	delete(d.entries, key{box, id})
	return nil
}

// Forget drops the schedules of a box that was deleted from the store.
func (d *Scheduler) Forget(box policy.BoxID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for at := range d.entries {
		if at.box == box {
			delete(d.entries, at)
		}
	}
}

// Next returns a schedule's next due time, zero if it is paused.
func Next(s store.Schedule) time.Time {
	rule, err := Parse(s.Cron, s.TimeZone)
	if err != nil || s.Paused {
		return time.Time{}
	}
	return rule.Next(s.Settled)
}
