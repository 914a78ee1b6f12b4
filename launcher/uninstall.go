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

// Leftovers lists the boxes, launched and attached, of which a launcher with this configuration has left anything behind.
// It creates nothing, not even the launcher's directories.
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

// CheckUnmounted fails if there is a mount at or below a directory, because its files must not be removed then.
func CheckUnmounted(dir string) error {
	mounts, err := overlay.MountsBelow(dir)
	if err == nil && len(mounts) > 0 {
		err = fmt.Errorf("%s is still mounted: unmount it, and try again", strings.Join(mounts, ", "))
	}
	return err
}

// Uninstall kills every box and removes all kernel state and run files of boxes. Without purge, their disks stay, and a
// later launcher can restart them as after a reboot; with purge, boxes and disks are deleted. The launcher must not be used
// afterwards. Uninstall continues after a failure and can be repeated.
func (l *Launcher) Uninstall(ctx context.Context, purge bool) error {
	known, err := l.leftovers()
	errs := []error{err}
	for id := range known {
		if purge {
			errs = append(errs, l.Delete(ctx, id))
		} else {
			errs = append(errs, l.stopAndRelease(ctx, id))
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
		return err // remaining files may be mounted below the run directory
	}
	for _, own := range l.dirs.ofRun() {
		if err := os.RemoveAll(own); err != nil {
			return err
		}
	}
	_ = os.Remove(l.dirs.run)               // fails if it contains files of other programs
	_ = os.Remove(filepath.Dir(l.dirs.run)) // fails if another launcher's directory is there
	return namespace.RemoveClaims(ctx)
}

// stopAndRelease stops a box, unmounts its disk and releases its user IDs, as a reboot would.
func (l *Launcher) stopAndRelease(ctx context.Context, id policy.BoxID) error {
	if err := l.Stop(ctx, id); err != nil {
		return err
	}
	return errors.Join(l.dirs.volume(id).Unmount(), namespace.FreeIDs(l.dirs.box(id)))
}
