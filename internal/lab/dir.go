package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"golang.org/x/sys/unix"

	"boxgate/launcher"
)

// labRoot is the directory of the labs. It is not on a tmpfs because boxes write there.
const labRoot = "/var/lib/boxgate/labs"

// gonePrefix is the prefix of a lab's directory while it is being removed.
const gonePrefix = "gone-"

// RunDir returns the run directory of a lab's boxes. It is outside the lab's directory, which only root may enter: the
// runtime mounts a box's root as the box's own root user.
func RunDir(dir string) string { return filepath.Join("/run/boxgate-labs", filepath.Base(dir)) }

// makeLabDir creates the directory of a lab and locks it for the lifetime of this process.
func makeLabDir() (dir string, lock *os.File, err error) {
	if err := os.MkdirAll(labRoot, 0o700); err != nil {
		return "", nil, err
	}
	for range 10 {
		if dir, err = os.MkdirTemp(labRoot, "lab-"); err != nil {
			return "", nil, err
		}
		// Another process may consider a directory without a lock stale and remove it.
		lock, err = lockLabDir(dir)
		if err == nil {
			if _, err = os.Stat(lock.Name()); err == nil {
				return dir, lock, nil
			}
			lock.Close()
		}
	}
	return "", nil, fmt.Errorf("making a directory below %s: %w", labRoot, err)
}

// lockLabDir takes the lock of a lab's directory, or fails with EWOULDBLOCK while the lab is in use.
func lockLabDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// RemoveStaleLabs removes the remains of interrupted demos or tests: labs whose process is gone.
func RemoveStaleLabs() error {
	dirs, err := filepath.Glob(filepath.Join(labRoot, "lab-*"))
	if err != nil {
		return err
	}
	half, err := filepath.Glob(filepath.Join(labRoot, gonePrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range half {
		errs = append(errs, os.RemoveAll(dir))
	}
	for _, dir := range dirs {
		lock, err := lockLabDir(dir)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
			continue // in use by another run, or removed by one
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, stopLabGateway(dir), removeLabDir(dir))
		lock.Close()
	}
	return errors.Join(errs...)
}

// stopLabGateway stops the gateway of a lab whose process is gone. The gateway exits when its standard input is closed,
// but may still be running.
func stopLabGateway(dir string) error {
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, p := range procs {
		line, err := os.ReadFile(p)
		if err != nil || !bytes.Contains(line, []byte("\x00"+filepath.Join(dir, "boxgate.yaml"))) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		if err != nil {
			return err
		}
		if err := KillAndAwait(pid); err != nil {
			return err
		}
	}
	return nil
}

// KillAndAwait kills a process and returns when it is gone.
func KillAndAwait(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
		switch {
		case errors.Is(err, unix.EINTR): // interrupted by a signal of the Go scheduler
		case err == nil && n == 0:
			return fmt.Errorf("process %d does not end", pid)
		default:
			return err
		}
	}
}

// removeLabDir removes the boxes of a lab and all its files.
func removeLabDir(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := os.Stat(filepath.Join(dir, "state")); err == nil {
		if err := removeContainers(ctx, dir); err != nil {
			return err // mounted files must not be deleted through the mount
		}
	}
	// The directory is renamed first: another process could otherwise create a new lock file in it while it is being
	// emptied.
	_ = unix.Unmount(filepath.Join(dir, "state"), unix.MNT_DETACH) // a test may have mounted a small disk there
	gone := filepath.Join(labRoot, gonePrefix+filepath.Base(dir))
	return errors.Join(os.RemoveAll(RunDir(dir)), os.Rename(dir, gone), os.RemoveAll(gone))
}

func removeContainers(ctx context.Context, dir string) error {
	l, err := launcher.New(launcher.Config{StateDir: filepath.Join(dir, "state"), RunDir: RunDir(dir), Runtime: runtimeOf(dir)})
	if err != nil {
		return err
	}
	boxes, err := l.Recover(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, b := range boxes {
		errs = append(errs, l.Delete(ctx, b.ID))
	}
	attached, err := l.AttachedBoxes()
	errs = append(errs, err, l.EmptyTrash(ctx))
	for _, id := range attached {
		errs = append(errs, l.DetachNamespace(id))
	}
	return errors.Join(append(errs, l.Close())...)
}

// runtimeOf returns the OCI runtime of a lab's boxes, or "" for the default or if it is no longer installed.
func runtimeOf(dir string) string {
	var cfg struct{ Launcher struct{ Runtime string } }
	data, err := os.ReadFile(filepath.Join(dir, configName))
	if err != nil || yaml.Unmarshal(data, &cfg) != nil {
		return ""
	}
	if _, err := exec.LookPath(cfg.Launcher.Runtime); err != nil {
		return ""
	}
	return cfg.Launcher.Runtime
}

// Traces returns the mounts and processes that still refer to a lab's directory. Rules and links need no check: they
// were in unnamed network namespaces, which end with their last process.
func Traces(dir string) ([]string, error) {
	var left []string
	if _, err := os.Lstat(dir); err == nil {
		left = append(left, "directory "+dir)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	if strings.Contains(string(mounts), filepath.Base(dir)) {
		left = append(left, "mounts of "+filepath.Base(dir))
	}
	if _, err := os.Lstat(RunDir(dir)); err == nil {
		left = append(left, "directory "+RunDir(dir))
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		if data, err := os.ReadFile(p); err == nil && bytes.Contains(data, []byte(filepath.Base(dir))) {
			left = append(left, "process "+filepath.Base(filepath.Dir(p)))
		}
	}
	return left, nil
}
