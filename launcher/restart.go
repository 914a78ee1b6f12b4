package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"boxgate/internal/fault"
	"boxgate/launcher/files"
	"boxgate/launcher/image"
	"boxgate/launcher/namespace"
	"boxgate/launcher/oci"
	"boxgate/launcher/overlay"
	"boxgate/launcher/rootfs"
	"boxgate/policy"
)

// Stop kills all processes of a box and removes its kernel state: control group, mounts, namespaces. Its disk, record and
// user IDs stay.
func (l *Launcher) Stop(ctx context.Context, id policy.BoxID) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer l.lock(id)()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return l.removeKernelState(ctx, id)
}

// Renew makes and pins new namespaces for a box whose old ones are gone, as after a reboot, and returns the path of the
// network namespace. It first removes remains of the box's earlier run. As after [Launcher.Prepare], no process runs in the
// box; the caller closes the network before it calls Restart. A failed Renew leaves the box stopped.
func (l *Launcher) Renew(ctx context.Context, id policy.BoxID) (netns string, err error) {
	defer l.lock(id)()
	r, err := l.createdRecord(id)
	if err != nil {
		return "", err
	}
	if err := namespace.ReclaimIDs(ctx, r.IDIndex, l.dirs.box(id)); err != nil {
		return "", fmt.Errorf("box %s: %w", id, err)
	}
	defer l.stopOnError(id, &err)
	if err := l.removeKernelState(ctx, id); err != nil {
		return "", err
	}
	if err := namespace.New(r.ids(), l.dirs.pin(id), l.dirs.userPin(id)); err != nil {
		return "", fmt.Errorf("box %s: %w", id, err)
	}
	return l.dirs.pin(id), fault.At(ctx, "restart: namespaces pinned")
}

// Restart starts a box in the namespaces that Renew made. Its disk is unchanged: root, users and hostname are as the box left
// them. Only with spec.Roots, the box's CA and the roots are added to its certificates again, since the roots may be new; if that
// fails because of what the box left there, it starts without them. When Restart returns nil, Exec works. A failed Restart leaves the box stopped. spec is that of Create.
func (l *Launcher) Restart(ctx context.Context, spec Spec) (err error) {
	if err := spec.check(); err != nil {
		return err
	}
	defer l.lock(spec.ID)()
	r, err := l.createdRecord(spec.ID)
	if err != nil {
		return err
	}
	defer l.stopOnError(spec.ID, &err)
	spec.Layers, spec.Account = r.Layers, r.Account
	img := image.Image{Rootfs: r.Rootfs, Env: r.Base}
	if r.Rootfs == "" { // made by an older version
		if img, err = l.images.Find(cmp.Or(r.Image, spec.Image)); err != nil {
			return err
		}
	}
	trusts, hadRoot := false, r.Root
	r.Root = l.cfg.Root
	if hadRoot && !r.Root {
		if err := l.saveRecord(r); err != nil { // commands must not believe that the box still has the mount of its last run
			return err
		}
	}
	err = l.launch(ctx, spec, img, r, func(root *rootfs.Root, spec Spec) (err error) {
		if r.Root && !hadRoot {
			l.letSudo(root, spec)
		}
		trusts, err = l.writeRestartedRoot(root, spec)
		return err
	})
	if err == nil && r.Root && !hadRoot { // not before, so that a start that failed is followed by one that lets it use sudo
		err = l.saveRecord(r)
	}
	if err == nil && trusts {
		l.noteRoots(r, spec.Roots)
	}
	return err
}

// letSudo lets the box's user use sudo, also if it is installed later. An image or a box may have anything in the place of the file; the
// box then starts without.
func (l *Launcher) letSudo(root *rootfs.Root, spec Spec) {
	if err := root.LetSudo(spec.Account); err != nil {
		l.log.Warn("sudo in a box asks for a password", zap.String("box", string(spec.ID)), zap.Error(err))
	}
}

