package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"boxgate/bench/report"
)

// The names of the two builds.
const (
	head = "head"
	base = "base"
)

// compareCommand measures two builds against each other, and fails if the first costs more than the second.
func compareCommand(ctx context.Context, args []string) error {
	var revision, binary string
	var threshold float64
	o, err := parse("compare", args, func(fs *flag.FlagSet) {
		fs.StringVar(&revision, "base", "", "the revision to compare with")
		fs.StringVar(&binary, "gateway", "bin/gateway", "the gateway to measure")
		fs.Float64Var(&threshold, "threshold", 1.1, "the ratio of costs that is a regression")
	})
	if err != nil {
		return err
	}
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
