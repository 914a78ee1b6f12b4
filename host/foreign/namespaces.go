// Package foreign opens the network namespaces that somebody else made, to be attached. What is opened is a network namespace
// and nothing else, whatever its path or its container names a moment later.
package foreign

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/policy"
)

// Open opens the network namespace that is to be attached. The error for one that cannot be found, or that check refuses, is
// a *[policy.InvalidError].
func Open(ctx context.Context, a api.Attached, check func(path string) error) (*os.File, error) {
	pointer, open := "/netns", func() (*os.File, error) { return openNetNS(a.Ref) }
	switch a.Kind {
	case api.AttachPID:
		pointer, open = "/pid", func() (*os.File, error) { return openNetNS(netNSOf(a.PID)) }
	case api.AttachDocker:
		pointer, open = "/container", func() (*os.File, error) { return openContainer(ctx, a.Ref) }
	}
	ns, err := open()
	if err != nil {
		return nil, invalidAt(pointer, err)
	}
	if err := check(fmt.Sprintf("/proc/self/fd/%d", ns.Fd())); err != nil {
		return nil, errors.Join(invalidAt(pointer, err), ns.Close())
	}
	return ns, nil
}

// netNSOf names the network namespace of a process.
func netNSOf(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// openContainer opens the network namespace of a Docker container. Its process may have ended before that, and its ID have
// gone to one of another sandbox: then Docker names another process, or none.
func openContainer(ctx context.Context, container string) (*os.File, error) {
	pid, err := containerPID(ctx, container)
	if err != nil {
		return nil, err
	}
	ns, err := openNetNS(netNSOf(pid))
	if err != nil {
		return nil, err
	}
	now, err := containerPID(ctx, container)
	if err == nil && now != pid {
		err = errors.New("the container was restarted just now: attach it again")
	}
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

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
	return &policy.InvalidError{Problems: []policy.Problem{{Pointer: pointer, Message: err.Error()}}}
}
