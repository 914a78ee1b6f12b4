// Command bench measures boxgate with its default settings against its peers, and one build against another. `make
// bench` and `make bench-compare` run it. docs/benchmarking.md describes the method.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"boxgate/bench/load"
	"boxgate/bench/origin"
	"boxgate/bench/peer"
	"boxgate/bench/report"
)

func main() {
	ctx := context.Background()
	if len(os.Args) < 2 || os.Args[1] != "peer" { // peers exit on the signal itself
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
	}
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command runs the command named by the first argument. Commands other than run and compare are for the processes that
// the bench starts.
func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		args = []string{"run"}
	}
	switch name, args := args[0], args[1:]; {
	case name == "run":
		return runCommand(ctx, args)
	case name == "compare":
		return compareCommand(ctx, args)
	case name == "load" && len(args) == 0:
		return generate(ctx)
	case name == "origin" && len(args) == 2:
		return origin.Serve(ctx, args[0], args[1], func() {})
	case name == "peer" && len(args) == 2 && args[0] == "echo":
		return origin.Echo(args[1])
	case name == "peer" && len(args) == 2 && args[0] == "steer":
		return peer.ServeTransparent(ctx, args[1])
	case name == "peer" && len(args) > 4 && args[0] == "minimal":
		return peer.Minimal(args[1], args[2], args[3], args[4:])
	case name == "peer" && len(args) == 5 && args[0] == "goproxy":
		return peer.Goproxy(args[1], args[2], args[3], args[4])
	case name == "peer" && len(args) > 4 && args[0] == "net/http":
		return peer.NetHTTP(args[1], args[2], args[3], args[4:])
	}
	return errors.New("usage: bench run|compare [flags]")
}

// generate runs the load generator: it reads options from standard input and writes a result to standard output.
func generate(ctx context.Context) error {
	var o load.Options
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return err
	}
	result, err := load.Run(ctx, o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// The names of the two builds.
const (
	head = "head"
	base = "base"
)

// compareCommand measures two builds against each other, and fails if the first costs more than the second.
func compareCommand(ctx context.Context, args []string) error {
	var revision, binary string
	var threshold float64
	starts := 4
	o, err := parse("compare", args, func(fs *flag.FlagSet) {
		fs.IntVar(&starts, "starts", starts, "how often to start both gateways anew; each time all rounds are measured")
		fs.StringVar(&revision, "base", "", "the revision to compare with")
		fs.StringVar(&binary, "gateway", "bin/gateway", "the gateway to measure")
		fs.Float64Var(&threshold, "threshold", 1.1, "the ratio of costs that is a regression")
	})
	if err != nil {
		return err
	}
	o.starts = starts
	o.form.Limit *= time.Duration(max(starts, 1))
	dir, err := os.MkdirTemp("", "boxgate-base-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Println("building", revision)
	older, source, err := buildRevision(ctx, revision, dir, o.images)
	if err != nil {
		return err
	}
	r := o.report(ctx, head)
	b := &bench{options: o, builds: []build{{head, binary, "."}, {base, older, source}}}
	if r.Samples, err = b.run(ctx); err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	return gate(r, threshold)
}

// buildRevision builds the gateway of another revision from an export, and the image of its boxes, which may be an
// older one. The working tree does not change.
func buildRevision(ctx context.Context, revision, dir, images string) (binary, source string, err error) {
	if revision == "" {
		return "", "", errors.New("name the revision to compare with: make bench-compare BASE=revision")
	}
	archive := filepath.Join(dir, "source.tar")
	source = filepath.Join(dir, "source")
	binary = filepath.Join(dir, "gateway")
	if err := os.Mkdir(source, 0o700); err != nil {
		return "", "", err
	}
	compile := exec.CommandContext(ctx, "go", "build", "-C", source, "-o", binary, "./cmd/gateway")
	for _, step := range []*exec.Cmd{
		exec.CommandContext(ctx, "git", "archive", "--format=tar", "-o", archive, "--end-of-options", revision),
		exec.CommandContext(ctx, "tar", "-x", "-f", archive, "-C", source),
		compile,
		exec.CommandContext(ctx, binary, "image", "build", "debian", "--dir", images),
	} {
		step.Env = append(os.Environ(), "CGO_ENABLED=0")
		if step == compile {
			step.Args = withProfile(step.Args, source)
		}
		if out, err := step.CombinedOutput(); err != nil {
			return "", "", fmt.Errorf("%s: %w: %s", step, err, out)
		}
	}
	return binary, source, nil
}

// withProfile adds to a build of sources the profile with which their releases are compiled, if they have one.
func withProfile(args []string, source string) []string {
	profile := filepath.Join(source, "cmd", "gateway", "release.pgo")
	if _, err := os.Stat(profile); err != nil {
		return args
	}
	return slices.Insert(slices.Clone(args), 4, "-pgo="+profile) // behind -C, which must be the first flag
}

// gate prints the comparison and returns an error if there is a regression.
func gate(r *report.Report, threshold float64) error {
	lines, regressions := r.Compare(base, threshold)
	fmt.Printf("\n%-4s %-18s %10s %10s  ratio\n", "", "", base, head)
	for _, l := range lines {
		fmt.Println(l)
	}
	if len(lines) == 0 {
		return errors.New("no case was measured in both builds")
	}
	if len(regressions) == 0 {
		fmt.Printf("\nno cost grew beyond %.2f times\n", threshold)
		return nil
	}
	var errs []error
	for _, l := range regressions {
		errs = append(errs, errors.New("regression: "+l))
	}
	return errors.Join(errs...)
}
