package namespace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// netnsSettings are set inside a new network namespace: commands that are not root may bind low ports and ping, since a
// box has its ports to itself and no raw sockets.
var netnsSettings = map[string]string{
	"/proc/sys/net/ipv4/ip_unprivileged_port_start": "0",
	"/proc/sys/net/ipv4/ping_group_range":           "0 2147483647",
}

// New makes a user namespace with a range of IDs and a network namespace that belongs to it, and pins both to
// files. The network namespace has to belong to the box's user namespace, because the runtime enters that one first when
// it starts a command and could not enter a network namespace of the host's from there. Root of the box still has no say
// in its network: it never has CAP_NET_ADMIN or CAP_NET_RAW.
func New(ids IDs, netPin, userPin string) error {
	err := OnThread(func() error { // the tracer is a thread
		child, err := startInNamespaces(ids)
		if err != nil {
			return fmt.Errorf("cannot make a user and a network namespace: %w (is user.max_user_namespaces 0?)", err)
		}
		defer func() {
			_ = child.Kill()
			_, _ = child.Wait()
		}()
		if err := Pin(fmt.Sprintf("/proc/%d/ns/user", child.Pid), userPin); err != nil {
			return err
		}
		return Pin(fmt.Sprintf("/proc/%d/ns/net", child.Pid), netPin)
	})
	if err != nil {
		return err
	}
	return InNetNS(netPin, func() error {
		for path, value := range netnsSettings {
			if err := os.WriteFile(path, []byte(value), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

// startInNamespaces starts a process in new namespaces. Only a process can make a user namespace; this one is under
// ptrace, so that it stops before its first instruction, and is killed once the namespaces are pinned.
//
// The box's own root makes them. The kernel charges what the processes of a user namespace take of inotify instances,
// timers, message queues and the like to whoever made it: were that root, boxes would take them from each other and from
// the host.
func startInNamespaces(ids IDs) (child *os.Process, err error) {
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: ids.base, Size: idsPerBox}}
	err = asUser(ids.Host(0), func() error {
		child, err = os.StartProcess("/proc/self/exe", []string{"namespaces"}, &os.ProcAttr{
			Sys: &syscall.SysProcAttr{
				Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
				UidMappings: mapping,
				GidMappings: mapping,
				// su and apt drop their groups. The range is the box's own, so there is no group of the host's to drop.
				GidMappingsEnableSetgroups: true,
				Ptrace:                     true,
				Pdeathsig:                  syscall.SIGKILL,
			},
		})
		return err
	})
	return child, err
}

// Pin keeps a namespace alive under the name of a file.
func Pin(ns, pin string) error {
	f, err := os.OpenFile(pin, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o400)
	if err != nil {
		return err
	}
	f.Close()
	if err := unix.Mount(ns, pin, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot pin a namespace: %w", errors.Join(err, os.Remove(pin)))
	}
	return nil
}

// InNetNS runs f on a thread that is in the pinned namespace.
func InNetNS(pin string, f func() error) error {
	ns, err := os.Open(pin)
	if err != nil {
		return err
	}
	defer ns.Close()
	return OnThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cannot enter the network namespace: %w", err)
		}
		return f()
	})
}

// OnThread runs f on a thread of its own and puts that thread's network namespace back afterwards. Should that fail, the
// thread stays locked and ends with its goroutine: no other goroutine is ever scheduled on it.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		err = f()
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// IsPinned tells a pinned namespace from a file left over after a reboot.
func IsPinned(pin string) bool {
	var st unix.Statfs_t
	return unix.Statfs(pin, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// Unpin releases a namespace. Processes in it would keep it alive, so there must be none.
func Unpin(pin string) error {
	for {
		err := unix.Unmount(pin, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue // pinned more than once
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("cannot unpin a namespace: %w", err)
		}
		if err := os.Remove(pin); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
}
