package state

import (
	"context"
	"errors"
	"fmt"

	"boxgate/api"
	"boxgate/launcher"
	"boxgate/policy"
)

// ErrAttached refuses calls that only the owner of an attached sandbox can serve.
var ErrAttached = api.Errorf(api.ErrConflict, "the box is attached: its maker runs the commands in it")

// ErrEnded is the error for a box whose first process has ended.
var ErrEnded = errors.New("its first process has ended: it was killed, or the box ran out of memory; resume the box to start it again from its files")

// Sandboxes manages the containers of launched boxes and the network namespaces of attached ones.
type Sandboxes struct{ *launcher.Launcher }

// Namespace returns the path of the network namespace of a running box.
func (s Sandboxes) Namespace(ctx context.Context, b *Box) (string, error) {
	if b.Attached != nil {
		return s.AttachedNamespace(b.ID)
	}
	status, err := s.State(ctx, b.ID)
	if err != nil {
		return "", err
	}
	return NamespaceOf(status)
}

// HasGuestStack reports whether the sandbox of a box runs its own network stack on the interface.
func (s Sandboxes) HasGuestStack(b *Box) bool {
	if b.Attached != nil {
		return b.Attached.Stack == api.StackGuest
	}
	return s.HasOwnStack()
}

// NamespaceOf returns the path of the network namespace of a running launched box.
func NamespaceOf(status launcher.Status) (string, error) {
	switch status.State {
	case launcher.StateIdle, launcher.StateRunning, launcher.StatePaused:
		return status.NetNS, nil
	case launcher.StateStopped:
		return "", errors.New("it does not run since the host was restarted: use or resume the box first")
	}
	return "", ErrEnded
}

// WhyEnded returns the reason why the first process of a box has ended, as far as it is known.
func (s Sandboxes) WhyEnded(id policy.BoxID) error {
	if used, err := s.Usage(id); err == nil && used.OOMKills > 0 {
		return fmt.Errorf("%w (the box ran out of memory: the kernel has killed %d of its processes for that)", ErrEnded, used.OOMKills)
	}
	return ErrEnded
}

// Release removes the processes and files of a launched box, or unpins the namespace of an attached one.
func (s Sandboxes) Release(ctx context.Context, b *Box) error {
	if b.Attached != nil {
		return s.DetachNamespace(b.ID)
	}
	return s.Delete(ctx, b.ID)
}

// PruneAttached unpins namespaces that do not belong to a box.
func (s Sandboxes) PruneAttached(known *Table) error {
	ids, err := s.AttachedBoxes()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := known.Find(id); err != nil {
			if err := s.DetachNamespace(id); err != nil {
				return err
			}
		}
	}
	return nil
}
