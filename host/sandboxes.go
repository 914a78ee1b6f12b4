package host

import (
	"context"
	"errors"
	"fmt"

	"boxgate/api"
	"boxgate/launcher"
	"boxgate/policy"
)

// errAttached refuses what only the maker of an attached box can do.
var errAttached = api.Errorf(api.ErrConflict, "the box is attached: its maker runs the commands in it")

// errEnded is the state of a box whose first process has ended.
var errEnded = errors.New("its first process has ended: it was killed, or the box ran out of memory; resume the box to start it again from its files")

// sandboxes are what boxes consist of besides their network: containers launched here, and network namespaces of others.
type sandboxes struct{ *launcher.Launcher }

// namespace is the path of a box's network namespace, if the box is one that runs.
func (s sandboxes) namespace(ctx context.Context, b *box) (string, error) {
	if b.attached != nil {
		return s.AttachedNamespace(b.ID)
	}
	status, err := s.State(ctx, b.ID)
	if err != nil {
		return "", err
	}
	return namespaceOf(status)
}

// hasGuestStack reports whether a box is a sandbox that speaks on its interface with a network stack of its own.
func (s sandboxes) hasGuestStack(b *box) bool {
	if b.attached != nil {
		return b.attached.Stack == api.StackGuest
	}
	return s.HasOwnStack()
}

// namespaceOf is the path of the network namespace of a launched box that runs.
func namespaceOf(status launcher.Status) (string, error) {
	switch status.State {
	case launcher.StateIdle, launcher.StateRunning, launcher.StatePaused:
		return status.NetNS, nil
	case launcher.StateStopped:
		return "", errors.New("it does not run since the host was restarted: use or resume the box first")
	}
	return "", errEnded
}

// whyEnded says why the first process of a box has ended, as far as that is known.
func (s sandboxes) whyEnded(id policy.BoxID) error {
	if used, err := s.Usage(id); err == nil && used.OOMKills > 0 {
		return fmt.Errorf("%w (the box ran out of memory: the kernel has killed %d of its processes for that)", errEnded, used.OOMKills)
	}
	return errEnded
}

// release removes the processes and files of a launched box, or lets go of the namespace of an attached one.
func (s sandboxes) release(ctx context.Context, b *box) error {
	if b.attached != nil {
		return s.DetachNamespace(b.ID)
	}
	return s.Delete(ctx, b.ID)
}

// pruneAttached lets go of pinned namespaces that belong to no box.
func (s sandboxes) pruneAttached(known *boxes) error {
	ids, err := s.AttachedBoxes()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := known.find(id); err != nil {
			if err := s.DetachNamespace(id); err != nil {
				return err
			}
		}
	}
	return nil
}
