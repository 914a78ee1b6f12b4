// Package cgroup freezes, measures and kills the processes in the control groups of boxes, in all hierarchies of the host.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a control group: its path below the root of every hierarchy.
type Group string

// Dirs returns the directories of the group in the hierarchies that this host has mounted: one with version 2, one for each
// controller with version 1, both on a hybrid host.
func (g Group) Dirs() ([]string, error) {
	mounts, err := mountPoints()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, at := range mounts {
		dir := filepath.Join(at, string(g))
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// mountPoints returns where the host's hierarchies are mounted. They are read once, like [mounted]: the file has a line
// for each mount of each box.
var mountPoints = sync.OnceValues(func() (list []string, err error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if ok && len(fields) >= 5 && strings.HasPrefix(after, "cgroup") {
			list = append(list, fields[4])
		}
	}
	return list, nil
})

// Join moves a process into the group, in every hierarchy. It fails if the group does not exist: the box has ended.
func (g Group) Join(pid int) error {
	dirs, err := g.Dirs()
	if err != nil {
		return err
	}
	if len(dirs) == 0 {
		return fmt.Errorf("the control group %s: %w", string(g), fs.ErrNotExist)
	}
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return err
		}
	}
	return nil
}

// KillAndRemove kills the remaining members of the group and removes it. The runtime normally does that itself; Clear is for a
// runtime that was killed.
func (g Group) KillAndRemove(ctx context.Context) error {
	for {
		dirs, err := g.Dirs()
		if err != nil {
			return err
		}
		busy := false
		for _, dir := range dirs {
			thaw(dir)
			if err := killAll(dir); err != nil {
				return err
			}
			if err := removeCgroup(dir); err != nil {
				busy = true
			}
		}
		if !busy {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes of the control group %s do not exit: %w", string(g), context.Cause(ctx))
		case <-time.After(5 * time.Millisecond): // version 1 has no event to wait for
		}
	}
}

// Kill kills the members of the group. Frozen processes are killed before they are thawed, so that they never run again.
func (g Group) Kill() error {
	dirs, err := g.Dirs()
	if err != nil {
		return nil // without a control group, the runtime ends the processes
	}
	for _, dir := range dirs {
		if err := killAll(dir); err != nil {
			return err
		}
		thaw(dir)
	}
	return nil
}

// thaw thaws frozen processes, because only then do they receive the kill signal. Subgroups may be frozen as well, such as
// the branch of a command whose kill was interrupted.
func thaw(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.WriteFile(filepath.Join(path, "freezer.state"), []byte("THAWED"), 0)
			_ = os.WriteFile(filepath.Join(path, "cgroup.freeze"), []byte("0"), 0)
		}
		return nil
	})
}

// killAll kills the members of a control group and its subgroups.
func killAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil // already removed
		}
		if err != nil {
			return err
		}
		for field := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		return nil
	})
}

// removeCgroup removes a control group and its subgroups, which must not have members.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

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
