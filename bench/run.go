package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"boxgate/bench/field"
	"boxgate/bench/peer"
	"boxgate/bench/proc"
	"boxgate/bench/report"
	"boxgate/bench/scenario"
)

// options are the flags common to both commands.
type options struct {
	form       scenario.Form
	only, root string
	samples    string
	images     string
	starts     int // of all programs; each measures all rounds
}

// parse reads the flags of a command. more adds its own flags.
func parse(name string, args []string, more func(*flag.FlagSet)) (options, error) {
	var o options
	var long, tiny bool
	var rounds, boxes int
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.BoolVar(&long, "long", false, "the long form: some 45 minutes in the place of 13")
	fs.BoolVar(&tiny, "tiny", false, "hardly measure: to see that everything works")
	fs.IntVar(&rounds, "rounds", 0, "rounds, if not those of the form")
	fs.IntVar(&boxes, "boxes", 0, "boxes to attach where their number matters, if not those of the form")
	fs.StringVar(&o.only, "scenarios", "", "the scenarios to run, as S1,S6; empty: all")
	fs.StringVar(&o.root, "peers", "/var/lib/boxgate/peers", "where dist/peers.sh has unpacked the peers")
	fs.StringVar(&o.samples, "samples", "bin/bench-"+name+".jsonl", "file that every sample is written to")
	fs.StringVar(&o.images, "images", "/var/lib/boxgate/images", "where `gateway image build` has unpacked the debian image")
	more(fs)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	o.form = scenario.Short
	if long {
		o.form = scenario.Long
	}
	if tiny {
		o.form = scenario.Tiny
	}
	if rounds > 0 {
		o.form.Rounds = rounds
	}
	if boxes > 0 {
		o.form.Boxes = boxes
	}
	most := raiseFiles() // the gateway divides its descriptors among several uses
	o.form.Idle, o.form.Visitors = min(o.form.Idle, most/6), min(o.form.Visitors, most/80)
	if o.only != "" && len(o.scenarios()) != len(strings.Split(o.only, ",")) {
		return o, fmt.Errorf("no such scenarios: %s", o.only)
	}
	return o, nil
}

// scenarios returns the selected scenarios.
func (o options) scenarios() (out []scenario.Scenario) {
	for _, s := range scenario.All(o.form) {
		if o.only == "" || strings.Contains(","+o.only+",", ","+s.ID+",") {
			out = append(out, s)
		}
	}
	return out
}

// ours is the name of the gateway in the report.
const ours = "boxgate"

// runCommand measures the gateway and its peers, and writes the report.
func runCommand(ctx context.Context, args []string) error {
	var binary, out string
	o, err := parse("run", args, func(fs *flag.FlagSet) {
		fs.StringVar(&binary, "gateway", "bin/gateway", "the gateway to measure")
		fs.StringVar(&out, "o", "docs/benchmarks.md", "the report; its plots are in a directory beside it")
	})
	if err != nil {
		return err
	}
	peers := peer.Root(o.root).All(ctx)
	r := o.report(ctx, ours)
	r.Programs = []report.Version{{Name: ours, Version: version(ctx, binary)}}
	for _, p := range peers {
		r.Programs = append(r.Programs, report.Version{Name: p.Name, Version: p.Version})
	}
	r.Programs = append(r.Programs,
		report.Version{Name: scenario.Tproxy, Version: "before a listener of a few lines"}, report.Version{Name: scenario.Bare, Version: "of the kernel"},
		report.Version{Name: scenario.Direct, Version: "at all: the load generator and the origin by themselves"})
	b := &bench{options: o, builds: []build{{ours, binary, "."}}, peers: peers}
	r.Samples, err = b.run(ctx)
	if len(r.Samples) == 0 || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	return errors.Join(err, write(r, out))
}

// report returns the report of a run before its measurements.
func (o options) report(ctx context.Context, ours string) *report.Report {
	return &report.Report{
		Date: time.Now().UTC().Format("2 January 2006 15:04 MST"), Revision: revision(ctx), Machine: proc.Machine(), Load: proc.Load(),
		Form: o.form, Scenarios: o.scenarios(), Ours: ours,
	}
}

