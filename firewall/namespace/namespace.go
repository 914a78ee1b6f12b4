// Package namespace works inside network namespaces: it creates and opens them, runs code in them, and reads and writes
// their sysctls.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// New creates a network namespace. The calling thread stays in its own.
func New() (netns.NsHandle, error) {
	home, err := netns.Get()
	if err != nil {
		return netns.None(), fmt.Errorf("network namespace: %w", err)
	}
	defer func() { _ = home.Close() }()
	made := netns.None()
	if err := Do(home, func() (err error) {
		made, err = netns.New()
		return err
	}); err != nil {
		return netns.None(), fmt.Errorf("make a network namespace: %w", err)
	}
	return made, nil
}

// Do runs fn on a thread in the namespace. A thread that cannot return to its own namespace is not reused.
func Do(ns netns.NsHandle, fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			result <- fmt.Errorf("network namespace: %w", err)
			return
		}
		defer func() { _ = home.Close() }()
		if err := netns.Set(ns); err != nil {
			result <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		err = fn()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// SocketBuffer is the buffer size of a netfilter socket, enough for the largest transaction: the kernel queues an
// acknowledgement for every message before the first one is read, and returns ENOBUFS if they do not fit, although it has
// committed. It is a limit, not allocated memory.
const SocketBuffer = 64 << 20

// Sysctl is a value under /proc/sys/net. That tree shows the namespace of the thread that opens it.
type Sysctl struct {
	Path, Value string
	Optional    bool // some kernels lack it, and it is not essential
}

// ReadSysctl returns the value of a sysctl in the namespace of the calling thread.
func ReadSysctl(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join("/proc/sys/net", path))
	return strings.TrimSpace(string(b)), err
}

// WriteSysctls writes only values that differ, in the namespace of the calling thread: writing some sysctls resets others
// even if the value does not change.
func WriteSysctls(values []Sysctl) error {
	var s Sysctls
	defer s.Close()
	return s.Write(values)
}

// Sysctls keeps the directories of written sysctls open: to resolve such a path, the kernel searches the
// directories with the same name of all namespaces. The zero value is ready to use. Use it from threads in one namespace
// only, one at a time.
type Sysctls struct{ dirs map[string]*os.Root }

// Write does the same as WriteSysctls.
func (s *Sysctls) Write(values []Sysctl) error {
	for _, v := range values {
		dir, name := filepath.Dir(v.Path), filepath.Base(v.Path)
		if conf, link := filepath.Split(dir); filepath.Base(conf) == "conf" { // of an interface, which may be deleted
			dir, name = filepath.Clean(conf), filepath.Join(link, name)
		}
		if err := s.write(dir, name, v.Value); err != nil && (!v.Optional || !errors.Is(err, os.ErrNotExist)) {
			return fmt.Errorf("sysctl net/%s: %w", v.Path, err)
		}
	}
	return nil
}

func (s *Sysctls) write(path, name, value string) error {
	dir := s.dirs[path]
	if dir == nil {
		var err error
		if dir, err = os.OpenRoot(filepath.Join("/proc/sys/net", path)); err != nil {
			return err
		}
		if s.dirs == nil {
			s.dirs = map[string]*os.Root{}
		}
		s.dirs[path] = dir
	}
	have, err := dir.ReadFile(name)
	if err == nil && strings.TrimSpace(string(have)) != value {
		err = dir.WriteFile(name, []byte(value), 0)
	}
	return err
}

// Close closes the directories.
func (s *Sysctls) Close() {
	for _, d := range s.dirs {
		_ = d.Close()
	}
	s.dirs = nil
}

// ID identifies a network namespace. The kernel reuses the number of a deleted one.
type ID struct{ dev, ino uint64 }

// IDOf returns the ID of an open namespace.
func IDOf(ns netns.NsHandle) (ID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns), &st); err != nil {
		return ID{}, fmt.Errorf("network namespace: %w", err)
	}
	return ID{st.Dev, st.Ino}, nil
}

// IDAt returns the ID of the namespace at the path.
func IDAt(path string) (ID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ID{}, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return ID{st.Dev, st.Ino}, nil
}

// ErrGone is returned when a box's network namespace no longer exists.
var ErrGone = errors.New("it is gone")

// Open opens the network namespace at the path, with a handle for its links and routes. The caller closes both.
func Open(path string) (netns.NsHandle, *netlink.Handle, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			err = fmt.Errorf("%w: %w", ErrGone, err)
		}
		return ns, nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		if errors.Is(err, unix.EINVAL) { // the path exists, but no namespace is mounted there
			err = fmt.Errorf("%w: %w", ErrGone, err)
		}
		_ = ns.Close()
		return ns, nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return ns, inside, nil
}

// AwaitCarrier waits until the interface is up.
func AwaitCarrier(ctx context.Context, h *netlink.Handle, name string) error {
	return await(ctx, "interface "+name, func() (bool, error) {
		link, err := h.LinkByName(name)
		return err == nil && link.Attrs().OperState == netlink.OperUp, err
	})
}

// AwaitLocal waits until the kernel delivers packets for the address to this host.
func AwaitLocal(ctx context.Context, h *netlink.Handle, a netip.Addr) error {
	return await(ctx, "address "+a.String(), func() (bool, error) {
		routes, err := h.RouteGet(a.AsSlice())
		return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL, nil
	})
}

// await calls ready every millisecond until it returns true or an error.
func await(ctx context.Context, what string, ready func() (bool, error)) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not come up: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

// wholeTries is how often a list is read again, more often than other programs that create and delete interfaces make
// necessary.
const wholeTries = 20

// Whole reads a list of kernel objects as of one moment. If the list changed during the dump, as happens where containers
// start and end, the kernel reports that, and Whole reads it again, up to wholeTries times.
func Whole[T any](list func() (T, error)) (found T, err error) {
	for range wholeTries {
		if found, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return found, err
}

// Seen is [Whole] for a caller that needs the elements that stay while others come and go. If every listing was interrupted, it returns
// the elements of all of them, perhaps several times, with [netlink.ErrDumpInterrupted]. A listing misses an element if those before it
// moved while the kernel waited for the reader, so one that stays is in one of them; others may be gone.
func Seen[T any](list func() ([]T, error)) (seen []T, err error) {
	found, err := Whole(func() ([]T, error) {
		part, err := list()
		seen = append(seen, part...)
		return part, err
	})
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return seen, err
	}
	return found, err
}
