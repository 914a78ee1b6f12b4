package field

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The directory for the files of runs, writable by root only, and the run directory of their gateways with the pinned
// namespaces.
const (
	parent  = "/var/lib/boxgate/bench"
	prefix  = "run-"
	runRoot = "/run/boxgate-bench"
)

// lock marks the directory of a run as used for the lifetime of this process.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeStale removes the files of killed runs.
func removeStale() error {
	dirs, err := filepath.Glob(filepath.Join(parent, prefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		f, err := lock(dir)
		if err != nil {
			continue // in use
		}
		errs = append(errs, removeAll(dir), f.Close())
	}
	return errors.Join(errs...)
}

// removeAll removes the files of a run, including the pins of its boxes' namespaces, which outlive the gateways.
func removeAll(dir string) error {
	runs, err := filepath.Glob(filepath.Join(runRoot, filepath.Base(dir)+"-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, run := range runs {
		errs = append(errs, unmountBelow(run), os.RemoveAll(run))
	}
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

// unmountBelow unmounts everything below a directory.
func unmountBelow(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for _, at := range mountPoints(string(mounts), dir) {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", at, err))
		}
	}
	return errors.Join(errs...)
}

// mountPoints returns the mount points below a directory in a mountinfo file, the last mounted first.
func mountPoints(mountinfo, dir string) (points []string) {
	for line := range strings.Lines(mountinfo) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			points = append([]string{fields[4]}, points...)
		}
	}
	return points
}
