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
	// trashWorkers is how many boxes' files are removed at once.
	trashWorkers = 2
	// trashRetry is when files that could not be removed are tried again.
	trashRetry = time.Minute
)

// Trash knows what is being removed. What there is to remove is what lies in the directory.
type Trash struct {
	dir  string
	log  *zap.Logger
	wake chan struct{} // holds one

	mu       sync.Mutex
	underWay map[string]bool // guarded by mu
	failed   map[string]bool // guarded by mu; those of the last attempt
}

// New is the trash in a directory, which exists.
func New(dir string, log *zap.Logger) *Trash {
	return &Trash{dir: dir, log: log, wake: make(chan struct{}, 1), underWay: map[string]bool{}, failed: map[string]bool{}}
}

// Take moves a directory into the trash, which takes the same time however much is in it, if it exists.
// [Trash.KeepEmpty] removes it.
func (t *Trash) Take(dir string) error {
	err := os.Rename(dir, filepath.Join(t.dir, filepath.Base(dir)+"-"+rand.Text()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	select {
	case t.wake <- struct{}{}:
	default: // it will be looked for already
	}
	return nil
}

// KeepEmpty removes the files of deleted boxes, those of an earlier run first, until ctx ends: few at a time, and
// giving way to everything else on the processors and the disk. What cannot be removed is logged once, and tried again
// from time to time. Call it once.
func (t *Trash) KeepEmpty(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	slots := make(chan struct{}, trashWorkers)
	for {
		names, err := t.names()
		if err != nil {
			t.log.Error("the files of deleted boxes cannot be found", zap.Error(err))
		}
		for _, name := range names {
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			workers.Go(func() {
				defer func() { <-slots }()
				t.shred(ctx, name)
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-time.After(trashRetry):
		}
	}
}

// Empty removes the files of deleted boxes and returns when none is left, or why some are.
func (t *Trash) Empty(ctx context.Context) error {
	names, err := t.names()
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, files.RemoveTree(ctx, filepath.Join(t.dir, name)))
	}
	return errors.Join(errs...)
}

// Count returns how many deleted boxes still have files, and how many of them have some that could not be removed.
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

// shred removes one entry of the trash, unless somebody is at it.
func (t *Trash) shred(ctx context.Context, name string) {
	if !t.begin(name) {
		return
	}
	err := atLowPriority(func() error { return files.RemoveTree(ctx, filepath.Join(t.dir, name)) })
	if ctx.Err() != nil {
		err = nil // the next run goes on
	}
	if t.end(name, err != nil) {
		t.log.Error("files of a deleted box cannot be removed and take up space; trying again from time to time",
			zap.String("path", filepath.Join(t.dir, name)), zap.Error(err))
	}
}

// begin reports whether an entry was not under way.
func (t *Trash) begin(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.underWay[name] {
		return false
	}
	t.underWay[name] = true
	return true
}

// end reports whether an entry failed that had not failed before.
func (t *Trash) end(name string, failed bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.underWay, name)
	if !failed {
		delete(t.failed, name)
		return false
	}
	first := !t.failed[name]
	t.failed[name] = true
	return first
}

// atLowPriority runs f on a thread that gets the processor and the disk when nobody else wants them, and that ends
// with f: it must not serve anybody else.
func atLowPriority(f func() error) error {
	const (
		ioprioWhoProcess = 1       // linux/ioprio.h; 0 is the calling thread
		ioprioIdle       = 3 << 13 // class IOPRIO_CLASS_IDLE
	)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
		_, _, _ = unix.RawSyscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, 0, ioprioIdle)
		done <- f()
	}()
	return <-done
}
