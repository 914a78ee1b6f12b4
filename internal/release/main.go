// Command release builds the distributed artifacts of boxgate: static binaries of the gateway and the demo for amd64
// and arm64 with their bills of materials, Debian packages, and container images. They depend only on the commit and
// the toolchain, so that two machines produce the same bytes. `make release`, `make deb` and `make oci` run it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
)

const usage = `usage: release [-out DIRECTORY] [-arch amd64,arm64] [-debs DIRECTORY] [-unprofiled] WHAT...

  binaries   static binaries and their bills of materials (CycloneDX)
  deb        Debian packages
  oci        container images of the gateway, for docker load
  docs       man pages and completions, as the packages have them

SHA256SUMS lists what was made. With -debs, images take Debian's packages (dist/download.sh) from there instead of the archive. With -unprofiled, the gateway is
compiled without its profile, in a tenth of the time: it is slower by a few percent.
`

// debs is the directory of the Debian packages for images. If empty, they are downloaded.
var debs string

// unprofiled compiles the gateway without its profile.
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
		"binaries": makeBinaries, "deb": makePackages, "oci": makeImages,
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
		return writeSums(*out)
	}
	return nil
}
