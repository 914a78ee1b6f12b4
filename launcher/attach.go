package launcher

import (
	"errors"
	"fmt"
	"os"

	"boxgate/launcher/namespace"
	"boxgate/policy"
)

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
