package launcher

import (
	"context"

	"boxgate/launcher/namespace"
	"boxgate/policy"
)

// moveToTrash moves the files of a box to the trash, in constant time, and releases its user IDs: no process can reach the
// files any longer. [Launcher.KeepTrashEmpty] removes them.
func (l *Launcher) moveToTrash(id policy.BoxID) error {
	if err := l.trash.Move(l.dirs.box(id)); err != nil {
		return err
	}
	return namespace.FreeIDs(l.dirs.box(id))
}

// KeepTrashEmpty removes the files of deleted boxes, oldest runs first, until ctx ends: a few at a time, with a lower CPU
// and disk priority than everything else. Failures are logged once and retried from time to time. Call it once.
func (l *Launcher) KeepTrashEmpty(ctx context.Context) { l.trash.KeepEmpty(ctx) }

// EmptyTrash removes the files of all deleted boxes. On failure it continues, and returns the errors.
func (l *Launcher) EmptyTrash(ctx context.Context) error { return l.trash.Empty(ctx) }

// Trash returns how many deleted boxes still have files, and for how many of them a removal failed.
func (l *Launcher) Trash() (boxes, failed int) { return l.trash.Count() }
