package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"boxgate/bench/field"
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

func decide() Scenario {
	return Scenario{
		ID: "S10", Title: "The decision itself", Cost: perCall,
		Note: "The function that every verdict comes from, without anything around it, against a policy of 1,000 names and 1,000 networks: the Go benchmark beside it in package policy, the slowest of its requests. Not measured where the source is not at hand.",
		Cases: []Case{
			{Name: "policy.Decide", Coarse: true, Own: decisions},
			{Name: "its allocations", Cost: perAlloc, Own: allocations},
		},
		Targets: []Goal{atMost("policy.Decide", "", 300), atMost("its allocations", "", 0)},
	}
}

// through measures calls for a box by another host of a fleet. The costs are ratios to a bare hop, measured in turns with it.
func through() Scenario {
	s := Scenario{
		ID: "S15", Title: "Calls through another host of a fleet", Cost: timesHop,
		Note: "GET of a box by another host of the fleet, compared with the same call by a bare httputil.ReverseProxy with mutual TLS 1.3 to the owner, in turns: the time by the clock of the median call, " +
			"one after the other and 16 at a time, and of an upload of 64 MiB. It is the test TestCostOfACallThroughAnotherHost in e2e/fleet, with gateways, etcd and boxes of its own; p50 is the time through the host. Not measured where the source is not at hand.",
	}
	for _, name := range hopCases {
		s.Cases = append(s.Cases, Case{Name: name, Coarse: true, Own: func(t Turn) ([]Sample, error) { return t.gateway.hop(t, name) }})
		s.Targets = append(s.Targets, atMost(name, "", 2))
	}
	return s
}

// hopCases are the names of the cases, as the test prints them.
var hopCases = []string{"calls one after the other", "16 calls at a time", "an upload of 64 MiB"}

// hop returns a ratio of the test, which runs once per round.
func (g *gateway) hop(t Turn, name string) ([]Sample, error) {
	if g.hops.ratios == nil || g.hops.round != t.round {
		cmd := exec.CommandContext(t.ctx, "go", "test", "-C", g.source, "-run", "^TestCostOfACallThroughAnotherHost$", "-count", "1", "-v", "./e2e/fleet")
		cmd.Env = append(os.Environ(), "BOXGATE_NIGHTLY=1", "GATEWAY_TEST_COST_ROUNDS=3")
		out, err := cmd.CombinedOutput()
		g.hops.round, g.hops.ratios = t.round, parseHops(string(out))
		if err != nil && len(g.hops.ratios) < len(hopCases) { // a missed target alone fails the test, too
			return nil, fmt.Errorf("%w: %s", err, out[max(0, len(out)-1000):])
		}
	}
	sample, ok := g.hops.ratios[name]
	if !ok {
		return nil, errors.New("the test does not measure " + name)
	}
	return []Sample{sample}, nil
}

// hopLine is a result of the test.
var hopLine = regexp.MustCompile(`: ([a-zA-Z0-9 ]+): ([0-9.]+) times a bare hop \(.*; (\S+) and \S+`)

// parseHops reads the ratios from the output of the test, by case.
func parseHops(text string) map[string]Sample {
	ratios := map[string]Sample{}
	for _, m := range hopLine.FindAllStringSubmatch(text, -1) {
		took, err := time.ParseDuration(m[3])
		if ratio := number(m[2]); ratio > 0 && err == nil {
			ratios[m[1]] = Sample{Cost: ratio, Rate: 1 / took.Seconds(), P50: float64(took) / 1e3}
		}
	}
	return ratios
}

// observations measures the sums of the traffic of boxes.
func observations() Scenario {
	const name = "10,000 decisions"
	return Scenario{
		ID: "S14", Title: "The traffic of boxes, summed up", Cost: perSecond,
		Note:    "10,000 decisions of 20 boxes, with 2,000 different observations: the time of one second's, summed up and written to disk as the gateway does it beside its traffic. It is the Go benchmark beside it in package observe. Not measured where the source is not at hand.",
		Cases:   []Case{{Name: name, Coarse: true, Own: observed}},
		Targets: []Goal{atMost(name, "", 200)},
	}
}

func observed(t Turn) ([]Sample, error) {
	ns, _, err := t.gateway.benchmark(t.ctx, "./observe", "BenchmarkSecond", "1s")
	return []Sample{{Cost: ns / 1e6, Rate: 1e13 / ns}}, err
}

func decisions(t Turn) ([]Sample, error) {
	ns, _, err := t.gateway.decisionCost(t)
	return []Sample{{Cost: ns, Rate: 1e9 / ns}}, err
}

func allocations(t Turn) ([]Sample, error) {
	_, count, err := t.gateway.decisionCost(t)
	return []Sample{{Cost: count}}, err
}

// decisionCost returns the result of the benchmark, which runs once per round.
func (g *gateway) decisionCost(t Turn) (ns, allocations float64, err error) {
	if g.decision.round != t.round || g.decision.ns == 0 {
		ns, allocations, err = g.decide(t.ctx)
		g.decision.round, g.decision.ns, g.decision.allocations = t.round, ns, allocations
	}
	return g.decision.ns, g.decision.allocations, err
}

// decide returns the nanoseconds and the allocations of the slowest request.
func (g *gateway) decide(ctx context.Context) (ns, allocations float64, err error) {
	return g.benchmark(ctx, "./policy", "BenchmarkDecide", "100ms")
}

// benchmark runs a benchmark of the gateway's source for a time.
func (g *gateway) benchmark(ctx context.Context, pkg, name, lasts string) (ns, allocations float64, err error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-C", g.source, "-run", "^$", "-bench", "^"+name+"$", "-benchmem", "-benchtime", lasts, pkg)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %s", err, complaint.String())
	}
	return parseBenchmark(string(out))
}

// parseBenchmark returns the highest figures in the output of a Go benchmark.
func parseBenchmark(text string) (ns, allocations float64, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if !strings.HasPrefix(line, "Benchmark") {
			continue
		}
		for i := 1; i < len(fields); i++ {
			switch fields[i] {
			case "ns/op":
				ns = max(ns, number(fields[i-1]))
			case "allocs/op":
				allocations = max(allocations, number(fields[i-1]))
			}
		}
	}
	if ns == 0 {
		return 0, 0, fmt.Errorf("not the output of a benchmark: %q", text)
	}
	return ns, allocations, nil
}

func number(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return n
}
