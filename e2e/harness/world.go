package harness

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// World is a lab with a gateway, used by one test at a time.
type World struct {
	*lab.Lab
	T       *testing.T   // test to report failures to
	foreign *sync.Map    // box → *ForeignBox, for attached boxes
	failed  *atomic.Bool // the test or one of its subtests has failed
	logFrom int64        // size of the gateway's log when the test began
}

// NewWorld starts a gateway with its own internet. Both end with the test.
func NewWorld(t *testing.T, change func(*config.Config)) *World {
	t.Helper()
	w := NewStopped(t, lab.Options{Change: change})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// NewStopped is [NewWorld] without the gateway started.
func NewStopped(t *testing.T, o lab.Options) *World {
	t.Helper()
	needRoot(t)
	TakeSlot(t)
	o.Gateway, o.ImageDir, o.Change = Gateway(), ImageDir(), patiently(o.Change)
	l, err := lab.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	counted.own.Add(1)
	w := worldIn(t, l)
	t.Cleanup(func() {
		w.showLog()
		if err := l.Close(); err != nil {
			t.Errorf("closing the lab: %v", err)
		}
	})
	return w
}

// patiently allows boxes a long time for the first message of a connection and for the handshake: on a busy machine a
// client in a box may stall for 15 seconds in either.
func patiently(change func(*config.Config)) func(*config.Config) {
	return func(c *config.Config) {
		c.Limits.PeekTimeout = time.Minute
		if change != nil {
			change(c)
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces and containers: run it as root (sudo make test)")
	}
}

func worldIn(t *testing.T, l *lab.Lab) *World {
	return &World{Lab: l, T: t, foreign: new(sync.Map), failed: new(atomic.Bool)}
}

// showLog prints the end of the gateway's log if the test has failed.
func (w *World) showLog() {
	if w.T.Failed() {
		w.T.Logf("the gateway's log ended with:\n%s", Tail(w.LogText(), 6000))
	}
}

// NewCaptured is [NewWorld] with a count of every packet that leaves the gateway's host. ICMP errors are not rate
// limited, so that each refusal can be observed.
func NewCaptured(t *testing.T, change func(*config.Config)) *World {
	t.Helper()
	w := NewCapturedStopped(t, change)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// NewCapturedStopped is [NewCaptured] without the gateway started.
func NewCapturedStopped(t *testing.T, change func(*config.Config)) *World {
	t.Helper()
	w := NewStopped(t, lab.Options{Change: change, Net: testnet.Options{Capture: true}})
	if err := limitNoICMP(w.Lab); err != nil {
		t.Fatal(err)
	}
	return w
}

// limitNoICMP lets the gateway's kernel send every ICMP error.
func limitNoICMP(l *lab.Lab) error {
	return l.Net.Gateway().Do(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0),
			os.WriteFile("/proc/sys/net/ipv6/icmp/ratelimit", []byte("0"), 0))
	})
}

// On returns the world with another test, such as a subtest, to report failures to.
func (w *World) On(t *testing.T) *World {
	other := *w
	other.T = t
	return &other
}

// GatewayCommand runs `gateway args...` against the world's gateway.
func (w *World) GatewayCommand(args ...string) (string, int) {
	w.T.Helper()
	cmd := w.Command(w.T.Context(), args...)
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// Run runs a command of the gateway with additional environment. The test fails unless its exit status is want.
func (w *World) Run(want int, env []string, stdin string, args ...string) string {
	w.T.Helper()
	cmd := w.Command(w.T.Context(), args...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin = strings.NewReader(stdin)
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != want {
		w.T.Errorf("gateway %v: exit %d: %s", args, code, out)
	}
	return string(out)
}

// KeyFile returns the content of a file in the state directory, which must be readable only by its owner.
func (w *World) KeyFile(name string) string {
	w.T.Helper()
	path := filepath.Join(w.Dir, "state", name)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		w.T.Fatal(info, err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		w.T.Fatal(err)
	}
	return string(data)
}

// ExecDetached prepares a process in its own process group, for example to be interrupted separately.
func ExecDetached(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// V4 returns the IPv4 address of a host of the internet.
func (w *World) V4(host string) netip.Addr { return w.addr(host, netip.Addr.Is4) }

// V6 returns the IPv6 address of a host of the internet.
func (w *World) V6(host string) netip.Addr { return w.addr(host, netip.Addr.Is6) }

// addr returns the address of a host of one family.
func (w *World) addr(host string, family func(netip.Addr) bool) netip.Addr {
	w.T.Helper()
	for _, a := range w.Net.Addrs(host) {
		if family(a) {
			return a
		}
	}
	w.T.Fatalf("%s has no such address", host)
	return netip.Addr{}
}

// ListenBeside listens on an address of the internet, in addition to the server that listens on this port of every
// address.
func (w *World) ListenBeside(address string) (ln net.Listener) {
	w.T.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	err := w.Net.Internet().Do(func() (err error) {
		ln, err = lc.Listen(w.T.Context(), "tcp", address)
		return err
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = ln.Close() })
	return ln
}
