// Package foreign opens the network namespaces that somebody else made, to be attached. What is opened is a network namespace
// and nothing else, whatever its path or its container names a moment later.
package foreign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/policy/document"
)

// Found is a network namespace that was found.
type Found struct {
	NS        *os.File // the caller closes it
	Container string   // the ID of the Docker container it is the namespace of; "" if it was not found as one
}

// Open opens the network namespace that is to be attached. The error for one that cannot be found, or that check refuses, is
// a *[document.InvalidError].
func Open(ctx context.Context, a api.Attached, check func(path string) error) (Found, error) {
	pointer, open := "/netns", func() (Found, error) {
		ns, err := openNetNS(a.Ref)
		return Found{NS: ns}, err
	}
	switch a.Kind {
	case api.AttachPID:
		pointer, open = "/pid", func() (Found, error) {
			ns, err := openNetNS(netNSOf(a.PID))
			return Found{NS: ns}, err
		}
	case api.AttachDocker:
		pointer, open = "/container", func() (Found, error) { return openContainer(ctx, cmp.Or(a.Container, a.Ref)) }
	}
	found, err := open()
	if err != nil {
		return Found{}, invalidAt(pointer, err)
	}
	if err := check(PathOf(found.NS)); err != nil {
		return Found{}, errors.Join(invalidAt(pointer, err), found.NS.Close())
	}
	return found, nil
}

// PathOf is a path of an open namespace.
func PathOf(ns *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", ns.Fd()) }

// netNSOf names the network namespace of a process.
func netNSOf(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// openContainer opens the network namespace of a Docker container that runs. Its process may have ended before that, and its
// ID have gone to one of another sandbox: then Docker names another process, or none, or has not noticed yet, and [IsFirst] does.
func openContainer(ctx context.Context, ref string) (Found, error) {
	c, err := inspect(ctx, ref)
	if err != nil {
		return Found{}, err
	}
	if c.PID == 0 {
		return Found{}, errors.New("the container is not running")
	}
	process, err := openProcess(c.PID)
	if err != nil {
		return Found{}, errRestarted
	}
	defer process.Close()
	now, err := inspect(ctx, ref)
	if err != nil {
		return Found{}, err
	}
	if now != c {
		return Found{}, errRestarted
	}
	ns, err := openNetNS(netNSOf(c.PID))
	if err != nil {
		return Found{}, err
	}
	err = IsFirst(func(file string) ([]byte, error) { return os.ReadFile(fmt.Sprintf("/proc/%d/%s", c.PID, file)) }, c.ID, c.Started)
	if hasEnded(process) {
		err = errRestarted
	}
	if err != nil {
		return Found{}, errors.Join(err, ns.Close())
	}
	return Found{NS: ns, Container: c.ID}, nil
}

// errRestarted says that a container was not the same from beginning to end.
var errRestarted = errors.New("the container was restarted just now: attach it again")

// openNetNS opens a network namespace, and nothing else: the path is opened only once it is known to name a namespace,
// since opening a device or a pipe has effects.
func openNetNS(path string) (*os.File, error) {
	place, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	notOne := fmt.Errorf("%s is not a network namespace", path)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(place.Fd()), &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		return nil, notOne
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", place.Fd()))
	if err != nil {
		return nil, err
	}
	if kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return nil, errors.Join(notOne, f.Close())
	}
	return f, nil
}

func invalidAt(pointer string, err error) error {
	return &document.InvalidError{Problems: []document.Problem{{Pointer: pointer, Message: err.Error()}}}
}
