package main

import (
	"regexp"
	"slices"
	"strings"
)

// arguments are the arguments of `go test`, taken apart so that a single test can be run with the same flags.
type arguments struct {
	flags    []flagArg
	packages []string
	rest     []string // -args and the following arguments, for the test binary
}

// flagArg is a flag without its dashes, and the original arguments.
type flagArg struct {
	name string
	raw  []string
}

// switches are the flags of go test that take no value in a separate argument.
var switches = strings.Fields("a artifacts asan benchmem buildvcs c cover failfast fullpath i json linkshared modcacherw msan n race short trimpath v work x")

// perRun are the flags that select tests, or name files that a second run would overwrite.
var perRun = strings.Fields("bench blockprofile count coverprofile cpuprofile failfast fuzz fuzztime json list memprofile mutexprofile o outputdir run shuffle skip trace v")

func parseArguments(args []string) arguments {
	var out arguments
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, value, hasValue := strings.Cut(strings.TrimPrefix(strings.TrimLeft(arg, "-"), "test."), "=")
		switch {
		case name == "args" && strings.HasPrefix(arg, "-"):
			out.rest = args[i:]
			return out
		case !strings.HasPrefix(arg, "-"):
			out.packages = append(out.packages, arg)
		case hasValue || slices.Contains(switches, name) || i+1 == len(args):
			if hasValue && value == "false" && slices.Contains(switches, name) {
				continue // ignored
			}
			out.flags = append(out.flags, flagArg{name, []string{arg}})
		default:
			out.flags = append(out.flags, flagArg{name, []string{arg, args[i+1]}})
			i++
		}
	}
	return out
}

// has reports whether one of the named flags is given.
func (a arguments) has(names ...string) bool {
	return slices.ContainsFunc(a.flags, func(f flagArg) bool { return slices.Contains(names, f.name) })
}

// all returns the arguments for the run of all tests.
func (a arguments) all() []string {
	var out []string
	for _, f := range a.flags {
		if f.name != "json" {
			out = append(out, f.raw...)
		}
	}
	return slices.Concat(out, a.packages, a.rest)
}

// only returns the arguments that run a single test, bypassing the test cache.
func (a arguments) only(id testID) []string {
	var out []string
	for _, f := range a.flags {
		if !slices.Contains(perRun, f.name) {
			out = append(out, f.raw...)
		}
	}
	out = append(out, "-count=1", "-run=^"+regexp.QuoteMeta(id.test)+"$", id.pkg)
	return append(out, a.rest...)
}
