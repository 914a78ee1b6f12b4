package machines

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/e2e/machines/orders"
)

func TestMain(m *testing.M) { harness.Main(m) }

// tools is where `make vmm` unpacks QEMU and the kernel.
const tools = "/var/lib/boxgate/vmm"

// model is a kind of virtual machine.
type model struct {
	name    string
	machine string   // QEMU's -M
	bus     string   // suffix of virtio devices
	drivers []string // kernel modules of the bus
	queues  int      // pairs of queues of the network card
	header  bool     // frames on the tap have the header of virtio
	apart   bool     // the tap is in a namespace of the VMM
	static  bool     // the network is configured by what the gateway prints
}

var models = []model{
	{name: "microvm", machine: "microvm,acpi=on", bus: "device", drivers: []string{"virtio_mmio"}, queues: 1, header: true},
	{name: "q35 in a namespace", machine: "q35", bus: "pci", drivers: []string{"virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci"},
		queues: 1, apart: true},
	{name: "microvm with two queues", machine: "microvm,acpi=on", bus: "device", drivers: []string{"virtio_mmio"}, queues: 2, header: true, static: true},
}

// machine is a running virtual machine on the tap of a box.
type machine struct {
	*harness.World
	model
	tap  api.Tap
	id   string
	host net.HardwareAddr // of the gateway's end of the link, once it has answered
	port net.Conn
	in   *json.Decoder
}

// path returns the only file of a pattern below the tools.
func path(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(tools, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in %s: %d files: run `make vmm`", pattern, tools, len(found))
	}
	return found[0]
}

// qemu prepares QEMU without any default device, and the arguments for Debian's kernel.
func qemu(t *testing.T, acceleration string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(path(t, "usr/bin/qemu-system-x86_64"), append([]string{"-L", tools + "/usr/share/qemu", "-L", tools + "/usr/share/seabios",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-m", "256", "-accel", acceleration, "-cpu", "max", // with RDRAND: the machine has no other source of random numbers
		"-kernel", path(t, "boot/vmlinuz-*")}, args...)...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+path(t, "usr/lib/*-linux-gnu"))
	return cmd
}

var (
	probe        sync.Once
	acceleration = "tcg"
)

// accelerated returns the acceleration that works: "kvm" only if the kernel has begun to boot with it, since nested
// virtualization may make a machine and not run it.
func accelerated(t *testing.T) string {
	t.Helper()
	probe.Do(func() {
		console := filepath.Join(t.TempDir(), "console")
		cmd := qemu(t, "kvm", "-M", models[0].machine, "-append", "console=ttyS0 panic=-1", "-serial", "file:"+console)
		var errors bytes.Buffer
		cmd.Stderr = &errors
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stop := time.AfterFunc(15*time.Second, func() { _ = cmd.Process.Kill() })
		defer stop.Stop()
		err := cmd.Wait()
		if text, _ := os.ReadFile(console); bytes.Contains(text, []byte("Linux version")) {
			acceleration = "kvm"
			return
		}
		t.Logf("emulated, as /dev/kvm does not boot a kernel: %v %s", err, harness.Tail(errors.String(), 500))
	})
	return acceleration
}

var taps atomic.Int32

// newMachine attaches a box with a tap, and boots a machine on it. The machine ends with the test.
func newMachine(w *harness.World, mod model, args ...string) *machine {
	w.T.Helper()
	name, start := fmt.Sprint("vm", taps.Add(1)), w.Net.Gateway().Start
	args = append([]string{"box", "attach", "--json", "--name", "machine-" + name, "--tap", name}, args...)
	if mod.apart {
		f := harness.NewForeignBox(w.T)
		args = append(args, "--netns", f.Path())
		start = func(cmd *exec.Cmd) error {
			ns, err := os.Open(f.Path())
			if err != nil {
				return err
			}
			defer ns.Close()
			return harness.InNamespace(ns, cmd.Start)
		}
	}
	if mod.queues > 1 {
		args = append(args, "--multi-queue")
	}
	if mod.static {
		args = append(args, "--no-dhcp")
	}
	out, code := w.GatewayCommand(args...)
	var box struct {
		ID       string
		Attached api.Attached
	}
	if err := json.Unmarshal([]byte(out), &box); code != 0 || err != nil || box.Attached.Tap == nil {
		w.T.Fatalf("gateway box attach: %d %s", code, out)
	}
	m := &machine{World: w, model: mod, tap: *box.Attached.Tap, id: box.ID}
	m.boot(start)
	return m
}

