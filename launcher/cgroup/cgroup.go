package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a control group: its path below the root of every hierarchy.
type Group string

// Dirs returns the directories of the group in the hierarchies that this host has mounted: one with version 2, one for each
// controller with version 1, both on a hybrid host.
func (g Group) Dirs() ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for line := range strings.Lines(string(data)) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 || !strings.HasPrefix(after, "cgroup") {
			continue
		}
		dir := filepath.Join(fields[4], string(g))
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

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