// write writes the page and its plots.
func write(r *report.Report, path string) error {
	dir := strings.TrimSuffix(path, filepath.Ext(path))
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // documentation
		return err
	}
	err := os.WriteFile(path, []byte(r.Markdown()), 0o644) //nolint:gosec // documentation
	for name, svg := range r.Plots() {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(svg), 0o644)) //nolint:gosec // documentation
	}
	if err == nil {
		fmt.Println("written:", path)
	}
	return err
}

// revision describes the revision of the working tree.
func revision(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func version(ctx context.Context, gateway string) string {
	out, err := exec.CommandContext(ctx, gateway, "--version").Output()
	if err != nil || len(out) == 0 {
		return revision(ctx)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimPrefix(first, "gateway ")
}

// build is one gateway to measure.
type build struct{ name, binary, source string }

// bench is one run: the builds and peers in the selected scenarios.
type bench struct {
	options
	builds  []build
	peers   []*peer.Peer
	samples []scenario.Sample
	start   int // number of the current start of the programs, from 0
}

// run measures and stops everything that it started. On an error it also returns the results so far.
func (b *bench) run(ctx context.Context) (samples []scenario.Sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.form.Limit)
	defer cancel()
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces need root: run this with sudo")
	}
	file, err := b.create()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var failed []error
	for b.start = range max(b.starts, 1) {
		if b.starts > 1 {
			fmt.Printf("\nstart %d of %d\n", b.start+1, b.starts)
		}
		if err := b.measure(ctx, file); err != nil {
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return b.samples, errors.Join(failed...)
}

// measure starts all programs, measures the scenarios and stops the programs.
func (b *bench) measure(ctx context.Context, samples io.Writer) (err error) {
	f, err := field.New(ctx, b.images)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	runner, err := b.prepare(ctx, f, samples)
	if err != nil {
		return err
	}
	var failed []error
	for _, s := range b.scenarios() {
		fmt.Printf("\n%s: %s (%s)\n", s.ID, s.Title, s.Cost)
		if err := runner.Run(ctx, s); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", s.ID, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// files is the limit of open files for each program, as for a systemd service.
const files = 1 << 19

// raiseFiles raises the limit of open files, which the programs inherit, as far as permitted. It returns the limit, at
// most files.
func raiseFiles() int {
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files, Max: files}) == nil {
		return files
	}
	var limit syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) // fails only for an unknown resource
	limit.Cur = limit.Max
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) // never lowers the limit
	return int(min(limit.Max, files))
}

// create creates the file of samples.
func (b *bench) create() (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(b.options.samples), 0o755); err != nil { //nolint:gosec // not a secret
		return nil, err
	}
	return os.Create(b.options.samples)
}

// prepare starts the origins and creates the programs.
func (b *bench) prepare(ctx context.Context, f *field.Field, samples io.Writer) (*scenario.Runner, error) {
	root := peer.Root(b.root)
	encoder := json.NewEncoder(samples)
	r := &scenario.Runner{Form: b.form, Log: os.Stdout, Out: func(s scenario.Sample) {
		s.Start = b.start
		b.samples = append(b.samples, s)
		_ = encoder.Encode(s) // the report does not depend on it
	}}
	if _, err := root.Web(ctx, f); err != nil {
		return nil, err
	}
	if _, err := root.Origin(ctx, f); err != nil {
		return nil, err
	}
	for _, build := range b.builds {
		g, err := f.Gateway(ctx, build.name, build.binary)
		if err != nil {
			return nil, err
		}
		if err := root.Backend(ctx, f, g.Box, build.name); err != nil {
			return nil, err
		}
		r.Programs = append(r.Programs, scenario.NewGateway(build.name, build.source, g))
	}
	if len(b.peers) == 0 {
		return r, nil
	}
	if err := root.Backend(ctx, f, f.Client, "peers"); err != nil {
		return nil, err
	}
	for _, p := range b.peers {
		if p.Version == "" {
			fmt.Printf("%s is missing, and is not measured\n", p.Name)
			continue
		}
		r.Programs = append(r.Programs, scenario.NewPeer(p, f, root))
	}
	r.Programs = append(r.Programs, scenario.NewTproxy(f, root), scenario.NewBare(f), scenario.NewDirect(f))
	return r, nil
}
