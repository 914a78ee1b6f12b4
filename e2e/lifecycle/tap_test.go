package lifecycle

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// machine is a virtual machine as the network sees it: the stack of a namespace, whose frames pass the tap of a box.
type machine struct {
	*harness.ForeignBox
	w   *harness.World
	tap api.Tap
	id  string
}

// attachTap attaches a box with a tap, and connects a machine to it. VMM runs in the namespace where the tap is.
func attachTap(w *harness.World, name string, vmm func(func() error) error, args ...string) *machine {
	w.T.Helper()
	m := &machine{ForeignBox: harness.NewForeignBox(w.T), w: w}
	out, code := w.GatewayCommand(append([]string{"box", "attach", "--json", "--name", name}, args...)...)
	var box struct {
		ID       string
		Attached api.Attached
	}
	if err := json.Unmarshal([]byte(out), &box); code != 0 || err != nil || box.Attached.Tap == nil {
		w.T.Fatalf("gateway box attach: %d %s", code, out)
	}
	m.id, m.tap = box.ID, *box.Attached.Tap
	if out, code := m.Sh("ip link set lo up && ip tuntap add eth0 mode tap && ip link set eth0 address " + m.tap.MAC); code != 0 {
		w.T.Fatal(out)
	}
	m.plug(vmm)
	return m
}

// plug moves frames between the machine and its tap.
func (m *machine) plug(vmm func(func() error) error) {
	m.T.Helper()
	open := func(in func(func() error) error, name string) (tap *os.File) {
		if err := in(func() (err error) {
			tap, err = openTap(name)
			return err
		}); err != nil {
			m.T.Fatal(name, err)
		}
		m.T.Cleanup(func() { tap.Close() })
		return tap
	}
	nic, tap := open(within(m.ForeignBox), "eth0"), open(vmm, m.tap.Name)
	for _, p := range [][2]*os.File{{nic, tap}, {tap, nic}} {
		go func() {
			b := make([]byte, 1<<16)
			for {
				n, err := p[0].Read(b)
				if err != nil {
					return
				}
				_, _ = p[1].Write(b[:n]) // a frame that an interface does not take is lost, as on a wire
			}
		}()
	}
}

// within returns a function that calls others in the namespace of a sandbox.
func within(f *harness.ForeignBox) func(func() error) error {
	return func(do func() error) error {
		ns, err := os.Open(f.Path())
		if err != nil {
			return err
		}
		defer ns.Close()
		return harness.InNamespace(ns, do)
	}
}

// openTap opens a tap of the calling thread's namespace.
func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// configure sets the addresses and routes that the gateway has printed.
func (m *machine) configure() {
	m.T.Helper()
	line := "ip link set eth0 up"
	for i, a := range m.tap.Addresses {
		line += fmt.Sprintf(" && ip addr add %v dev eth0 nodad && ip route add default via %v", a, m.tap.Gateways[i])
	}
	if out, code := m.Sh(line); code != 0 {
		m.T.Fatal(out)
	}
}

// bundle returns the file with the roots that the machine trusts.
func (m *machine) bundle() string {
	m.T.Helper()
	path := filepath.Join(m.T.TempDir(), "bundle.pem")
	text, code := m.w.GatewayCommand("ca", "--box", m.id, "--bundle")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil || code != 0 {
		m.T.Fatal(err, text)
	}
	return path
}

// A virtual machine on a tap is a box like any other: DNS, header injection, denials by name and address, a policy that is
// tightened, a restart of the gateway.
func TestVirtualMachinesOnTaps(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	const rules, header = `{"mode":"custom","allowed_domains":["*.example.com"]}`, `{"api.example.com":{"X-Key":"` + harness.Canary + `"}}`
	apart := harness.NewForeignBox(t) // a namespace for the VMM
	for name, in := range map[string]struct {
		vmm  func(func() error) error
		args []string
	}{
		"in the host's namespace": {w.Net.Gateway().Do, []string{"--tap", "vm-host", "--owner", "1000"}},
		"in a given namespace":    {within(apart), []string{"--tap", "vm0", "--netns", apart.Path()}},
	} {
		m := attachTap(w, "machine-"+in.args[1], in.vmm, append(in.args, "--policy", rules, "--headers", header)...)
		m.configure()
		bundle := m.bundle()
		works := func(when string) {
			t.Helper()
			for _, family := range []string{"-4", "-6"} {
				out, code := m.Sh("curl -sS --max-time 60 " + family + " --cacert " + bundle + " https://api.example.com/echo")
				if code != 0 || !strings.Contains(out, harness.Canary) {
					t.Errorf("%s, %s: curl %s: %d %s", name, when, family, code, out)
				}
				if out, code := m.Sh("curl -sS --max-time 60 " + family + " https://evil.example.net/"); code != 35 {
					t.Errorf("%s, %s: a host that is not allowed: %d %s", name, when, code, out)
				}
			}
			if out, code := m.Sh("curl -sS --max-time 60 --resolve evil.example.net:443:" + w.V4("evil.example.net").String() + " https://evil.example.net/"); code != 35 {
				t.Errorf("%s, %s: its address: %d %s", name, when, code, out)
			}
		}
		works("attached")
		w.Event(m.id, func(e audit.Event) bool { return e.Verdict == policy.Deny && e.Name == "evil.example.net" })
		if out, code := m.Sh("curl -sS --max-time 60 http://" + m.tap.Gateways[0].String() + ":8600/"); code == 0 {
			t.Errorf("%s: a port of the host: %s", name, out)
		}
		w.Kill()
		w.StartIfStopped()
		works("after a crash of the gateway")
		w.SetPolicy(m.id, map[string]any{"mode": "deny-all"})
		if out, code := m.Sh("curl -sS --max-time 60 --cacert " + bundle + " https://api.example.com/echo"); code != 35 {
			t.Errorf("%s, after the policy was tightened: %d %s", name, code, out)
		}
		if out, code := w.GatewayCommand("box", "detach", m.id); code != 0 {
			t.Error(out)
		}
		w.Until("the tap of a detached box is gone from the gateway", func() bool {
			return in.vmm(func() error { _, err := netlink.LinkByName(m.tap.Name); return err }) != nil
		})
	}
}

// What a tap cannot be is refused before anything is made.
func TestTapsThatAreRefused(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	for line, want := range map[string]string{
		"--tap sixteen-letters-":                   "at most 15 bytes",
		"--tap eth0":                               "name of another interface",
		"--tap vm1 --stack host":                   "of a tap is guest",
		"--tap vm1 --pid 1":                        "alone or with --netns",
		"--owner 5 --pid " + strconv.Itoa(1<<22-1): "need --tap",
	} {
		out, code := w.GatewayCommand(append([]string{"box", "attach"}, strings.Fields(line)...)...)
		if code == 0 || !strings.Contains(out, want) {
			t.Errorf("%s: %d %s", line, code, out)
		}
	}
	m := attachTap(w, "vm-text", w.Net.Gateway().Do, "--tap", "vm-text")
	out, code := w.GatewayCommand("box", "attach", "--tap", "vm-text")
	if code == 0 || !strings.Contains(out, "the tap of another box") {
		t.Errorf("a tap of another box: %d %s", code, out)
	}
	v4 := m.tap.Addresses[0].Addr()
	want := fmt.Sprintf("ip=%v::%v:255.255.0.0::eth0:off:%v", v4, m.tap.Gateways[0], m.tap.Gateways[0])
	if m.tap.KernelIP != want || m.tap.Addresses[0].Bits() != 16 || m.tap.Addresses[1].Addr() == (netip.Addr{}) {
		t.Errorf("printed: %+v", m.tap)
	}
}
