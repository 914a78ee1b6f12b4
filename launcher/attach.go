package launcher

import (
	"errors"
	"fmt"
	"os"

	"boxgate/launcher/namespace"
	"boxgate/policy"
)

// AttachNamespace pins an open network namespace that somebody else made, so that the box keeps this very one whatever
// happens to the name or the process it was found by. It returns the path of the pin.
func (l *Launcher) AttachNamespace(id policy.BoxID, ns *os.File) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	pin := l.dirs.attachedPin(id)
	return pin, namespace.Pin(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), pin)
}

// AttachedNamespace is the pin of an attached box; an error if the host has been restarted since.
func (l *Launcher) AttachedNamespace(id policy.BoxID) (string, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	if pin := l.dirs.attachedPin(id); namespace.IsPinned(pin) {
		return pin, nil
	}
	return "", errors.New("its network namespace is gone: detach it, and attach the new one")
}

// DetachNamespace lets the namespace of an attached box go. One that is not there is no error.
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
