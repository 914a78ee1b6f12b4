package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// LeftBranches are the branches of ended commands that still have background processes. They are removed when these have ended.
// Their number is bounded by the process limit of the box.
type LeftBranches struct {
	// Bound is a directory with an empty file for each branch whose command must end with this process.
	Bound string

	mu       sync.Mutex
	branches map[Group][]*Branch // guarded by mu
}

// sweepBatch is how many branches RemoveWhenEmpty tries to remove.
const sweepBatch = 64

// Bind records that a command must end with this process: [LeftBranches.Recover] in the next process kills the members of its
// branch.
func (r *LeftBranches) Bind(b *Branch) error {
	if b == nil {
		return nil
	}
	return os.WriteFile(r.noteFile(b), nil, 0o600)
}

// Unbind undoes Bind. Background processes of the branch's command may then outlive this process.
func (r *LeftBranches) Unbind(b *Branch) {
	if b != nil {
		_ = os.Remove(r.noteFile(b))
	}
}

func (r *LeftBranches) noteFile(b *Branch) string {
	return filepath.Join(r.Bound, filepath.Base(b.path))
}

// RemoveWhenEmpty removes the branch of a command of a box, now or after its last member has ended.
func (r *LeftBranches) RemoveWhenEmpty(box Group, b *Branch) {
	if b == nil {
		return
	}
	r.Unbind(b)
	gone := b.Remove() == nil
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.branches[box]
	if !gone {
		list = append(list, b)
	}
	tried := min(sweepBatch, len(list))
	var kept []*Branch
	for _, old := range list[:tried] {
		if old.Remove() != nil {
			kept = append(kept, old)
		}
	}
	r.setLocked(box, append(list[tried:], kept...)) // branches that stay are tried last next time
}

func (r *LeftBranches) setLocked(box Group, list []*Branch) {
	if len(list) == 0 {
		delete(r.branches, box)
		return
	}
	if r.branches == nil {
		r.branches = map[Group][]*Branch{}
	}
	r.branches[box] = list
}

// Forget forgets the branches of a box, which are removed with its group.
func (r *LeftBranches) Forget(box Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.branches, box)
}

// Recover takes over the branches that an earlier gateway created below the group of a box: running commands that were
// bound to it are killed, and branches without members are removed, now or later.
func (r *LeftBranches) Recover(box Group) error {
	h, err := mounted()
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, mount := range []string{h.unified, h.cpuacct, h.freezer} {
		entries, err := os.ReadDir(below(mount, box))
		if err != nil {
			continue // no such hierarchy, or no such group since a reboot
		}
		for _, e := range entries {
			names[e.Name()] = e.IsDir() && strings.HasPrefix(e.Name(), BranchPrefix)
		}
	}
	var errs []error
	for name, ours := range names {
		b := box.branch(h, name)
		if !ours || b == nil {
			continue
		}
		if _, err := os.Lstat(r.noteFile(b)); err == nil {
			if err := b.Kill(); err != nil {
				errs = append(errs, err)
				continue // the note stays
			}
		}
		_ = b.freezer.request(false) // a kill may have been interrupted
		r.RemoveWhenEmpty(box, b)
	}
	return errors.Join(errs...)
}
