package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"boxgate/launcher/namespace"
	"boxgate/launcher/oci"
	"boxgate/launcher/overlay"
	"boxgate/policy"
)

// Leftovers are the boxes of which a launcher with this configuration has anything, launched and attached. It makes nothing,
// not even the launcher's directories.
func Leftovers(cfg Config) (launched, attached []policy.BoxID, err error) {
	l := &Launcher{dirs: dirsOf(cfg.StateDir, cfg.RunDir)}
	known, err := l.leftovers()
	for id := range known {
		launched = append(launched, id)
	}
	slices.Sort(launched)
	attached, attachedErr := l.AttachedBoxes()
	if errors.Is(attachedErr, fs.ErrNotExist) {
		attachedErr = nil
	}
	return launched, attached, errors.Join(err, attachedErr)
}

// CheckUnmounted fails if something is mounted at or below a directory, whose files are then not to be removed.
func CheckUnmounted(dir string) error {
	mounts, err := overlay.MountsBelow(dir)
	if err == nil && len(mounts) > 0 {
		err = fmt.Errorf("%s is still mounted: unmount it, and try again", strings.Join(mounts, ", "))
	}
	return err
}

// Uninstall ends every box and takes all of them out of the kernel, with what is its own in the run directory. What they have written stays, for a
// launcher that starts them again as after a reboot; with purge it goes too, and the boxes with it. The launcher must not be
// used afterwards. It goes on after a failure, and can be repeated.
func (l *Launcher) Uninstall(ctx context.Context, purge bool) error {
	known, err := l.leftovers()
	errs := []error{err}
	for id := range known {
		if purge {
			errs = append(errs, l.Delete(ctx, id))
		} else {
			errs = append(errs, l.takeOff(ctx, id))
		}
	}
	attached, err := l.AttachedBoxes()
	errs = append(errs, err)
	for _, id := range attached {
		errs = append(errs, l.DetachNamespace(id))
	}
	if purge {
		errs = append(errs, l.EmptyTrash(ctx))
	}
	for _, path := range oci.Namespaces(l.dirs.runtimeRoot()) {
		errs = append(errs, namespace.Unpin(path))
	}
	for _, own := range l.dirs.ofRun() {
		errs = append(errs, overlay.Unmount(own))
	}
	if err := errors.Join(errs...); err != nil {
		return err // what is still there may be mounted below the run directory
	}
	for _, own := range l.dirs.ofRun() {
		if err := os.RemoveAll(own); err != nil {
			return err
		}
	}
	_ = os.Remove(l.dirs.run)               // unless it has something of somebody else's
	_ = os.Remove(filepath.Dir(l.dirs.run)) // unless another launcher's is there
	return namespace.ForgetClaims(ctx)
}

// takeOff is Stop and what a restart of the host does besides: the box's disk is not mounted and its user IDs are not claimed.
func (l *Launcher) takeOff(ctx context.Context, id policy.BoxID) error {
	if err := l.Stop(ctx, id); err != nil {
		return err
	}
	return errors.Join(l.dirs.volume(id).Unmount(), namespace.FreeIDs(l.dirs.box(id)))
}
