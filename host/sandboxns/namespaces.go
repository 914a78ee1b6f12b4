// Package sandboxns opens network namespaces made by other programs, so that boxes can be attached to them. It opens only
// network namespaces, and is not affected if a path or container name refers to something else a moment later.
package sandboxns

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

// Found is an open network namespace.
type Found struct {
	NS        *os.File // closed by the caller
	Container string   // ID of its Docker container; "" if it was not found by container
}

// Open opens the network namespace of a. If the namespace is not found or check rejects it, the error is a
// *[document.InvalidError].
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

// PathOf returns a path of an open namespace.
func PathOf(ns *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", ns.Fd()) }

// netNSOf returns the path of a process's network namespace.
func netNSOf(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// openContainer opens the network namespace of a running Docker container. The container's process may end at any moment,
// and its ID be reused by another sandbox. That is detected by asking Docker again, and as Docker may not have noticed
// yet, by [IsFirst].
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

// errRestarted means that a container was restarted while its namespace was being opened.
var errRestarted = errors.New("the container was restarted just now: attach it again")

// openNetNS opens a network namespace. It opens the path with O_PATH first and checks that it is a namespace, because
// opening a device or a pipe has side effects.
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