// writeRestartedRoot changes only the files that the box needs to start, and its certificates, which it reports; the rest of the root
// stays as the box left it.
func (l *Launcher) writeRestartedRoot(root *rootfs.Root, spec Spec) (trusts bool, err error) {
	if err := root.PrepareRestart(spec.Account); err != nil || len(spec.Roots) == 0 {
		return false, err
	}
	if err := root.Trust(spec.CA, spec.Roots); err != nil {
		l.log.Warn("a box does not get the configured root certificates", zap.String("box", string(spec.ID)), zap.Error(err))
		return false, nil
	}
	return true, nil
}

// createdRecord returns the record of a box whose creation was completed.
func (l *Launcher) createdRecord(id policy.BoxID) (record, error) {
	r, err := l.loadRecord(id)
	if err == nil && !r.Created {
		err = fmt.Errorf("box %s: %w", id, ErrNotRunning)
	}
	return r, err
}

// launch builds the root of a box and starts its first process. On failure the caller cleans up.
func (l *Launcher) launch(ctx context.Context, spec Spec, img image.Image, r record, write rootWriter) error {
	id := spec.ID
	if !namespace.IsPinned(l.dirs.pin(id)) || !namespace.IsPinned(l.dirs.userPin(id)) {
		return fmt.Errorf("box %s: its namespaces are gone", id)
	}
	if err := l.buildRoot(spec, img, r.ids(), write); err != nil {
		return fmt.Errorf("box %s: %w", id, err)
	}
	if err := fault.At(ctx, "launch: root built"); err != nil {
		return err
	}
	l.starting.Store(id, nil)
	defer l.starting.Delete(id)
	if err := l.startRuntime(ctx, spec); err != nil {
		return fmt.Errorf("box %s: %w", id, err)
	}
	if err := fault.At(ctx, "launch: first process started"); err != nil {
		return err
	}
	// The box has its own copies of the mounts. The empty mount points stay: the runtime starts commands from there.
	if err := overlay.Unmount(l.dirs.mounts(id)); err != nil {
		return fmt.Errorf("box %s: %w", id, err)
	}
	return nil
}

// stopOnError stops a box if *err is not nil: starting it failed.
func (l *Launcher) stopOnError(id policy.BoxID, err *error) {
	if *err == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if cerr := l.removeKernelState(ctx, id); cerr != nil {
		l.log.Error("a box that could not be started could not be stopped either", zap.String("box", string(id)), zap.Error(cerr))
	}
}

// claimTimeout bounds the wait for other launchers on this host to check their user IDs.
const claimTimeout = 10 * time.Second

// renewClaim claims the user IDs of a box again after a reboot. Without them the box cannot be started.
func (l *Launcher) renewClaim(ctx context.Context, r record) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	if err := namespace.ReclaimIDs(ctx, r.IDIndex, l.dirs.box(r.ID)); err != nil {
		l.log.Error("the user IDs of a box are not its own", zap.String("box", string(r.ID)), zap.Error(err))
	}
}

