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

// errNoFreezer means that this host cannot freeze control groups.
var errNoFreezer = errors.New("this host has no freezer for control groups: mount /sys/fs/cgroup/freezer, or version 2")

// freezer freezes and thaws the members of one group and its subgroups.
type freezer struct {
	dir     string // directory of the group in the hierarchy with the freezer
	unified bool   // the hierarchy is version 2
}

// freezerOf returns the freezer of a group; its dir is empty if the host has no freezer.
func (h hierarchies) freezerOf(g Group) freezer {
	if h.unified != "" {
		return freezer{below(h.unified, g), true}
	}
	return freezer{below(h.freezer, g), false}
}

// request requests the kernel to freeze or thaw all members. It does not wait for them.
func (f freezer) request(stop bool) error {
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

// state reports whether a freeze was requested, and whether all of them are frozen.
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

// freezeAll waits until all members are frozen. On failure the error is the reason.
//
// Version 1 (kernel/cgroup/legacy_freezer.c) stops each process once, at its next freezing point. A process that begins to
// wait for a child of vfork at that moment does not count as frozen before the next request. And a thread that
// calls execve waits for the other threads of its process to end, which never happens if they are frozen first: if lets is
// set, stop thaws all members for a moment from time to time.
func (f freezer) freezeAll(ctx context.Context, lets bool) error {
	left, next := firstTries, 2*firstTries
	for {
		if err := f.request(true); err != nil {
			return err
		}
		if _, stopped, err := f.state(); err != nil || stopped {
			return err
		}
		wait := retryInterval
		if left--; left == 0 && lets && !f.unified {
			if err := f.request(false); err != nil {
				return err
			}
			left, next, wait = next, min(2*next, maxTries), thawTime
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait): // version 1 has no event to wait for
		}
	}
}

// With version 1: how many freeze requests a group gets before its members are thawed, growing from firstTries to maxTries
// since many members take longer; the interval between attempts; and how long the members are thawed.
const (
	firstTries    = 10
	maxTries      = 80
	retryInterval = time.Millisecond
	thawTime      = 10 * time.Millisecond
)

// freezeTimeout bounds the wait for processes to freeze: one that waits for a disk freezes only when the disk has answered.
const freezeTimeout = 10 * time.Second

// Freeze freezes all members of the group and returns when no member moves. On failure it thaws all of them and returns
// the reason. Processes that join the group later are frozen as well.
func (g Group) Freeze(ctx context.Context) error {
	f, err := g.freezer()
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, freezeTimeout,
		fmt.Errorf("some of its processes have not stopped within %v: they wait in the kernel, as for a disk", freezeTimeout))
	defer cancel()
	if err = f.freezeAll(bounded, true); err != nil {
		return errors.Join(err, ignoreGone(f.request(false)))
	}
	return nil
}

// Thaw thaws all members of the group. For a group that is not frozen, or does not exist, it is a no-op.
func (g Group) Thaw() error {
	f, err := g.freezer()
	if err != nil {
		return nil // without a freezer no group is frozen
	}
	return ignoreGone(f.request(false))
}

// IsFreezing reports whether the group is frozen or freezing; some members may still move.
func (g Group) IsFreezing() (bool, error) {
	f, err := g.freezer()
	if err != nil {
		return false, nil // without a freezer no group is frozen
	}
	asked, _, err := f.state()
	return asked && err == nil, ignoreGone(err)
}

// CompleteFreeze completes a Freeze that was interrupted, for example by the end of the gateway. For other groups it is a no-op.
func (g Group) CompleteFreeze(ctx context.Context) error {
	f, err := g.freezer()
	if err != nil {
		return nil // without a freezer no group is frozen
	}
	asked, stopped, err := f.state()
	if err != nil || !asked || stopped {
		return ignoreGone(err)
	}
	return g.Freeze(ctx)
}

// freezer returns the group's freezer on this host.
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

// ignoreGone returns nil if the error means that the group does not exist, and the error otherwise.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
