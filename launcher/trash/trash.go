// Package trash removes the files of deleted boxes in the background, even if there are millions.
package trash

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/launcher/files"
)

const (
	// maxWorkers is how many boxes are removed concurrently.
	maxWorkers = 2
	// retryInterval is the interval between attempts to remove files that could not be removed.
	retryInterval = time.Minute
)

// Trash removes the entries of a directory. The directory itself is the list of pending removals.
type Trash struct {
	dir  string
	log  *zap.Logger
	wake chan struct{} // capacity 1

	mu       sync.Mutex
	removing map[string]bool // being removed; guarded by mu
	failed   map[string]bool // failed at the last attempt; guarded by mu
}

// New returns the trash in an existing directory.
func New(dir string, log *zap.Logger) *Trash {
	return &Trash{dir: dir, log: log, wake: make(chan struct{}, 1), removing: map[string]bool{}, failed: map[string]bool{}}
}

// Move moves a directory into the trash, in constant time. A missing directory is not an error. [Trash.KeepEmpty] removes
// it.
func (t *Trash) Move(dir string) error {
	err := os.Rename(dir, filepath.Join(t.dir, filepath.Base(dir)+"-"+rand.Text()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	select {
	case t.wake <- struct{}{}:
	default: // already woken
	}
	return nil
}

// KeepEmpty removes the files of deleted boxes, also of earlier runs, until ctx ends: a few at a time, with a lower CPU and
// disk priority than everything else. Failures are logged once and retried from time to time. Call it once.
func (t *Trash) KeepEmpty(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	slots := make(chan struct{}, maxWorkers)
	for {
		names, err := t.names()
		if err != nil {
			t.log.Error("the files of deleted boxes cannot be listed", zap.Error(err))
		}
		for _, name := range names {
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			workers.Go(func() {
				defer func() { <-slots }()
				t.removeEntry(ctx, name)
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-time.After(retryInterval):
		}
	}
}

// Empty removes the files of all deleted boxes. On failure it continues, and returns the errors.
func (t *Trash) Empty(ctx context.Context) error {
	names, err := t.names()
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, files.RemoveTree(ctx, filepath.Join(t.dir, name)))
	}
	return errors.Join(errs...)
}

// Count returns how many deleted boxes still have files, and for how many of them a removal failed.
func (t *Trash) Count() (boxes, failed int) {
	names, _ := t.names()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		if t.failed[name] {
			failed++
		}
	}
	return len(names), failed
}

func (t *Trash) names() ([]string, error) {
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		return nil, fmt.Errorf("the directory of deleted boxes: %w", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// removeEntry removes one entry of the trash, unless another goroutine is removing it.
func (t *Trash) removeEntry(ctx context.Context, name string) {
	if !t.markRemoving(name) {
		return
	}
	err := atLowPriority(func() error { return files.RemoveTree(ctx, filepath.Join(t.dir, name)) })
	if ctx.Err() != nil {
		err = nil // the next run continues
	}
	if t.markDone(name, err != nil) {
		t.log.Error("files of a deleted box cannot be removed and take up space; retrying from time to time",
			zap.String("path", filepath.Join(t.dir, name)), zap.Error(err))
	}
}

// markRemoving marks an entry as being removed; false if it already is.
func (t *Trash) markRemoving(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.removing[name] {
		return false
	}
	t.removing[name] = true
	return true
}

// markDone records the end of a removal. It reports whether the entry failed for the first time.
func (t *Trash) markDone(name string, failed bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.removing, name)
	if !failed {
		delete(t.failed, name)
		return false
	}
	first := !t.failed[name]
	t.failed[name] = true
	return first
}

// atLowPriority runs f on a thread with low CPU and disk priority. The thread ends with f, so that no other goroutine runs
// on it.
//
// The priority is not the lowest one: with a nice value of 19 or the idle class of the disk, a busy host would never finish
// removals, and boxes could fill the disk with removed files. Also, processes that need the file system's journal would
// have to wait for a thread that holds it and is not scheduled.
func atLowPriority(f func() error) error {
	const (
		niceness         = 5               // a third of the weight of others, by sched_prio_to_weight of the kernel
		ioprioWhoProcess = 1               // linux/ioprio.h; 0 is the calling thread
		ioprioLow        = 2<<13 | (8 - 1) // class IOPRIO_CLASS_BE, the lowest of its levels
	)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, niceness)
		_, _, _ = unix.RawSyscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, 0, ioprioLow)
		done <- f()
	}()
	return <-done
}
