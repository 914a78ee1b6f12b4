// Package namespace allocates user IDs of the host to boxes, and creates the namespaces for their processes, pinned to
// files.
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

// netnsSettings are set inside a new network namespace: unprivileged commands may bind low ports and ping, since a box has
// its own ports and no raw sockets.
var netnsSettings = map[string]string{
	"/proc/sys/net/ipv4/ip_unprivileged_port_start": "0",
	"/proc/sys/net/ipv4/ping_group_range":           "0 2147483647",
}

// New creates a user namespace with a range of IDs and a network namespace owned by it, and pins both to files. The box's
// user namespace must own the network namespace, because the runtime enters the user namespace first when it starts a
// command, and could not enter a network namespace of the host from there. Root of the box still has no control over its
// network: it never has CAP_NET_ADMIN or CAP_NET_RAW.
func New(ids IDs, netPin, userPin string) error {
	err := OnThread(func() error { // a thread can be a tracer; all ptrace calls must come from it
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

// startInNamespaces starts a process in new namespaces. Only a process can create a user namespace. This one is under
// ptrace, so that it stops before its first instruction, and is killed once the namespaces are pinned.
//
// It is started by the box's own root. The kernel charges inotify instances, timers, message queues and the like of a user
// namespace to the namespace's creator: if that were root of the host, boxes would take them from each other and from the
// host.
func startInNamespaces(ids IDs) (child *os.Process, err error) {
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: ids.base, Size: idsPerBox}}
	err = asUser(ids.Host(0), func() error {
		child, err = os.StartProcess("/proc/self/exe", []string{"namespaces"}, &os.ProcAttr{
			Sys: &syscall.SysProcAttr{
				Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
				UidMappings: mapping,
				GidMappings: mapping,
				// su and apt drop their groups. The range is the box's own, so these are never groups of the host.
				GidMappingsEnableSetgroups: true,
				Ptrace:                     true,
				Pdeathsig:                  syscall.SIGKILL,
			},
		})
		return err
	})
	return child, err
}

// Pin keeps a namespace alive by mounting it on a file.
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

// InNetNS runs f on a thread in the pinned namespace.
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

// OnThread runs f on a separate thread and restores the thread's network namespace afterwards. If that fails, the thread
// stays locked and ends with its goroutine, so that no other goroutine runs on it.
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

// IsPinned reports whether pin is a pinned namespace and not a file left over after a reboot.
func IsPinned(pin string) bool {
	var st unix.Statfs_t
	return unix.Statfs(pin, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// Unpin releases a namespace. Processes in it would keep it alive, so there must not be any.
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

// asUser runs f on this thread with another effective user ID. The thread keeps its capabilities, and root's access to
// files. If it cannot become root again, it stays locked and ends with its goroutine, so that no other goroutine runs on
// it.
func asUser(uid int, f func() error) error {
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // of the calling thread
	var before, during [2]unix.CapUserData
	if err := unix.Capget(&header, &before[0]); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	during = before
	for i := range during {
		during[i].Effective = during[i].Permitted // changing the user ID clears Effective
	}
	err := setEffectiveUser(uid)
	if err == nil {
		err = unix.Capset(&header, &during[0])
	}
	if err == nil {
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0) // does not return errors
		err = f()
	}
	if back := errors.Join(setEffectiveUser(0), unix.Capset(&header, &before[0])); back != nil {
		return errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	return err
}

// setEffectiveUser is seteuid(2) for the calling thread only; package syscall changes the whole process.
func setEffectiveUser(uid int) error {
	const keep = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		return e
	}
	return nil
}
