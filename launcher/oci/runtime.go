// Package oci describes the differences between the OCI runtimes for boxes: how they are called, how they freeze and limit
// a box, which parts of a box the host can reach, and what users miss. Each runtime is one [Runtime] in runtimes.go; the
// rest of the gateway uses its fields and never compares names.
package oci

import (
	"path/filepath"
	"slices"
	"strings"
)

// Runtime describes one OCI runtime. The zero value is a program with runc's basic command line that uses the host's kernel
// and network. Runtimes are shared and must not be modified.
type Runtime struct {
	Name    string // of its program, selected by launcher.runtime
	Title   string // its name in messages
	Package string // Debian's package; "" if it is not packaged
	Install string // how to install it

	Args       []string // flags before every command
	CreateArgs []string // flags of create
	// SetUserIDArgs are flags before every command that make set-user-ID programs have their effect in a guest kernel.
	SetUserIDArgs []string
	CgroupFlag    CgroupFlag // how exec puts a command into a control group below the box's

	// OwnNetwork: a box has a network stack in addition to the kernel's, which removes the addresses from the interface
	// when it starts. From then on the gateway must not change the inside of the network namespace, and processes of the
	// host in it have no network.
	OwnNetwork bool
	// Enterable: commands can be started by entering the namespaces of the box's first process, without the runtime's exec.
	// The box has no state elsewhere.
	Enterable bool
	// OwnProcesses: commands run in a guest kernel, and only the runtime can signal them. Their IDs inside come from exec
	// --internal-pid-file, and kill takes them with --pid or --pgid.
	OwnProcesses bool
	// OwnFiles: the host cannot open the files of a box.
	OwnFiles bool
	// OwnLimits: the runtime enforces the limits of processes in a box itself. Its own processes on the host, several for
	// each one in the box, would hit them.
	OwnLimits bool
	// OwnPause: only the runtime's own commands can pause a box and report its state. For other runtimes the launcher uses
	// the freezer of the box's control group: crun's pause does not wait for the kernel, and crun reports a box as running
	// while one process still moves; runc reports an empty frozen group as a paused box.
	OwnPause bool
	// OwnUserNS: the runtime creates the user namespace of a box, since it cannot enter an existing one.
	OwnUserNS bool
	// RefusesHybrid: the runtime starts no box on a host with controllers in control groups of both versions.
	RefusesHybrid bool
	// LateTerminalSize: exec does not set the size of a command's terminal; the launcher sets it just after the command
	// began.
	LateTerminalSize bool
	// NamelessTerminal: a terminal has no path in a box.
	NamelessTerminal bool

	stateMark  string // see StateFiles
	emptyNetNS string // see Namespaces
	lacks      func(cgroups string) string
	// attachedNote describes what does not work in containers that `gateway oci` attaches; "": everything works.
	attachedNote string
	halfStarted  func(comm string, inBox func() bool) bool
}

// CgroupFlag is the form of the runtime's exec flag --cgroup. The group is below that of the box.
type CgroupFlag int

// The forms of the flag.
const (
	NoCgroupFlag        CgroupFlag = iota // no flag: commands share the group of their box
	CgroupOfAll                           // --cgroup NAME, which needs version 2
	CgroupPerController                   // also --cgroup CONTROLLERS:NAME, for version 1
)

// Default is the runtime if launcher.runtime is not set.
const Default = "runc"

// ByName returns the runtime of a program, given by name or path. A program with an unknown name gets a runtime with only
// runc's basic command line.
func ByName(program string) *Runtime {
	name := filepath.Base(program)
	for _, r := range tested {
		if r.Name == name {
			return r
		}
	}
	return untested(name)
}

// AttachedNote describes what does not work in containers of the runtime that `gateway oci` attaches; "" if everything works.
func (r *Runtime) AttachedNote() string { return r.attachedNote }

// Names returns the runtimes that boxgate is tested with.
func Names() []string {
	var names []string
	for _, r := range tested {
		names = append(names, r.Name)
	}
	return names
}

// HostNetworked returns the tested runtimes whose containers use the network stack of the host's kernel.
func HostNetworked() []string {
	return slices.DeleteFunc(Names(), func(name string) bool { return ByName(name).OwnNetwork })
}

// Missing returns what users miss under the runtime on a host whose control groups are mounted at a path, with a remedy. It
// returns "" if boxes are complete.
func (r *Runtime) Missing(cgroups string) string {
	if r.lacks == nil {
		return ""
	}
	return r.lacks(cgroups)
}

// StateFiles returns the files that the runtime keeps of a container in addition to root/id, which all runtimes have.
func (r *Runtime) StateFiles(root, id string) []string {
	if r.stateMark == "" {
		return nil
	}
	found, _ := filepath.Glob(filepath.Join(root, id+r.stateMark+"*")) // the pattern is valid
	return found
}

// ContainerOf returns the ID of the container that an entry of a runtime's root is named after; "" for an entry that
// belongs to no container. It checks the names of all runtimes, since launcher.runtime may have changed.
func ContainerOf(entry string) string {
	for _, r := range tested {
		if r.stateMark != "" {
			entry, _, _ = strings.Cut(entry, r.stateMark)
		}
		if r.emptyNetNS != "" && entry == r.emptyNetNS {
			return ""
		}
	}
	return entry
}

// Namespaces returns the paths of network namespaces that any of the runtimes may have left mounted in its root.
func Namespaces(root string) []string {
	var paths []string
	for _, r := range tested {
		if r.emptyNetNS != "" {
			paths = append(paths, filepath.Join(root, r.emptyNetNS))
		}
	}
	return paths
}

// HalfStarted reports whether a child of the gateway with this name is a process that a runtime has not turned into the
// command of a box yet. inBox reports whether the process is in a PID namespace below the gateway's. It checks all
// runtimes: a runtime whose program was renamed still names its processes the same.
func HalfStarted(comm string, inBox func() bool) bool {
	return slices.ContainsFunc(tested, func(r *Runtime) bool { return r.halfStarted != nil && r.halfStarted(comm, inBox) })
}
