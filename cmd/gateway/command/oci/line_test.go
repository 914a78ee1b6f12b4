package oci

import (
	"slices"
	"strings"
	"testing"
)

// Flags of a runtime that could name a configuration or a container that is not checked are refused.
func TestCallsWithUnknownFlags(t *testing.T) {
	for _, tt := range []struct {
		args   string
		bundle string // "-" means refused
	}{
		{"runc create --bundle /b c1", "/b"},
		{"runc --root /r --log-format json create --bundle=/b --pid-file /p --pidfd-socket /s --no-pivot c1", "/b"},
		{"crun create -b /b c1", "/b"},
		{"runsc -root /r create -bundle /b c1", "/b"},
		{"crun create -b/b c1", "-"},
		{"crun create --bund=/b c1", "-"},
		{"crun create --bundle /b -f/x c1", "-"},
		{"crun create --bundle /b --config=/x c1", "-"},
		{"runc create --bundle /b c1 c2", "-"},
		{"runc create --bundle /b ../c1", "-"},
		{"runc create --bundle /b", "-"},
		{"runc create c1 --bundle", "-"},
		{"runc delete /", "-"},
		{"runc delete --regex c.*", "-"},
		{"runc delete --force c1", ""},
		{"runc start c1", ""},
	} {
		l, err := ParseLine(strings.Fields(tt.args), nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.parseCall()
		if (tt.bundle == "-") != (err != nil) || err == nil && (c.Bundle != tt.bundle || c.ID != "c1") {
			t.Errorf("%s: %+v %v", tt.args, c, err)
		}
	}
}

// The runtime gets the container and the other arguments as given, and the checked bundle alone.
func FuzzParseLine(f *testing.F) {
	for _, line := range []string{
		"runc --root /r --log /l --log-format json create --bundle /b --pid-file /p c1", "--policy named:web crun create -b=/b c1", "runsc -root=/r delete -force c1",
		"--policy", "runc", "runc --x", "runc create --bundle", "crun run -d --bundle=/b -- c1", "runc create --bundle a --bundle b c1",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Fields(line)
		l, err := ParseLine(args, []string{"--policy", "--headers"})
		if err != nil {
			return
		}
		rest := slices.Clone(l.Globals)
		if l.Command != "" {
			rest = append(append(rest, l.Command), l.Args...)
		}
		if at := len(args) - len(rest); at < 1 || args[at-1] != l.Runtime || !slices.Equal(args[at:], rest) {
			t.Fatalf("%q is not passed on as it was: %+v", args, l)
		}
		c, err := l.parseCall()
		if err != nil {
			return
		}
		if c.ID == "" || strings.Contains(c.ID, "/") || !slices.Contains(l.Args, c.ID) {
			t.Fatalf("%q: the container is %q", args, c.ID)
		}
		l.Args = l.withBundle(c, "/checked")[len(l.Globals)+1:]
		again, err := l.parseCall()
		if err != nil || again.ID != c.ID || again.Bundle != "/checked" || again.Detach != c.Detach {
			t.Fatalf("%q became %q: %+v %v", args, l.Args, again, err)
		}
	})
}