// Recover cleans up after the previous process, however it ended. Complete boxes are adopted and returned; their processes
// are not touched, except running commands that were bound to the previous process, which are killed. Incomplete boxes are
// removed, and so are namespace pins, mounts and containers without a box, and files with the environment of commands that
// were being started. Call it once, before anything else.
//
// A box that cannot be removed does not affect the others: it is logged and returned in StateError, so that the caller can
// call Delete again. An error means that Recover could not examine or secure all boxes, and that no box must be started.
func (l *Launcher) Recover(ctx context.Context) ([]Status, error) {
	if !l.cfg.TakesOver {
		if err := emptyDir(ctx, l.dirs.execFiles()); err != nil { // of commands that were being started
			return nil, err
		}
	}
	known, err := l.leftovers()
	if err != nil {
		return nil, err
	}
	// Mounts on the host that remain from the creation of boxes are harmless.
	if err := overlay.Unmount(l.dirs.allMounts()); err != nil {
		l.log.Error("a mount of a box is left on the host", zap.Error(err))
	}
	var errs []error
	stuck := map[policy.BoxID]bool{}
	for id := range known {
		if r, err := l.loadRecord(id); err == nil && r.Created {
			l.renewClaim(ctx, r)
			if !l.cfg.TakesOver {
				errs = append(errs, l.branches.Recover(l.cgroup(r.ID)))
				if err := l.cgroup(r.ID).CompleteFreeze(ctx); err != nil { // otherwise the runtime waits for it, or reports the box as running
					l.log.Warn("the pause of a box was cut short, and could not be finished", zap.String("box", string(id)), zap.Error(err))
				}
			}
			if err := l.holdImage(r); err != nil {
				l.log.Warn("the image of a box is not protected from removal", zap.String("box", string(id)), zap.Error(err))
			}
			continue
		}
		if err := l.Delete(ctx, id); err != nil {
			l.log.Error("a box that was half made or half removed could not be removed",
				zap.String("box", string(id)), zap.Error(err))
			stuck[id] = true
		}
	}
	list, err := l.List(ctx)
	for _, s := range list {
		if s.State == StatePaused {
			l.motion.BlockStarts(ctx, s.ID, false)
		}
	}
	list = slices.DeleteFunc(list, func(s Status) bool { return stuck[s.ID] })
	for id := range stuck {
		list = append(list, Status{ID: id, State: StateError, NetNS: l.dirs.pin(id)})
	}
	if err = errors.Join(append(errs, err)...); err == nil && !l.cfg.TakesOver {
		err = emptyDir(ctx, l.dirs.bound()) // of deleted boxes
	}
	return list, err
}

// emptyDir removes the files that a killed process left in a directory.
func emptyDir(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := files.RemoveTree(ctx, filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// leftovers returns the box IDs that occur as names in the launcher's directories.
func (l *Launcher) leftovers() (map[policy.BoxID]bool, error) {
	ids := map[policy.BoxID]bool{}
	for _, dir := range []string{l.dirs.boxes(), l.dirs.pins(), l.dirs.userPins(), l.dirs.allMounts(), l.dirs.runtimeRoot()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if id := policy.BoxID(oci.ContainerOf(e.Name())); checkID(id) == nil {
				ids[id] = true
			}
		}
	}
	return ids, nil
}

// AttachNamespace pins an open, existing network namespace, so that the box keeps it even if the name or process by which
// it was found goes away. It returns the path of the pin.
func (l *Launcher) AttachNamespace(id policy.BoxID, ns *os.File) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	pin := l.dirs.attachedPin(id)
	return pin, namespace.Pin(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), pin)
}

// ErrNamespaceGone is returned for an attached box whose network namespace is no longer pinned.
var ErrNamespaceGone = errors.New("its network namespace is gone")

// AttachedNamespace returns the pin of an attached box, or [ErrNamespaceGone] if it is missing, as after a reboot.
func (l *Launcher) AttachedNamespace(id policy.BoxID) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	if pin := l.dirs.attachedPin(id); namespace.IsPinned(pin) {
		return pin, nil
	}
	return "", ErrNamespaceGone
}

// DetachNamespace unpins the namespace of an attached box. A missing one is not an error.
func (l *Launcher) DetachNamespace(id policy.BoxID) error {
	if err := checkID(id); err != nil {
		return err
	}
	return namespace.Unpin(l.dirs.attachedPin(id))
}

// AttachedBoxes returns the boxes whose attached namespaces are pinned.
func (l *Launcher) AttachedBoxes() ([]policy.BoxID, error) {
	entries, err := os.ReadDir(l.dirs.attached())
	var ids []policy.BoxID
	for _, e := range entries {
		ids = append(ids, policy.BoxID(e.Name()))
	}
	return ids, err
}
