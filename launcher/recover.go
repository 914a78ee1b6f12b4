package launcher

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.uber.org/zap"

	"boxgate/launcher/files"
	"boxgate/launcher/oci"
	"boxgate/launcher/overlay"
	"boxgate/policy"
)

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
