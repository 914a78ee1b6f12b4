package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// errNoFreezer: nothing can be frozen on this host.
var errNoFreezer = errors.New("this host has no freezer for control groups: mount /sys/fs/cgroup/freezer, or version 2")

// freezer is how the members of one group, and of those below it, are stopped and let go.
type freezer struct {
	dir     string // of the group, in the hierarchy that freezes
	unified bool   // that is version 2
}

// freezerOf is that of a group; without a directory if the host has none.
func (h hierarchies) freezerOf(g Group) freezer {
	if h.unified != "" {
		return freezer{below(h.unified, g), true}
	}
	return freezer{below(h.freezer, g), false}
}

// ask asks the kernel to stop all members, or to let them go. They have not all stopped when it returns.
func (f freezer) ask(stop bool) error {
	file, text := "freezer.state", "THAWED"
	switch {
	case f.unified && stop:
		file, text = "cgroup.freeze", "1"
	case f.unified:
		file, text = "cgroup.freeze", "0"
	case stop:
		text = "FROZEN"
	}
	return os.WriteFile(filepath.Join(f.dir, file), []byte(text), 0)
}

// state reports whether the kernel was asked to stop the members, and whether all of them have.
func (f freezer) state() (asked, stopped bool, err error) {
	if !f.unified {
		data, err := os.ReadFile(filepath.Join(f.dir, "freezer.state"))
		return !bytes.Equal(data, []byte("THAWED\n")), bytes.Equal(data, []byte("FROZEN\n")), err
	}
	data, err := os.ReadFile(filepath.Join(f.dir, "cgroup.freeze"))
	if err != nil {
		return false, false, err
	}
	events, err := os.ReadFile(filepath.Join(f.dir, "cgroup.events"))
	return bytes.Equal(data, []byte("1\n")), bytes.Contains(events, []byte("frozen 1\n")), err
}

// stop returns once all members have stopped, or with the reason why they have not.
//
// Version 1 (kernel/cgroup/legacy_freezer.c) stops each process once, at the next point where it can be stopped. One that begins
// to wait for a child of vfork at that moment is not counted as stopped before the kernel is asked again. And a thread that calls
// execve waits for the others of its process to end, which they do not if they have stopped first: from time to time, all
// are let go for a moment if lets is set.
func (f freezer) stop(ctx context.Context, lets bool) error {
	left, next := triesFirst, 2*triesFirst
	for {
		if err := f.ask(true); err != nil {
			return err
		}
		if _, stopped, err := f.state(); err != nil || stopped {
			return err
		}
		wait := askAgain
		if left--; left == 0 && lets && !f.unified {
			if err := f.ask(false); err != nil {
				return err
			}
			left, next, wait = next, min(2*next, triesMost), letGo
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait): // version 1 has nothing to wait on
		}
	}
}

// How often version 1 is asked to stop a group before its members are let go: more and more often, as many members take longer
// to stop. How long between, and for how long they are let go.
const (
	triesFirst = 10
	triesMost  = 80
	askAgain   = time.Millisecond
	letGo      = 10 * time.Millisecond
)

// freezeMost bounds the wait for processes to stop: one that waits for a disk does so when the disk has answered.
const freezeMost = 10 * time.Second

// Freeze stops everything in the group and returns once nothing in it moves. If that cannot be had, everything goes on, and
// the error says why. What joins the group later is stopped as well.
func (g Group) Freeze(ctx context.Context) error {
	f, err := g.freezer()
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, freezeMost,
		fmt.Errorf("some of its processes have not stopped within %v: they wait in the kernel, as for a disk", freezeMost))
	defer cancel()
	if err = f.stop(bounded, true); err != nil {
		return errors.Join(err, gone(f.ask(false)))
	}
	return nil
}

// Thaw lets everything in the group go on. A group that is not frozen, or gone, is left as it is.
func (g Group) Thaw() error {
	f, err := g.freezer()
	if err != nil {
		return nil //nolint:nilerr // where nothing can be frozen, nothing is
	}
	return gone(f.ask(false))
}

// Stopping reports whether the group was stopped and not let go since, even if some of its members still move.
func (g Group) Stopping() (bool, error) {
	f, err := g.freezer()
	if err != nil {
		return false, nil //nolint:nilerr // where nothing can be frozen, nothing is
	}
	asked, _, err := f.state()
	return asked && err == nil, gone(err)
}

// Settle finishes a Freeze that was cut short, as by the end of a process. Groups that are not being frozen are left as they are.
func (g Group) Settle(ctx context.Context) error {
	f, err := g.freezer()
	if err != nil {
		return nil //nolint:nilerr // where nothing can be frozen, nothing is
	}
	asked, stopped, err := f.state()
	if err != nil || !asked || stopped {
		return gone(err)
	}
	return g.Freeze(ctx)
}

// freezer is how the group is stopped on this host.
func (g Group) freezer() (freezer, error) {
	h, err := mounted()
	if err != nil {
		return freezer{}, err
	}
	if f := h.freezerOf(g); f.dir != "" {
		return f, nil
	}
	return freezer{}, errNoFreezer
}

// gone returns an error unless it says that the group is gone.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
