package testnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NS is an unnamed network namespace, kept open by this process only. Safe for concurrent use.
type NS struct {
	inode uint64

	mu sync.RWMutex
	fd netns.NsHandle // -1 once closed
}

// NewNS creates a namespace, for a topology other than that of [Net]. The namespace of the calling thread does not
// change.
func NewNS() (*NS, error) {
	ns := &NS{fd: -1}
	err := onThread(func() error {
		fd, err := netns.New() // creates and enters it
		if err != nil {
			return fmt.Errorf("creating a network namespace (requires root): %w", err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(fd), &st); err != nil {
			return errors.Join(err, fd.Close())
		}
		ns.fd, ns.inode = fd, st.Ino
		return nil
	})
	return ns, err
}

// onThread runs f on a locked thread that may change its namespace, and restores the namespace afterwards. A thread
// that cannot be restored stays locked, so that it ends with its goroutine and is never reused.
func onThread(f func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("the thread's network namespace cannot be opened: %w", err)
	}
	restored := false
	defer func() {
		if err := netns.Set(home); err == nil {
			restored = true
		}
		_ = home.Close()
		if restored {
			runtime.UnlockOSThread()
		}
	}()
	return f()
}

// Do runs f in the namespace, on the calling goroutine. Goroutines that f starts are not in the namespace. Sockets that
// f opens stay in it wherever they are used.
func (ns *NS) Do(f func() error) error {
	return onThread(func() error {
		if err := ns.setns(); err != nil {
			return err
		}
		return f()
	})
}

func (ns *NS) setns() error {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if ns.fd < 0 {
		return errors.New("the network namespace is closed")
	}
	return netns.Set(ns.fd)
}

// End kills the processes still in the namespace and releases it.
func (ns *NS) End() error { return errors.Join(ns.killProcesses(), ns.close()) }

// close releases the namespace; the kernel removes it when its last socket and process are gone.
func (ns *NS) close() error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.fd < 0 {
		return nil
	}
	return ns.fd.Close() // sets it to -1
}

// Path names the namespace for other processes, for as long as it is open in this one.
func (ns *NS) Path() string {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns.fd))
}

// Start starts cmd in the namespace, where it and its children stay. The caller waits for it as usual; [Net.Close]
// kills the processes that are left.
func (ns *NS) Start(cmd *exec.Cmd) error { return ns.Do(cmd.Start) }

// Run runs a command in the namespace and returns its output, standard error included. An exit other than 0 is an
// *[exec.ExitError].
func (ns *NS) Run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := ns.Start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

// Listen is [net.Listen] in the namespace. The address must not need a resolver.
func (ns *NS) Listen(network, address string) (ln net.Listener, err error) {
	err = ns.Do(func() (err error) {
		ln, err = net.Listen(network, address)
		return err
	})
	return ln, err
}

// ListenPacket is [net.ListenPacket] in the namespace. The address must not need a resolver.
func (ns *NS) ListenPacket(network, address string) (pc net.PacketConn, err error) {
	err = ns.Do(func() (err error) {
		pc, err = net.ListenPacket(network, address)
		return err
	})
	return pc, err
}

// DialContext connects from within the namespace to an address and port. Host names are refused: to resolve one, the
// net package would use another thread. It has the signature of http.Transport.DialContext.
func (ns *NS) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial %q: an IP address and port are needed: %w", address, err)
	}
	err = ns.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// lockedBuffer collects the output of two streams.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
