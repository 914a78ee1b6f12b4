package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"boxgate/bench/load"
)

// Runner measures programs.
type Runner struct {
	Programs []Program
	Form     Form
	Out      func(Sample)
	Log      io.Writer

	broken map[Program]error // programs of this scenario that did not start, with the error
}

// Run measures all cases of a scenario in rounds. In each round the programs take turns in random order. The failure of
// a peer is recorded in its samples and does not stop the others.
func (r *Runner) Run(ctx context.Context, s Scenario) (err error) {
	programs := r.programsOf(s)
	defer func() { err = errors.Join(err, stopAll(programs)) }()
	r.broken = map[Program]error{}
	for _, p := range programs {
		err := p.Start(ctx)
		if _, ours := p.(*gateway); ours && err != nil {
			return fmt.Errorf("%s: %w", p.Name(), err)
		}
		r.broken[p] = err
	}
	for round := range r.rounds(s) {
		for _, c := range s.Cases {
			order := r.takePart(c)
			rand.Shuffle(len(order), func(i, k int) { order[i], order[k] = order[k], order[i] })
			for _, p := range order {
				r.measureTurn(ctx, s, c, p, round)
				if ctx.Err() != nil {
					return ctx.Err()
				}
			}
		}
	}
	return nil
}

func (r *Runner) rounds(s Scenario) int {
	if s.Cost == memoryConn {
		return r.Form.MemoryRounds
	}
	return r.Form.Rounds
}

// programsOf returns the programs that take part in a case and run throughout the scenario.
func (r *Runner) programsOf(s Scenario) (out []Program) {
	for _, p := range r.Programs {
		if slices.ContainsFunc(s.Cases, func(c Case) bool { return !c.Restart && slices.Contains(r.takePart(c), p) }) {
			out = append(out, p)
		}
	}
	return out
}

// takePart returns the programs that support a case.
func (r *Runner) takePart(c Case) (out []Program) {
	for _, p := range r.Programs {
		_, ours := p.(*gateway)
		if ours || c.Own == nil && p.Plays(c.Role) && (c.Only == nil || slices.Contains(c.Only, p.Name())) && (!c.Restart || p.Name() != Direct) {
			out = append(out, p)
		}
	}
	return out
}

func stopAll(programs []Program) error {
	var errs []error
	for _, p := range programs {
		errs = append(errs, p.Stop())
	}
	return errors.Join(errs...)
}

// measureTurn measures one program in one case of one round.
func (r *Runner) measureTurn(ctx context.Context, s Scenario, c Case, p Program, round int) {
	if c.Cost == "" {
		c.Cost = s.Cost
	}
	samples, err := r.measure(ctx, c, p, round)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		samples = []Sample{{Error: err.Error()}}
	}
	for _, sample := range samples {
		sample.Scenario, sample.Case, sample.Program, sample.Round = s.ID, c.Name, p.Name(), round
		r.Out(sample)
		fmt.Fprintln(r.Log, sample)
	}
}

// String returns a line of progress.
func (s Sample) String() string {
	line := fmt.Sprintf("%-4s %-16s %-10s round %d", s.Scenario, s.Case, s.Program, s.Round+1)
	if s.Error != "" {
		return line + "  failed: " + s.Error
	}
	return line + fmt.Sprintf("  cost %9.3f  rate %12.1f/s  p50 %9.0f µs  p99 %9.0f µs", s.Cost, s.Rate, s.P50, s.P99)
}

func (r *Runner) measure(ctx context.Context, c Case, p Program, round int) (samples []Sample, err error) {
	if err := r.broken[p]; err != nil {
		return nil, err
	}
	if g, ours := p.(*gateway); ours && c.Boxes > 0 {
		if err := g.AttachMore(ctx, c.Boxes); err != nil {
			return nil, err
		}
	}
	if c.Own != nil {
		return c.Own(Turn{ctx, p.(*gateway), round})
	}
	if c.Restart {
		if err := p.Start(ctx); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, p.Stop()) }()
	}
	target, err := p.Target(c.Role)
	if err != nil {
		return nil, err
	}
	c.Set(&target.Load, round)
	if c.Restart { // one-time setup must not count as the cost of a connection
		if err := r.warmUp(ctx, target); err != nil {
			return nil, err
		}
	}
	result, err := target.generate(ctx)
	if err != nil {
		return nil, err
	}
	if result.TLS != "" && result.TLS != target.TLS {
		return nil, fmt.Errorf("negotiated %s in the place of %s", result.TLS, target.TLS)
	}
	if result.Errors > 0 {
		return nil, fmt.Errorf("%d errors, one of them: %s", result.Errors, result.Error)
	}
	if target.Load.Kind == load.Idle {
		return memoryGrowth(result), nil
	}
	return []Sample{sample(c.Cost, target.Load.Kind, result)}, nil
}

// warmUp sends a few requests.
func (r *Runner) warmUp(ctx context.Context, t Target) error {
	t.Load.Kind, t.Load.Conns, t.Load.Count = load.KeepAlive, 4, 200
	_, err := t.generate(ctx)
	return err
}

// sample returns the cost of a unit: in microseconds of CPU time, in seconds per gigabyte, or per packet.
func sample(unit string, kind load.Kind, r load.Result) Sample {
	s := Sample{Cost: r.PerUnit(), Rate: r.Rate(), P50: r.P50, P99: r.P99, Client: float64(r.Client) / 1e3 / float64(r.Units)}
	if kind == load.Download || kind == load.Upload { // the latency of whole bodies adds nothing to the rate
		s.Cost, s.Rate, s.P50, s.P99 = s.Cost*1e3, s.Rate/1e6, 0, 0
	}
	if unit == perPacket {
		s.Cost = float64(r.Softirq) / 1e3 / float64(max(r.Packets, 1))
	}
	return s
}

// memoryGrowth returns the growth of the memory at each step, in KB per connection.
func memoryGrowth(r load.Result) (out []Sample) {
	base := r.Held[0].Bytes
	for _, h := range r.Held[1:] {
		out = append(out, Sample{Cost: float64(h.Bytes-base) / 1024 / float64(h.Conns), Conns: float64(h.Conns)})
	}
	return out
}

// generate runs the load generator, which is this program, in the namespace of the client.
func (t Target) generate(ctx context.Context) (r load.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.Load.Warm+t.Load.Window+5*time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	options, err := json.Marshal(t.Load)
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, self, "load")
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(options), &out, &complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := t.From.Start(cmd); err != nil {
		return r, err
	}
	if err := cmd.Wait(); err != nil {
		return r, fmt.Errorf("%w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}
