package launcher

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

	"boxgate/policy"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// trashWorkers is how many boxes' files are removed at once.
	trashWorkers = 2
	// trashRetry is when files that could not be removed are tried again.
	trashRetry = time.Minute
)

// trash knows what is being removed. What there is to remove is what lies in the directory.
type trash struct {
	wake chan struct{} // holds one

	mu       sync.Mutex
	underWay map[string]bool // guarded by mu
	failed   map[string]bool // guarded by mu; those of the last attempt
}

func newTrash() *trash {
	return &trash{wake: make(chan struct{}, 1), underWay: map[string]bool{}, failed: map[string]bool{}}
}

// discard moves the files of a box out of the way, which takes the same time however many they are, and gives its user
// IDs back: nothing reaches those files any more. [Launcher.KeepTrashEmpty] removes them.
func (l *Launcher) discard(id policy.BoxID) error {
	err := os.Rename(l.dirs.box(id), filepath.Join(l.dirs.trash(), string(id)+"-"+rand.Text()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := freeIDs(l.dirs.box(id)); err != nil {
		return err
	}
	select {
	case l.trash.wake <- struct{}{}:
	default: // it will be looked for already
	}
	return nil
}

// KeepTrashEmpty removes the files of deleted boxes, those of an earlier run first, until ctx ends: few at a time, and
// giving way to everything else on the processors and the disk. What cannot be removed is logged once, and tried again
// from time to time. Call it once.
func (l *Launcher) KeepTrashEmpty(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	slots := make(chan struct{}, trashWorkers)
	for {
		names, err := l.trashed()
		if err != nil {
			l.log.Error("the files of deleted boxes cannot be found", zap.Error(err))
		}
		for _, name := range names {
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			workers.Go(func() {
				defer func() { <-slots }()
				l.shred(ctx, name)
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-l.trash.wake:
		case <-time.After(trashRetry):
		}
	}
}

// EmptyTrash removes the files of deleted boxes and returns when none is left, or why some are.
func (l *Launcher) EmptyTrash(ctx context.Context) error {
	names, err := l.trashed()
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, removeTree(ctx, filepath.Join(l.dirs.trash(), name)))
	}
	return errors.Join(errs...)
}

// Trash returns how many deleted boxes still have files, and how many of them have some that could not be removed.
func (l *Launcher) Trash() (boxes, failed int) {
	names, _ := l.trashed()
	l.trash.mu.Lock()
	defer l.trash.mu.Unlock()
	for _, name := range names {
		if l.trash.failed[name] {
			failed++
		}
	}
	return len(names), failed
}

func (l *Launcher) trashed() ([]string, error) {
	entries, err := os.ReadDir(l.dirs.trash())
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
func (l *Launcher) shred(ctx context.Context, name string) {
	if !l.trash.begin(name) {
		return
	}
	err := atLowPriority(func() error { return removeTree(ctx, filepath.Join(l.dirs.trash(), name)) })
	if ctx.Err() != nil {
		err = nil // the next run goes on
	}
	if l.trash.end(name, err != nil) {
		l.log.Error("files of a deleted box cannot be removed and take up space; trying again from time to time",
			zap.String("path", filepath.Join(l.dirs.trash(), name)), zap.Error(err))
	}
}

// begin reports whether an entry was not under way.
func (t *trash) begin(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.underWay[name] {
		return false
	}
	t.underWay[name] = true
	return true
}

// end reports whether an entry failed that had not failed before.
func (t *trash) end(name string, failed bool) bool {
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
