package scenario

import (
	"context"
	"errors"
	"time"

	"boxgate/bench/proc"
	"boxgate/bench/stat"
)

// Turn is one gateway in one round of a case without a load.
type Turn struct {
	ctx     context.Context
	gateway *gateway
	round   int
}

// put replaces policies of boxes.
func put(f Form, rules int) func(Turn) ([]Sample, error) {
	return func(t Turn) ([]Sample, error) {
		if err := t.gateway.Populate(t.ctx, f.Boxes); err != nil {
			return nil, err
		}
		pids := []int{t.gateway.PID()}
		var latencies stat.Histogram
		cpu, begun := proc.CPU(pids), time.Now()
		for i := range f.Puts {
			sent := time.Now()
			if err := t.gateway.PutPolicy(t.ctx, i*7+t.round, rules, t.round*f.Puts+i); err != nil {
				return nil, err
			}
			latencies.Add(time.Since(sent))
		}
		spent := float64(proc.CPU(pids).Since(cpu)) / 1e6
		return []Sample{{
			Cost: spent / float64(f.Puts), Rate: float64(f.Puts) / time.Since(begun).Seconds(),
			P50: float64(latencies.Quantile(0.5)) / 1e3, P99: float64(latencies.Quantile(0.99)) / 1e3,
		}}, nil
	}
}

// restart stops the gateway and starts it again.
func restart(f Form) func(Turn) ([]Sample, error) {
	return func(t Turn) ([]Sample, error) {
		if err := t.gateway.Populate(t.ctx, f.Boxes); err != nil {
			return nil, err
		}
		if err := t.gateway.Stop(); err != nil {
			return nil, err
		}
		begun := time.Now()
		if err := t.gateway.Start(t.ctx); err != nil {
			return nil, err
		}
		took := time.Since(begun)
		spent := proc.CPU([]int{t.gateway.PID()}).Since(nil)
		var boxes []any
		if err := t.gateway.Client.Get(t.ctx, "/v2/box", &boxes); err != nil {
			return nil, err
		}
		if len(boxes) <= f.Boxes {
			return nil, errors.New("boxes are missing after the start")
		}
		return []Sample{{Cost: float64(spent) / 1e6, Rate: 1 / took.Seconds(), P50: float64(took) / 1e3, P99: float64(took) / 1e3}}, nil
	}
}
