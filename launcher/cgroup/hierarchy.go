package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// hierarchies are the control group hierarchies of this host, as far as groups of commands use them.
type hierarchies struct {
	unified string // where version 2 is mounted with its controllers; empty on hosts with version 1 and on hybrid ones
	cpuacct string // where version 1 counts CPU time; empty if it does not
	freezer string // where version 1 freezes; empty if it does not
	memory  string // where version 1 counts memory; empty if it does not
	// The controllers that share the mounts above, as /proc/self/cgroup has them. A runtime is told about all of them, or it
	// may move a process back by one that it was not told about.
	cpuacctNames, freezerNames string
}

// mounted reads the host's hierarchies once: they do not change while it is up.
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

// parseHierarchies reads /proc/self/mountinfo and /proc/self/cgroup.
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

// below is where a group of version 1 lies, or empty if there is no such hierarchy.
func below(mount string, g Group) string {
	if mount == "" {
		return ""
	}
	return filepath.Join(mount, string(g))
}
