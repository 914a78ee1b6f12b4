package launcher

import (
	"context"

	"boxgate/launcher/namespace"
	"boxgate/policy"
)

// discard moves the files of a box out of the way, in constant time, and releases its user IDs: nothing can access
// those files any more. [Launcher.KeepTrashEmpty] removes them.
func (l *Launcher) discard(id policy.BoxID) error {
	if err := l.trash.Take(l.dirs.box(id)); err != nil {
		return err
	}
	return namespace.FreeIDs(l.dirs.box(id))
}

// KeepTrashEmpty removes the files of deleted boxes, those of an earlier run first, until ctx ends: a few at a time, and
// at a lower CPU and disk priority than everything else. Failures are logged once, and retried from time to time. Call it once.
func (l *Launcher) KeepTrashEmpty(ctx context.Context) { l.trash.KeepEmpty(ctx) }

// EmptyTrash removes the files of deleted boxes and returns when none is left, or why some are.
func (l *Launcher) EmptyTrash(ctx context.Context) error { return l.trash.Empty(ctx) }

// Trash returns how many deleted boxes still have files, and how many of them have some that could not be removed.
func (l *Launcher) Trash() (boxes, failed int) { return l.trash.Count() }
