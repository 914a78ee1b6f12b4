package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/launcher/oci"
)

// Branch is a control group below that of a box, for one command and all its descendants. The limits of the box still apply
// to its members, and no member can leave it: the box sees control groups read-only, and they belong to the host's root. It
// allows measuring the CPU time of one command and killing all its descendants.
type Branch struct {
	path string // below the root of every hierarchy
	dirs []string
	args []string
	// Only unified (version 2) or cpuacct and freezer (version 1) are set.
	unified, cpuacct string
	freezer          freezer
}

// BranchPrefix is the prefix of the names of branches.
const BranchPrefix = "run-"

// NewBranch creates a control group with that name below the group of a box. It returns nil if the host or the runtime does
// not support that.
func (g Group) NewBranch(name string, flag oci.CgroupFlag) (*Branch, error) {
	h, err := mounted()
	if err != nil {
		return nil, err
	}
	b := g.branch(h, name)
	switch {
	case b == nil || flag == oci.NoCgroupFlag:
		return nil, nil
	case b.unified != "":
		b.args = []string{"--cgroup", name}
	case flag == oci.CgroupPerController:
		b.args = []string{"--cgroup", h.cpuacctNames + ":" + name, "--cgroup", h.freezerNames + ":" + name}
	default:
		return nil, nil
	}
	for _, dir := range b.dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			_ = b.Remove()
			return nil, fmt.Errorf("the control group of a command: %w", err)
		}
	}
	return b, nil
}

// branch returns the branch with that name, which need not exist; nil if the host does not support branches.
func (g Group) branch(h hierarchies, name string) *Branch {
	under := Group(filepath.Join(string(g), name))
	b := &Branch{path: string(under), freezer: h.freezerOf(under)}
	switch {
	case h.unified != "":
		b.unified = below(h.unified, under)
		b.dirs = []string{b.unified}
	case h.cpuacct != "" && h.freezer != "":
		b.cpuacct = below(h.cpuacct, under)
		b.dirs = []string{b.cpuacct, b.freezer.dir}
	default:
		return nil
	}
	return b
}

// Directories returns the directories of the control groups for a command of a box: the branch (which may be nil) in its
// hierarchies, and the box's group in all others. On a host with version 2 only, there is one: unified.
func (g Group) Directories(b *Branch) (dirs []string, unified string, err error) {
	if dirs, err = g.Dirs(); err != nil {
		return nil, "", err
	}
	h, err := mounted()
	if err != nil {
		return nil, "", err
	}
	if b != nil {
		for i, dir := range dirs {
			if n := slices.IndexFunc(b.dirs, func(below string) bool { return filepath.Dir(below) == dir }); n >= 0 {
				dirs[i] = b.dirs[n]
			}
		}
	}
	switch {
	case len(dirs) == 0:
		return nil, "", fmt.Errorf("the control group %s: %w", string(g), fs.ErrNotExist)
	case h.unified == "":
		return dirs, "", nil
	case len(dirs) != 1:
		return nil, "", fmt.Errorf("%d control groups on a host with version 2", len(dirs))
	}
	return nil, dirs[0], nil
}

// Args returns the arguments for the runtime's exec.
func (b *Branch) Args() []string {
	if b == nil {
		return nil
	}
	return b.args
}

// CPU returns the CPU time used by all members, past and present; 0 if unknown.
func (b *Branch) CPU() time.Duration {
	switch {
	case b == nil:
		return 0
	case b.unified != "":
		return usageOf(filepath.Join(b.unified, "cpu.stat"))
	}
	data, err := os.ReadFile(filepath.Join(b.cpuacct, "cpuacct.usage"))
	if err != nil {
		return 0
	}
	ns, _ := strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64)
	return time.Duration(ns)
}

// usageOf reads the CPU time from a cpu.stat file of version 2.
func usageOf(file string) time.Duration {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			us, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return time.Duration(us) * time.Microsecond
		}
	}
	return 0
}

// Remove removes the group. It fails while the group has members, such as background processes of the command.
func (b *Branch) Remove() error {
	if b == nil {
		return nil
	}
	var errs []error
	for _, dir := range b.dirs {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Signal sends a signal to every member. It may miss a process that is being started.
func (b *Branch) Signal(sig unix.Signal) error {
	pids, err := b.Members()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		b.signal(pid, sig)
	}
	return nil
}

// signal sends a signal to one process, unless its ID has been reused by a process outside the branch.
func (b *Branch) signal(pid int, sig unix.Signal) {
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(handle)
	if b.Has(pid) {
		_ = unix.PidfdSendSignal(handle, sig, nil, 0)
	}
}

// Has reports whether a process is a member.
func (b *Branch) Has(pid int) bool {
	if b == nil {
		return false
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && slices.ContainsFunc(strings.Split(string(groups), "\n"), b.matchesLine)
}

// matchesLine reports whether a line of /proc/PID/cgroup names this group.
func (b *Branch) matchesLine(line string) bool { return strings.HasSuffix(line, b.path) }

// Members returns the processes of the group. A branch has no subgroups, because a box cannot create any.
func (b *Branch) Members() ([]int, error) {
	if b == nil {
		return nil, nil
	}
	data, err := os.ReadFile(filepath.Join(b.dirs[len(b.dirs)-1], "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	var pids []int
	for field := range strings.FieldsSeq(string(data)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// Kill kills every member, including members that start others during the call.
func (b *Branch) Kill() error {
	if b == nil {
		return nil
	}
	if b.unified != "" {
		err := os.WriteFile(filepath.Join(b.unified, "cgroup.kill"), []byte("1"), 0)
		if !errors.Is(err, fs.ErrNotExist) { // before Linux 5.14
			return err
		}
	}
	// Freeze first, so that no member starts another process or exits, which would let its ID be reused. Members that do
	// not freeze in time are killed as well.
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	_ = b.freezer.freezeAll(ctx, false)
	defer func() { _ = b.freezer.request(false) }()
	return b.Signal(unix.SIGKILL)
}

// killTimeout bounds the wait for members to freeze before they are killed.
const killTimeout = 2 * time.Second

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
