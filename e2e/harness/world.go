// Package harness is shared by the end-to-end tests. It has a [World], which is a lab with a gateway, programs in its
// boxes ([Intruder], [Raider]) that send data that no library would, and helpers that wait for conditions.
package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/e2e/harness/knobs"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
	"boxgate/launcher"
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
		c.Launcher.Root = Rooted()
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

// binaryVariable is the environment variable with the path of the gateway under test, as printed by
// dist/test-gateway.sh. The path contains a hash of the content. `go test` records the variables that a test reads, so
// it does not reuse the cached result for another gateway. If the variable is not set, the harness builds the gateway.
const binaryVariable = "GATEWAY_TEST_BINARY"

// Gateway returns the path of the gateway under test. If it cannot be built, no test of the package can run, so Gateway
// exits the process instead of failing a test.
func Gateway() string {
	path, err := gateway()
	if err != nil {
		fmt.Fprintln(os.Stderr, "the gateway under test cannot be built:", err)
		os.Exit(1)
	}
	return path
}

var gateway = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(binaryVariable); path != "" {
		return path, nil
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	if err := dependOnSources(root); err != nil {
		return "", err
	}
	cmd := exec.Command(filepath.Join(root, "dist", "test-gateway.sh"))
	if RaceDetector() {
		cmd.Args = append(cmd.Args, "-race")
	}
	out, err := output(cmd)
	return strings.TrimSpace(out), err
})

// moduleRoot returns the directory of go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("this is not in a module")
		}
	}
	return "", err
}

// dependOnSources makes `go test` cache this run's result only for the present sources of the gateway and the demo, by
// opening them: it records the files and directories of the module that a test opens.
func dependOnSources(root string) error {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if and .Module .Module.Main}}{{.Dir}}{{range .EmbedFiles}}\n{{$.Dir}}/{{.}}{{end}}{{end}}", "./e2e/harness/gateway", "./cmd/gateway-demo")
	cmd.Dir = root
	out, err := output(cmd)
	if err != nil {
		return err
	}
	for _, path := range append(strings.Fields(out), filepath.Join(root, "go.mod"), filepath.Join(root, "go.sum")) {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

// output returns the standard output of a command. The error contains its standard error.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, exit.Stderr)
	}
	return string(out), err
}

// Main runs the tests of a package of end-to-end tests, from its TestMain. It does not return.
func Main(m *testing.M) {
	if os.Geteuid() == 0 {
		if err := lab.RemoveStaleLabs(); err != nil {
			fmt.Fprintln(os.Stderr, "cannot remove all remains of an interrupted run:", err)
		}
	}
	waitTogether()
	status := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, "closing the shared labs:", err)
		status = 1
	}
	if testing.Verbose() {
		fmt.Println(countLabs())
	}
	os.Exit(status)
}

// ResolverVariable is [knobs.Resolver].
const ResolverVariable = knobs.Resolver

// LeaseVariable is [knobs.Lease].
const LeaseVariable = knobs.Lease

// UnitVariable is [knobs.Unit].
const UnitVariable = knobs.Unit

// waitTogether runs more parallel tests than there are cores, unless the command line sets the number, because tests
// wait most of the time.
func waitTogether() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))) // a valid number
	}
}

// RaceDetector reports whether this binary was built with the race detector.
func RaceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// ImageDir returns the directory that keeps images of boxes between runs.
func ImageDir() string {
	if dir := os.Getenv("TEST_IMAGE_DIR"); dir != "" {
		return dir
	}
	return "/var/lib/boxgate/images"
}

// Reboot simulates a restart of the host: it kills the gateway and removes every container, mount, pinned namespace and
// kernel rule, and the run directory. Files on disk stay, and so do the claims of user IDs, which concurrent tests
// share. The gateway is not started.
func (w *World) Reboot() {
	w.T.Helper()
	w.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), w.patience())
	defer cancel()
	run := lab.RunDir(w.Dir)
	cfg, err := config.Load(w.Config, nil)
	if err != nil {
		w.T.Fatal(err)
	}
	l, err := launcher.New(launcher.Config{StateDir: filepath.Join(w.Dir, "state"), RunDir: run, Runtime: cfg.Launcher.Runtime})
	if err != nil {
		w.T.Fatal(err)
	}
	boxes, err := l.List(ctx)
	for _, box := range boxes {
		err = errors.Join(err, l.Stop(ctx, box.ID))
	}
	_ = unix.Unmount(filepath.Join(run, "runtime", "null-netns"), unix.MNT_DETACH) // mounted by gVisor
	if err = errors.Join(err, os.RemoveAll(run)); err != nil {
		w.T.Fatalf("the host could not be restarted: %v", err)
	}
	if _, err := w.Net.Gateway().Run(ctx, "nft", "flush", "ruleset"); err != nil {
		w.T.Fatal(err)
	}
	for _, family := range []string{"-4", "-6"} { // without the gateway's changes
		if _, err := w.Net.Gateway().Run(ctx, "sh", "-c", "for p in 1 2 3 4 5 6 7 8 9; do ip "+family+" rule add pref 32765 lookup local 2>/dev/null; ip "+family+" rule del pref $p; done; ip "+family+" route flush table 45253; true"); err != nil {
			w.T.Fatal(err)
		}
	}
}
