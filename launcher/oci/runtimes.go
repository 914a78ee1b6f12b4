package oci

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// tested are the runtimes that boxgate is tested with, by e2e/runtimes.
var tested = []*Runtime{runc, crun, gvisor}

// noKeyring keeps a runtime from creating a session keyring for the box and for each of its commands: the kernel charges
// them to the box's user, who may have 200. They inherit the keyring that the launcher creates when it starts the runtime.
const noKeyring = "--no-new-keyring"

// runc is the reference: boxes are complete under it.
var runc = &Runtime{
	Name: Default, Title: "runc", Package: "runc", Install: "apt-get install runc",
	CreateArgs: []string{noKeyring},
	CgroupFlag: CgroupPerController,
	Enterable:  true,
	// runc:[1:CHILD] and runc:[2:INIT] set up namespaces and wait for their turn.
	halfStarted: func(comm string, _ func() bool) bool { return strings.HasPrefix(comm, "runc:[") },
}

// crun's exec has no control groups for commands with version 1, and it refuses a host that has controllers in both
// versions.
var crun = &Runtime{
	Name: "crun", Title: "crun", Package: "crun", Install: "apt-get install crun",
	CreateArgs: []string{noKeyring},
	CgroupFlag: CgroupOfAll,
	Enterable:  true,

	RefusesHybrid:    true,
	LateTerminalSize: true,

	lacks: crunLacks,
	// A process that crun has not turned into a command has crun's own name, and so have calls of crun on the host, which
	// are in no PID namespace below the gateway's.
	halfStarted: func(comm string, inBox func() bool) bool { return comm == "crun" && inBox() },
}

func crunLacks(cgroups string) string {
	controllers, err := os.ReadFile(filepath.Join(cgroups, "unified", "cgroup.controllers"))
	if len(bytes.TrimSpace(controllers)) > 0 { // only a warning: a later version, or a wrapper, may start them
		return fmt.Sprintf("crun refuses to start boxes on a host that has controllers in control groups of version 1 and of version 2 (%s): "+
			"boot with systemd.unified_cgroup_hierarchy=1, or set launcher.runtime to runc", bytes.TrimSpace(controllers))
	}
	if _, v2 := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); v2 != nil || err == nil {
		return "under crun, commands get control groups only with control groups version 2: on this host their CPU time is unknown, " +
			"a kill reaches only their process group, and commands of sessions survive a gateway that is killed; set launcher.runtime to runc, or boot with systemd.unified_cgroup_hierarchy=1"
	}
	return ""
}

// gvisor runs boxes in a kernel in user space, the sandbox. The host sees the sandbox's processes, not the box's.
var gvisor = &Runtime{
	Name: "runsc", Title: "gVisor", Install: "make runsc builds it; or see https://gvisor.dev/docs/user_guide/install/",
	// Files are shared with the host, and written to the box's layer instead of the sandbox's memory: snapshots and
	// restarts of the host need them there.
	Args: []string{"--network=sandbox", "--overlay2=none", "--file-access=shared", "--host-uds=none", "--platform=systrap"},

	SetUserIDArgs: []string{"--allow-suid"},

	OwnNetwork:       true,
	OwnProcesses:     true,
	OwnFiles:         true,
	OwnLimits:        true,
	OwnPause:         true,
	OwnUserNS:        true,
	LateTerminalSize: true,
	NamelessTerminal: true,

	stateMark:  "_sandbox:", // ID_sandbox:ID.state and .lock
	emptyNetNS: "null-netns",
	lacks: func(string) string {
		return "under gVisor, commands have no control groups: their CPU time is unknown (only that of boxes is known), and commands of sessions survive a gateway that is killed; the files API does not work, so read and write files with exec; " +
			"the box's loopback cannot be reached by public URLs, so applications must listen on all addresses; and gateway box selftest cannot test it"
	},
	attachedNote: "under gVisor, new root certificates of the gateway reach a container when it starts again, public URLs reach its address and not its loopback, and it has no self-test",
}

// untested returns an unknown runtime with that name.
func untested(name string) *Runtime {
	return &Runtime{
		Name: name, Title: name, Install: "apt-get install " + name,
		LateTerminalSize: true,
		lacks: func(string) string {
			return fmt.Sprintf("%s is not among the runtimes that boxgate is tested with (%s): if boxes do not start, set launcher.runtime to one of these",
				name, strings.Join(Names(), ", "))
		},
	}
}
