// Command structure prints how the packages of this module are built: the circles that their files form by referring to
// each other, and the lengths of their functions. Package measure defines what counts; structure_test.go in the
// module's root sets the limits.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"boxgate/internal/structure/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status: 0, 1 if the module cannot be measured, 2 for a mistake in the command.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("structure", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("C", ".", "a `directory` of the module; what is below it is measured")
	pkg := flags.String("pkg", "", "print the circles of this `package`, and the identifiers that close them")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "unexpected argument %q; choose a package with -pkg\n", flags.Arg(0))
		return 2
	}
	packages, err := measure.Module(ctx, *root)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	if *pkg == "" {
		table(stdout, packages)
		return 0
	}
	i := slices.IndexFunc(packages, func(p measure.Package) bool { return p.Dir == strings.Trim(*pkg, "./") })
	if i < 0 {
		fmt.Fprintf(stderr, "no package %q; name its directory, as in -pkg internal/memory\n", *pkg)
		return 2
	}
	explain(stdout, packages[i])
	return 0
}

// table prints one line for each package and one for all.
func table(out io.Writer, packages []measure.Package) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	fmt.Fprint(w, "package\tfiles\tlines\tlargest circle\tlines\tfunctions\tmedian\tp90\tmax\t\n")
	all := measure.Package{Dir: "all"}
	for _, p := range packages {
		row(w, p)
		all.Files, all.Functions = append(all.Files, p.Files...), append(all.Functions, p.Functions...)
		if c := p.Largest(); len(c.Files) > len(all.Largest().Files) {
			all.Circles = []measure.Circle{c}
		}
	}
	row(w, all)
}

func row(w io.Writer, p measure.Package) {
	c, s := p.Largest(), measure.SizesOf(p.Functions)
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n",
		p.Dir, len(p.Files), p.Lines(), len(c.Files), c.Lines, s.Count, s.Median, s.P90, s.Max)
}

// explain prints each circle of p, and what each of its files uses of the others.
func explain(out io.Writer, p measure.Package) {
	if len(p.Circles) == 0 {
		fmt.Fprintf(out, "%s: no circles\n", p.Dir)
	}
	for _, c := range p.Circles {
		fmt.Fprintf(out, "%s: a circle of %d files, %d lines\n", p.Dir, len(c.Files), c.Lines)
		for _, f := range p.Files {
			if slices.Contains(c.Files, f.Name) {
				uses(out, f, c)
			}
		}
	}
}

func uses(out io.Writer, f measure.File, c measure.Circle) {
	fmt.Fprintf(out, "  %s (%d lines)\n", f.Name, f.Lines)
	names := map[string][]string{}
	for _, u := range f.Uses {
		names[u.File] = append(names[u.File], u.Name)
	}
	for _, file := range c.Files {
		if len(names[file]) > 0 {
			fmt.Fprintf(out, "    uses %s: %s\n", file, strings.Join(names[file], ", "))
		}
	}
}
