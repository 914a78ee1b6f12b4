// Command structure prints the lengths of this module's functions by package, and the longest functions. The limits are
// in internal/repotest.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"boxgate/internal/structure/measure"
)

// longest is the number of functions listed by name.
const longest = 10

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status: 0, 1 if the module cannot be measured, 2 for a mistake in the command.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("structure", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("C", ".", "the root `directory` of the module")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	packages, err := measure.Module(*root)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	all := table(stdout, packages)
	fmt.Fprintln(stdout, "\nthe longest functions:")
	for _, f := range measure.Longest(all.Functions, longest) {
		fmt.Fprintf(stdout, "%4d  %s\n", f.Lines, f.Name)
	}
	return 0
}

// table prints one line per package and one for the total, which it returns.
func table(out io.Writer, packages []measure.Package) measure.Package {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	fmt.Fprint(w, "package\tfiles\tlines\tfunctions\tmedian\tp90\tmax\t\n")
	all := measure.Package{Dir: "all"}
	for _, p := range packages {
		row(w, p)
		all.Files, all.Lines, all.Functions = all.Files+p.Files, all.Lines+p.Lines, append(all.Functions, p.Functions...)
	}
	row(w, all)
	return all
}

func row(w io.Writer, p measure.Package) {
	s := measure.SizesOf(p.Functions)
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t\n", p.Dir, p.Files, p.Lines, s.Count, s.Median, s.P90, s.Max)
}
