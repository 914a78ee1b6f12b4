package oci

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestByName(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]*Runtime{
		"runc": runc, "/usr/sbin/runc": runc, "crun": crun, "./crun": crun, "/var/lib/boxgate/gvisor/runsc": gvisor,
	} {
		if got := ByName(program); got != want {
			t.Errorf("%s is %s", program, got.Name)
		}
	}
	for _, program := range []string{"", "youki", "/opt/runc-1.2", "runc/", "RUNC"} {
		r := ByName(program)
		if program != "runc/" && slices.Contains(tested, r) {
			t.Errorf("%q is taken for %s", program, r.Name)
		}
		if r.Name == "" || r.Install == "" {
			t.Errorf("%q: %+v", program, r)
		}
	}
	if r := ByName("/opt/youki"); r.Name != "youki" || r.Install != "apt-get install youki" || r.Package != "" || r.Args != nil || r.CreateArgs != nil || r.CgroupFlag != NoCgroupFlag || r.OwnPause {
		t.Errorf("a runtime that is not tested: %+v", r)
	}
}

// Every runtime has all parts of messages and remedies, and the default is the first.
func TestRuntimesAreWhole(t *testing.T) {
	t.Parallel()
	if names := Names(); names[0] != Default || !slices.Equal(slices.Compact(slices.Sorted(slices.Values(names))), slices.Sorted(slices.Values(names))) {
		t.Errorf("the runtimes are %v", names)
	}
	for _, r := range tested {
		if r.Name == "" || r.Title == "" || r.Install == "" || ByName(r.Name) != r {
			t.Errorf("%+v", r)
		}
		if r.OwnProcesses && (r.CgroupFlag != NoCgroupFlag || !r.OwnPause) {
			t.Errorf("%s: the host has no process of a command that it could put into a control group, or freeze", r.Name)
		}
	}
	if got := HostNetworked(); !slices.Equal(got, []string{"runc", "crun"}) {
		t.Errorf("runtimes on the host's network stack: %v", got)
	}
}

// Entries of a runtime's root belong to the container that they are named after, whichever runtime wrote them.
func TestContainerOf(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		"bx1": "bx1", "bx1_sandbox:bx1.state": "bx1", "bx1_sandbox:bx1.lock": "bx1", "null-netns": "", "null-netns_sandbox:x": "",
	} {
		if got := ContainerOf(entry); got != want {
			t.Errorf("%s belongs to %q, want %q", entry, got, want)
		}
	}
	if got := Namespaces("/run/x"); !slices.Equal(got, []string{"/run/x/null-netns"}) {
		t.Errorf("namespaces: %v", got)
	}
}

func TestStateFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"bx1", "bx1_sandbox:bx1.state", "bx1_sandbox:bx1.lock", "bx12_sandbox:bx12.state"} {
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(root, "bx1_sandbox:bx1.lock"), filepath.Join(root, "bx1_sandbox:bx1.state")}
	if got := gvisor.StateFiles(root, "bx1"); !slices.Equal(got, want) {
		t.Errorf("gVisor's files of bx1: %v", got)
	}
	if got := runc.StateFiles(root, "bx1"); got != nil {
		t.Errorf("runc's files of bx1: %v", got)
	}
}

func TestHalfStarted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		comm  string
		inBox bool
		want  bool
	}{
		{"runc:[1:CHILD]", false, true}, {"runc:[2:INIT]", true, true}, {"runc", true, false},
		{"crun", true, true}, {"crun", false, false}, {"crun-wrapper", true, false}, {"runsc", true, false}, {"sh", true, false},
	} {
		if got := HalfStarted(tt.comm, func() bool { return tt.inBox }); got != tt.want {
			t.Errorf("%s, in a box: %t: %t", tt.comm, tt.inBox, got)
		}
	}
}
