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
			"past the gateway: what is left to gain. resume is that of a box that was just paused.",
	}
	for _, step := range []string{field.StepCreate, field.StepExec, field.StepRuntime, field.StepPause, field.StepResume, field.StepDelete} {
		s.Cases = append(s.Cases, Case{Name: step, Coarse: true, Own: life(f, step)})
	}
	return s
}

// stepsOfBox is how often a step is taken with one box, where it can be repeated.
const stepsOfBox = 5

// life takes one step of boxes, and measures it.
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

// times are those of one step.
type times struct {
	all stat.Histogram
	sum time.Duration
	n   int
}

// of measures f.
func (t *times) of(f func() error) error {
	begun := time.Now()
	err := f()
	took := time.Since(begun)
	t.all.Add(took)
	t.sum += took
	t.n++
	return err
}

// ofBox launches a box, takes the step with it and deletes it.
func (t *times) ofBox(turn Turn, step string) (err error) {
	var box *field.LaunchedBox
	launch := func() (err error) {
		box, err = turn.gateway.Launch(turn.ctx)
		return err
	}
	if step == field.StepCreate {
		err = t.of(launch)
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
		return t.of(deleted)
	}
	defer func() { err = errors.Join(err, deleted()) }()
	for range stepsOfBox {
		if step == field.StepResume {
			err = box.Step(turn.ctx, field.StepPause)
		}
		if err == nil {
			err = t.of(func() error { return box.Step(turn.ctx, step) })
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
