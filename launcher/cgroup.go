package launcher

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

	"boxgate/policy"

	"golang.org/x/sys/unix"
)

// cgroupPath is the box's own control group, below the root of every hierarchy. It has no parents to be cleaned up and
// names the state directory as well as the box, so that launchers on one host do not meet.
func (l *Launcher) cgroupPath(id policy.BoxID) string {
	return "/boxgate-" + l.tag + "-" + string(id)
}

// cgroupDirs returns the directories of the box's control group in the hierarchies this host has mounted: one with
// version 2, one for each controller with version 1, both on a hybrid host.
func (l *Launcher) cgroupDirs(id policy.BoxID) ([]string, error) {
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
		dir := filepath.Join(fields[4], l.cgroupPath(id))
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// clearCgroup kills what is still in the box's control group and removes it. The runtime does so itself; this is for a
// runtime that was killed on the way.
func (l *Launcher) clearCgroup(ctx context.Context, id policy.BoxID) error {
	for {
		dirs, err := l.cgroupDirs(id)
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
			return fmt.Errorf("box %s: processes of its control group do not end: %w", id, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond): // version 1 has nothing to wait on
		}
	}
}

// thaw lets frozen processes run, for only then do they notice that they were killed.
func thaw(dir string) {
	_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
	_ = os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("0"), 0)
}

// killAll kills the members of a control group and of those below it.
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
			return nil // gone meanwhile
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

// removeCgroup removes a control group with those below it; it must be empty of processes.
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
