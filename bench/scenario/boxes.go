package scenario

import (
	"errors"
	"time"

	"boxgate/bench/field"
	"boxgate/bench/stat"
)

// boxes measures the steps in the life of a launched box.
func boxes(f Form) Scenario {
	s := Scenario{
		ID: "S13", Title: "The life of a box", Cost: perStep,
		Note: "Each step of a launched box, from the request to its answer. exec runs /bin/true; by runc alone, it is `runc exec` in the same box, " +
			"past the gateway: what is left to gain. resume is that of a box that was just paused. snapshot is that of a running box which " +
			"has written 1,000 files of 10 KiB, until it is ready, on disk. fork of 20 makes 20 boxes of that snapshot at once, until a command " +
			"has run in each.",
	}
	for _, step := range []string{field.StepCreate, field.StepExec, field.StepRuntime, field.StepPause, field.StepResume, field.StepSnapshot, field.StepFork, field.StepDelete} {
		s.Cases = append(s.Cases, Case{Name: step, Coarse: true, Own: life(f, step)})
	}
	return s
}

// stepsOfBox is the number of repetitions of a repeatable step with one box.
const stepsOfBox = 5

// life measures one step with new boxes.
func life(f Form, step string) func(Turn) ([]Sample, error) {
	return func(t Turn) ([]Sample, error) {
		var taken times
		for range f.Creates {
			if err := taken.ofBox(t, step); err != nil {
				return nil, err
			}
		}
		return []Sample{{
			Cost: float64(taken.sum) / 1e6 / float64(taken.n), Rate: float64(taken.n) / taken.sum.Seconds(),
			P50: float64(taken.all.Quantile(0.5)) / 1e3, P99: float64(taken.all.Quantile(0.99)) / 1e3,
		}}, nil
	}
}

// times collects the durations of one step.
type times struct {
	all stat.Histogram
	sum time.Duration
	n   int
}

// measure measures f.
func (t *times) measure(f func() error) error {
	begun := time.Now()
	err := f()
	took := time.Since(begun)
	t.all.Add(took)
	t.sum += took
	t.n++
	return err
}

// ofBox launches a box, runs the step with it and deletes it.
func (t *times) ofBox(turn Turn, step string) (err error) {
	var box *field.LaunchedBox
	launch := func() (err error) {
		box, err = turn.gateway.Launch(turn.ctx)
		return err
	}
	if step == field.StepCreate {
		err = t.measure(launch)
	} else {
		err = launch()
	}
	if err != nil {
		return err
	}
	deleted := func() error { return box.Delete(turn.ctx) }
	switch step {
	case field.StepCreate:
		return deleted()
	case field.StepDelete:
		return t.measure(deleted)
	}
	defer func() { err = errors.Join(err, deleted()) }()
	if step == field.StepSnapshot || step == field.StepFork {
		return t.ofSnapshot(turn, box, step)
	}
	for range stepsOfBox {
		if step == field.StepResume {
			err = box.Step(turn.ctx, field.StepPause)
		}
		if err == nil {
			err = t.measure(func() error { return box.Step(turn.ctx, step) })
		}
		if err == nil && step == field.StepPause {
			err = box.Step(turn.ctx, field.StepResume)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forks is the number of boxes created concurrently from a snapshot.
const forks = 20

// ofSnapshot takes a snapshot of a box, forks it if that is the step, and deletes the results.
func (t *times) ofSnapshot(turn Turn, box *field.LaunchedBox, step string) error {
	if err := box.Write(turn.ctx); err != nil {
		return err
	}
	var snapshot string
	take := func() (err error) {
		snapshot, err = box.Snapshot(turn.ctx)
		return err
	}
	if step == field.StepSnapshot {
		return errors.Join(t.measure(take), turn.gateway.DeleteSnapshot(turn.ctx, snapshot))
	}
	if err := take(); err != nil {
		return errors.Join(err, turn.gateway.DeleteSnapshot(turn.ctx, snapshot))
	}
	var made []*field.LaunchedBox
	err := t.measure(func() (err error) {
		made, err = turn.gateway.Fork(turn.ctx, snapshot, forks)
		return err
	})
	for _, b := range made {
		err = errors.Join(err, b.Delete(turn.ctx))
	}
	return errors.Join(err, turn.gateway.DeleteSnapshot(turn.ctx, snapshot))
}
