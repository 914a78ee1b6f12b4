package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// hierarchies are the control group hierarchies of this host that this package uses.
type hierarchies struct {
	unified string // mount point of version 2 with its controllers; empty on hosts with version 1 and on hybrid ones
	cpuacct string // mount point of version 1's cpuacct; empty if not mounted
	freezer string // mount point of version 1's freezer; empty if not mounted
	memory  string // mount point of version 1's memory; empty if not mounted
	// The controllers that share the mounts above, as in /proc/self/cgroup. The runtime must be given all of them;
	// otherwise it may move a process back through one that it was not given.
	cpuacctNames, freezerNames string
}

// mounted reads the host's hierarchies once, since they do not change until a reboot.
var mounted = sync.OnceValues(func() (hierarchies, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return hierarchies{}, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return hierarchies{}, err
	}
	return parseHierarchies(string(info), string(own)), nil
})

// parseHierarchies parses /proc/self/mountinfo and /proc/self/cgroup.
func parseHierarchies(mountinfo, own string) hierarchies {
	var h hierarchies
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 {
			continue
		}
		options := strings.Split(kind[2], ",")
		switch at := fields[4]; {
		case kind[0] == "cgroup2" && at == "/sys/fs/cgroup":
			h.unified = at
		case kind[0] != "cgroup":
		case slices.Contains(options, "cpuacct"):
			h.cpuacct = at
		case slices.Contains(options, "freezer"):
			h.freezer = at
		case slices.Contains(options, "memory"):
			h.memory = at
		}
	}
	for line := range strings.Lines(own) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 {
			switch names := strings.Split(fields[1], ","); {
			case slices.Contains(names, "cpuacct"):
				h.cpuacctNames = fields[1]
			case slices.Contains(names, "freezer"):
				h.freezerNames = fields[1]
			}
		}
	}
	return h
}

// below returns the directory of a group below a mount point; empty without one.
func below(mount string, g Group) string {
	if mount == "" {
		return ""
	}
	return filepath.Join(mount, string(g))
}
