package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"boxgate/bench/load"
	"boxgate/bench/peer"
	"boxgate/bench/proc"
	"boxgate/bench/stat"
)

// Turn is the turn of a gateway in one round of a case without a load.
type Turn struct {
	ctx     context.Context
	gateway *gateway
	round   int
}

func policyPut(f Form) Scenario {
	s := Scenario{
		ID: "S9", Title: "Policy updates", Cost: perPut,
		Note: fmt.Sprintf("A PUT replaces the policy of one box, with %d boxes attached, and is answered when the new one is in force. Half of the rules are names, half networks. "+
			"p50 and p99 are those of the answer.", f.Boxes),
	}
	for _, rules := range []int{10, 100, 1000} {
		most := 10_000.
		if rules == 1000 {
			most = 25_000
		}
		name := fmt.Sprintf("%d rules", rules)
		s.Cases = append(s.Cases, Case{Name: name, Boxes: f.Boxes, Own: putPolicies(f, rules)})
		s.Targets = append(s.Targets, Goal{Case: name, Of: P99, Bound: most})
	}
	return s
}

// putPolicies replaces policies of boxes.
func putPolicies(f Form, rules int) func(Turn) ([]Sample, error) {
	return func(t Turn) ([]Sample, error) {
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

func start(f Form) Scenario {
	boxes, most := fmt.Sprintf("%d boxes", f.Boxes), 2_000_000.
	if f.Boxes > 1000 {
		most = 15_000_000
	}
	return Scenario{
		ID: "S12", Title: "Start, and the first command of a box", Cost: perStart,
		Note: fmt.Sprintf("From the start of the process until it is ready, with %d boxes attached; p50 is the time that takes. "+
			"First command: from the request to create a box, whose image is unpacked, until /bin/true has run in it.", f.Boxes),
		Cases: []Case{
			{Name: boxes, Boxes: f.Boxes, Own: restart(f)},
			{Name: "first command", Cost: perCreate, Coarse: true, Own: create(f)},
		},
		Targets: []Goal{{Case: boxes, Of: P99, Bound: most}, {Case: "first command", Bound: 150}},
	}
}

// restart restarts the gateway.
func restart(f Form) func(Turn) ([]Sample, error) {
	return func(t Turn) ([]Sample, error) {
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

// create creates boxes sequentially.
func create(f Form) func(Turn) ([]Sample, error) {
	return func(t Turn) ([]Sample, error) {
		var latencies stat.Histogram
		var sum time.Duration
		for range f.Creates {
			took, err := t.gateway.FirstCommand(t.ctx)
			if err != nil {
				return nil, err
			}
			latencies.Add(took)
			sum += took
		}
		return []Sample{{
			Cost: float64(sum) / 1e6 / float64(f.Creates), Rate: float64(f.Creates) / sum.Seconds(),
			P50: float64(latencies.Quantile(0.5)) / 1e3, P99: float64(latencies.Quantile(0.99)) / 1e3,
		}}, nil
	}
}

func cuts(f Form) Scenario {
	s := Scenario{
		ID: "S11", Title: "A tightened policy cuts what is open", Cost: untilCut,
		Note: fmt.Sprintf("%[1]d open connections, and a PUT of a policy that allows none of them: from its sending until the last connection is cut; p50 and p99 are those of the connections of one PUT. "+
			"Forwarded by the kernel: each of them sends ten requests a second, and has been cut when its last answer has come. "+
			"Public URL: the connections are %[2]d WebSockets from one address, and the URL is deleted.", f.Cut, f.Visitors),
	}
	for _, c := range []struct {
		name string
		role peer.Role
	}{{"intercepted", peer.Intercept}, {"passed on", peer.SpliceBulk}, {"forwarded by the kernel", peer.Routed}, {"public URL", peer.WebSocket}} {
		s.Cases = append(s.Cases, Case{Name: c.name, Coarse: true, Own: cutConnections(f, c.role)})
		s.Targets = append(s.Targets, Goal{Case: c.name, Of: Worst, Bound: 50})
	}
	return s
}

// cutConnections opens connections and cuts them by a policy change or by deleting a public URL.
func cutConnections(f Form, role peer.Role) func(Turn) ([]Sample, error) {
	return func(t Turn) ([]Sample, error) {
		target, err := t.gateway.Target(role)
		if err != nil {
			return nil, err
		}
		o := &target.Load
		o.Kind, o.Conns = load.Cut, f.Cut
		if role == peer.SpliceBulk {
			o.Path = "/open/1k"
		}
		if o.Upgraded = role == peer.WebSocket; o.Upgraded {
			o.Conns = f.Visitors
			o.Change, err = t.gateway.DeleteURLChange()
		} else {
			o.Change, err = t.gateway.DenyAllChange(kernel(role))
		}
		if err != nil {
			return nil, err
		}
		result, err := target.generate(t.ctx)
		if err := errors.Join(err, t.gateway.Restore(t.ctx)); err != nil {
			return nil, err
		}
		return []Sample{{Cost: result.Last / 1e3, P50: result.P50, P99: result.P99}}, nil
	}
}
