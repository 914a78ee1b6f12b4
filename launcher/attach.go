package launcher

import (
	"errors"
	"fmt"
	"os"

	"boxgate/launcher/namespace"
	"boxgate/policy"
)

// AttachNamespace pins an open, existing network namespace, so that the box keeps it whatever happens to the name or
// the process by which it was found. It returns the path of the pin.
func (l *Launcher) AttachNamespace(id policy.BoxID, ns *os.File) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	pin := l.dirs.attachedPin(id)
	return pin, namespace.Pin(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), pin)
}

// ErrNamespaceGone says that the network namespace of an attached box is not pinned any more.
var ErrNamespaceGone = errors.New("its network namespace is gone")

// AttachedNamespace returns the pin of an attached box, or [ErrNamespaceGone], as after a restart of the host.
func (l *Launcher) AttachedNamespace(id policy.BoxID) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	if pin := l.dirs.attachedPin(id); namespace.IsPinned(pin) {
		return pin, nil
	}
	return "", ErrNamespaceGone
}

// DetachNamespace releases the namespace of an attached box. A missing one is not an error.
func (l *Launcher) DetachNamespace(id policy.BoxID) error {
	if err := checkID(id); err != nil {
		return err
	}
	return namespace.Unpin(l.dirs.attachedPin(id))
}

// AttachedBoxes are the boxes whose attached namespaces are pinned.
func (l *Launcher) AttachedBoxes() ([]policy.BoxID, error) {
	entries, err := os.ReadDir(l.dirs.attached())
	var ids []policy.BoxID
	for _, e := range entries {
		ids = append(ids, policy.BoxID(e.Name()))
	}
	return ids, err
}