// boot starts QEMU, and waits for the program in the machine.
func (m *machine) boot(start func(*exec.Cmd) error) {
	m.T.Helper()
	dir, err := os.MkdirTemp("", "vmm") // the path of a socket is short
	if err != nil {
		m.T.Fatal(err)
	}
	m.T.Cleanup(func() { os.RemoveAll(dir) })
	port, err := net.Listen("unix", filepath.Join(dir, "port"))
	if err != nil {
		m.T.Fatal(err)
	}
	defer port.Close()
	onOff := map[bool]string{true: "on", false: "off"}
	netdev := fmt.Sprintf("tap,id=n0,ifname=%s,script=no,downscript=no,vnet_hdr=%s", m.tap.Name, onOff[m.header])
	nic := fmt.Sprintf("virtio-net-%s,netdev=n0,mac=%s", m.bus, m.tap.MAC)
	if m.queues > 1 {
		netdev += ",queues=" + strconv.Itoa(m.queues)
		nic += ",mq=on"
	}
	if m.bus == "pci" {
		nic += ",romfile="
	}
	console := filepath.Join(dir, "console")
	cmd := qemu(m.T, accelerated(m.T), "-M", m.machine, "-smp", "2", "-initrd", initrd(m.T, dir, m.drivers),
		"-append", "console=ttyS0 panic=-1 tsc_early_khz="+clockRate(m.T), "-serial", "file:"+console, "-global", "virtio-mmio.force-legacy=off",
		"-netdev", netdev, "-device", nic, "-device", "virtio-serial-"+m.bus,
		"-chardev", "socket,id=c0,path="+port.Addr().String(), "-device", "virtserialport,chardev=c0")
	var errout bytes.Buffer
	cmd.Stderr = &errout
	if err := start(cmd); err != nil {
		m.T.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	m.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		err := <-ended
		if m.T.Failed() {
			text, _ := os.ReadFile(console)
			m.T.Logf("QEMU: %v %s\n%s", err, errout.String(), harness.Tail(string(text), 3000))
		}
	})
	_ = port.(*net.UnixListener).SetDeadline(time.Now().Add(time.Minute))
	if m.port, err = port.Accept(); err != nil {
		m.T.Fatal("QEMU: ", err, errout.String())
	}
	m.T.Cleanup(func() { m.port.Close() })
	m.in = json.NewDecoder(m.port)
}

// clockRate returns the rate of the processor's counter in kHz, which an emulated machine shares. Without it, the kernel of a busy
// microvm may not be able to measure it, and stops.
func clockRate(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "cpu MHz" {
			return strings.ReplaceAll(strings.TrimSpace(value), ".", "") // with three decimals
		}
	}
	t.Fatal("/proc/cpuinfo has no rate")
	return ""
}

// do has an order carried out. The machine boots before the first.
func (m *machine) do(o orders.Order) orders.Answer {
	m.T.Helper()
	return m.begin(o)()
}

// begin gives an order. The function that it returns waits for the answer.
func (m *machine) begin(o orders.Order) func() orders.Answer {
	m.T.Helper()
	_ = m.port.SetDeadline(time.Now().Add(5 * time.Minute)) // a machine of an emulator on a busy host
	if err := json.NewEncoder(m.port).Encode(o); err != nil {
		m.T.Fatal(err)
	}
	return func() (a orders.Answer) {
		m.T.Helper()
		if err := m.in.Decode(&a); err != nil {
			m.T.Fatalf("%s: %v", o.Kind, err)
		}
		return a
	}
}

// must is do for an order that succeeds.
func (m *machine) must(o orders.Order) orders.Answer {
	m.T.Helper()
	a := m.do(o)
	if a.Error != "" {
		m.T.Fatalf("%s %s: %s", o.Kind, o.URL+o.Address+o.Name, a.Error)
	}
	return a
}

// program builds the program of the machines, once.
var program = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "guest"), "boxgate/e2e/machines/guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+runtime.GOARCH)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "guest"))
})

// initrd writes the first file system of a machine: its program, and the modules of the kernel in the order of loading.
func initrd(t *testing.T, dir string, drivers []string) string {
	t.Helper()
	init, err := program()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	entry(&b, "init", 0o100755, init)
	entry(&b, "modules", 0o040755, nil)
	all := append([]string{"virtio_ring", "virtio"}, drivers...)
	for i, name := range append(all, "failover", "net_failover", "virtio_net", "virtio_console") {
		file := module(t, name)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		entry(&b, fmt.Sprintf("modules/%02d-%s", i, filepath.Base(file)), 0o100644, data)
	}
	entry(&b, "TRAILER!!!", 0, nil)
	at := filepath.Join(dir, "initrd")
	if err := os.WriteFile(at, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return at
}

// module returns the file of a module of the kernel.
func module(t *testing.T, name string) (file string) {
	t.Helper()
	err := filepath.WalkDir(path(t, "usr/lib/modules/*/kernel"), func(at string, _ os.DirEntry, err error) error {
		if base := filepath.Base(at); base == name+".ko" || base == name+".ko.xz" {
			file = at
		}
		return err
	})
	if err != nil || file == "" {
		t.Fatalf("the module %s: %v %q", name, err, file)
	}
	return file
}

// entry appends a file to an archive of the format newc (the kernel's driver-api/early-userspace/buffer-format.rst).
func entry(w io.Writer, name string, mode int, data []byte) {
	fields := [13]int{0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1}
	head := "070701"
	for _, f := range fields {
		head += fmt.Sprintf("%08x", f)
	}
	head += name + "\x00"
	fmt.Fprintf(w, "%s%s%s%s", head, make([]byte, -len(head)&3), data, make([]byte, -len(data)&3))
}
