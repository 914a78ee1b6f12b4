// Command release builds the distributed artifacts of boxgate: static binaries of the gateway and the demo for amd64
// and arm64 with their bills of materials, Debian and RPM packages, and container images. They depend only on the commit
// and the toolchain, so that two machines produce the same bytes. `make release`, `make deb`, `make rpm` and `make oci`
// run it.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"boxgate/cmd/gateway/command"
)

const usage = `usage: release [-out DIRECTORY] [-arch amd64,arm64] [-debs DIRECTORY] [-unprofiled] WHAT...

  binaries   static binaries and their bills of materials (CycloneDX)
  deb        Debian packages
  rpm        RPM packages, by rpmbuild
  oci        container images of the gateway, for docker load
  docs       man pages and completions, as the packages have them

SHA256SUMS lists what was made. With -debs, images take Debian's packages (dist/download.sh) from there instead of the
archive. With -unprofiled, the programs are compiled without the profile, in a tenth of the time: the gateway is slower
by a few percent.
`

// debs is the directory of the Debian packages for images. If empty, they are downloaded.
var debs string

// unprofiled compiles the programs without the profile.
var unprofiled bool

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run builds the artifacts requested on the command line.
func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("release", flag.ExitOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	out := flags.String("out", "bin/release", "")
	arches := flags.String("arch", "amd64,arm64", "")
	flags.StringVar(&debs, "debs", "", "")
	flags.BoolVar(&unprofiled, "unprofiled", false, "")
	_ = flags.Parse(args) // exits on errors
	makers := map[string]func(context.Context, string, []string) error{
		"binaries": makeBinaries, "deb": makePackages, "rpm": makeRPMs, "oci": makeImages,
		"docs": func(_ context.Context, out string, _ []string) error { return makeDocs(out) },
	}
	if flags.NArg() == 0 {
		flags.Usage()
		os.Exit(2)
	}
	list := strings.Split(*arches, ",")
	for _, arch := range list {
		if !slices.Contains(architectures, arch) {
			return fmt.Errorf("no binaries are made for %q; use %s", arch, strings.Join(architectures, " or "))
		}
	}
	if slices.Contains(flags.Args(), "rpm") { // ask before minutes of compiling
		if _, err := exec.LookPath("rpmbuild"); err != nil {
			return errors.New("rpmbuild is missing; install it with: apt-get install rpm")
		}
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	for _, what := range flags.Args() {
		make, ok := makers[what]
		if !ok {
			flags.Usage()
			os.Exit(2)
		}
		if err := make(ctx, *out, list); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if len(artifacts) > 0 {
		return step("adding checksums", func() error { return writeSums(*out) })
	}
	return nil
}

// step runs work and reports its name, every three seconds its time, and its end, so that no builder looks stuck.
func step(name string, work func() error) error {
	fmt.Fprintln(os.Stderr, name)
	start := time.Now()
	seconds := func() int { return int(time.Since(start).Seconds()) }
	done := make(chan error, 1)
	go func() { done <- work() }()
	tick := time.NewTicker(3 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			fmt.Fprintf(os.Stderr, "%s  %d s\n", name, seconds())
		case err := <-done:
			if err == nil {
				fmt.Fprintf(os.Stderr, "%s  done in %d s\n", name, seconds())
			}
			return err
		}
	}
}

// makeDocs writes man pages and completions below out, without dates.
func makeDocs(out string) error {
	if err := os.MkdirAll(filepath.Join(out, "man"), 0o755); err != nil {
		return err
	}
	if err := writeManPages(filepath.Join(out, "man"), time.Time{}); err != nil {
		return err
	}
	for _, c := range completions {
		if err := c.write(out); err != nil {
			return err
		}
	}
	return nil
}

// writeManPages writes one page for each command into a directory.
func writeManPages(dir string, date time.Time) error {
	root := command.Tree()
	prepare(root)
	return doc.GenManTree(root, &doc.GenManHeader{Section: "8", Source: "boxgate", Manual: "boxgate", Date: &date}, dir)
}

// prepare removes from the pages the parts that change from day to day.
func prepare(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	for _, below := range cmd.Commands() {
		prepare(below)
	}
}

// completion is the completion script of one shell and its install path.
type completion struct {
	path     string // below the root of a file system
	generate func(*cobra.Command, *bytes.Buffer) error
}

var completions = []completion{
	{"usr/share/bash-completion/completions/gateway", func(c *cobra.Command, b *bytes.Buffer) error { return c.GenBashCompletionV2(b, true) }},
	{"usr/share/zsh/vendor-completions/_gateway", func(c *cobra.Command, b *bytes.Buffer) error { return c.GenZshCompletion(b) }},
	{"usr/share/fish/vendor_completions.d/gateway.fish", func(c *cobra.Command, b *bytes.Buffer) error { return c.GenFishCompletion(b, true) }},
}

func (c completion) write(root string) error {
	var text bytes.Buffer
	if err := c.generate(command.Tree(), &text); err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	return write(root, c.path, text.Bytes(), 0o644)
}

// write writes a file below a directory, and the directories above it.
func write(root, path string, data []byte, mode os.FileMode) error {
	at := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(at, data, mode); err != nil {
		return err
	}
	return os.Chmod(at, mode) // independent of the umask
}
