package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	bolt "go.etcd.io/bbolt"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/host/nslock"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// broken is a condition that prevents a gateway from working on a host.
type broken struct {
	name   string
	what   string // name of the finding in the check
	says   string // the problem it reports
	remedy string
	// do breaks the host. The returned function repairs it.
	do func(t *testing.T, w *harness.World) (mend func())
}

// brokenHosts are hosts on which both the check and the gateway must report the problem.
var brokenHosts = []broken{
	{"IPv6 is off", "IPv6", "IPv6 is off", "sysctl -w net.ipv6.conf.all.disable_ipv6=0", func(t *testing.T, w *harness.World) func() {
		set := func(value string) func() {
			return func() {
				for _, where := range []string{"all", "lo"} {
					inside(t, w, "echo "+value+" > /proc/sys/net/ipv6/conf/"+where+"/disable_ipv6")
				}
			}
		}
		set("1")()
		return set("0")
	}},
	{"control groups are read-only", "control groups", "cannot be made", "remount,rw", under(`mount --make-rprivate / && for d in /sys/fs/cgroup /sys/fs/cgroup/*; do mountpoint -q $d && mount -o remount,bind,ro $d; done; true`)},
	{"no capability for the network", "root", "CAP_NET_ADMIN", "CapabilityBoundingSet", wrapped("setpriv --bounding-set=-net_admin --inh-caps=-net_admin")},
	{"no upstream resolver", "resolvers", "resolv.conf names no server", "list the upstream DNS servers", both(
		configured(func(c *config.Config) { c.DNS.Upstreams = nil }), under(`mount --make-rprivate / && mount --bind /dev/null /etc/resolv.conf`))},
	{"others may enter the state directory", "state directory", "others may enter", "chmod 700", func(t *testing.T, w *harness.World) func() {
		state := filepath.Join(w.Dir, "state")
		must(t, os.MkdirAll(state, 0o700), os.Chmod(state, 0o750))
		return func() { must(t, os.Chmod(state, 0o700)) }
	}},
	{"the state directory is a file", "state directory", "not a directory", "move it away", func(t *testing.T, w *harness.World) func() {
		state := filepath.Join(w.Dir, "state")
		must(t, os.WriteFile(state, nil, 0o600))
		return func() { must(t, os.Remove(state)) }
	}},
	{"the state directory is read-only", "state directory", "mounted read-only", "mount it writable", mountedState("ro,mode=0700")},
	{"the disk is full", "state directory", "is full", "make room", mountedState("size=64k,mode=0700")},
	{"the run directory is read-only", "run directory", "mounted read-only", "launcher.run_dir", func(t *testing.T, w *harness.World) func() {
		return mount(t, lab.RunDir(w.Dir), "ro")
	}},
	{"the runtime is missing", "runtime /nonexistent/runc", "is missing", "apt-get install runc", configured(func(c *config.Config) { c.Launcher.Runtime = "/nonexistent/runc" })},
	{"the image is missing", "image /nonexistent/rootfs", "there is no", "launcher.images", configured(func(c *config.Config) {
		c.Launcher.Images = map[string]string{"default": "/nonexistent/rootfs"}
	})},
	{"a pool is the host's", "pools", "overlaps 192.0.2.", "set another pool", configured(func(c *config.Config) { c.Network.PoolV4 = "192.0.2.0/24" })},
	{"a certificate is none", "public URL certificate", "ingress.tls", "PEM", func(t *testing.T, w *harness.World) func() {
		path := filepath.Join(w.Dir, "cert.pem")
		must(t, os.WriteFile(path, []byte("x"), 0o600))
		return configured(func(c *config.Config) { c.Ingress.TLS = config.TLS{Mode: "files", Cert: path, Key: path} })(t, w)
	}},
	{"the roots are none", "upstream CA roots", "/cert.pem", "PEM", func(t *testing.T, w *harness.World) func() {
		path := filepath.Join(w.Dir, "cert.pem")
		must(t, os.WriteFile(path, []byte("x"), 0o600))
		return configured(func(c *config.Config) { c.Proxy.UpstreamCAFiles = append(c.Proxy.UpstreamCAFiles, path) })(t, w)
	}},
	{"the admin port is taken", "listeners", "admin.listen: 127.0.0.1:8600 is in use", "set another address", portInUse("tcp", "127.0.0.1:8600")},
	{"the port of public URLs is taken", "listeners", "ingress.https: :443 is in use", "set another address", portInUse("tcp", ":443")},
	{"the port of redirects is taken", "listeners", "ingress.http: :80 is in use", "set another address", portInUse("tcp", ":80")},
	{"the metrics port is taken", "listeners", "metrics.listen: 127.0.0.1:9600 is in use", "set another address", portInUse("tcp", "127.0.0.1:9600")},
	{"the port of the explicit proxy is taken", "listeners", "the explicit proxy: 10.200.0.1:3128 is in use", "stop it", func(t *testing.T, w *harness.World) func() {
		inside(t, w, "ip addr add 10.200.0.1/32 dev lo; nft add table inet boxgate")
		free := portInUse("tcp", "10.200.0.1:3128")(t, w)
		return joined(free, func() { inside(t, w, "ip addr del 10.200.0.1/32 dev lo; nft delete table inet boxgate") })
	}},
	{"an address is another machine's", "listeners", "this machine has no address 203.0.113.99:9600", "set another address", configured(func(c *config.Config) { c.Metrics.Listen = "203.0.113.99:9600" })},
	{"something else lies in the socket's place", "listeners", "is not a socket", "remove it", func(t *testing.T, w *harness.World) func() {
		must(t, os.WriteFile(w.Socket, nil, 0o600))
		return func() { must(t, os.Remove(w.Socket)) }
	}},
	{"another gateway runs in the namespace", "listeners", "another gateway runs in this network namespace", "namespace of its own", func(t *testing.T, w *harness.World) func() {
		var lock *nslock.Lock
		must(t, w.Net.Gateway().Do(func() (err error) { lock, err = nslock.Acquire(); return err }))
		return func() {
			must(t, w.Net.Gateway().Do(func() error { lock.Remove(); return nil }), lock.Close())
		}
	}},
	{"a gateway of another mount namespace runs", "listeners", "another gateway runs in this network namespace", "namespace of its own", func(t *testing.T, w *harness.World) func() {
		const bindGroup, group = 0x401, 4517 // NFNL_SUBSYS_ULOG and NFULNL_MSG_CONFIG; the group that a gateway reads
		var reader *netlink.Conn
		must(t, w.Net.Gateway().Do(func() (err error) { reader, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); return err }))
		_, err := reader.Execute(netlink.Message{
			Header: netlink.Header{Type: bindGroup, Flags: netlink.Request | netlink.Acknowledge},
			Data:   []byte{0, 0, group >> 8, group & 0xff, 5, 0, 1, 0, 1, 0, 0, 0}, // NFULA_CFG_CMD: NFULNL_CFG_CMD_BIND
		})
		must(t, err)
		return func() { must(t, reader.Close()) }
	}},
	{"the store is of a newer version", "store", "was written by a newer boxgate", "run the newer version", func(t *testing.T, w *harness.World) func() {
		firstStart(t, w)
		return edited(t, w, func(file string) error {
			b, err := bolt.Open(file, 0o600, nil)
			if err != nil {
				return err
			}
			return errors.Join(b.Update(func(tx *bolt.Tx) error {
				return tx.Bucket([]byte("meta")).Put([]byte("version"), []byte{0, 0, 1, 0})
			}), b.Close())
		})
	}},
	{"the store is damaged", "store", "damaged", "restore a backup", func(t *testing.T, w *harness.World) func() {
		firstStart(t, w)
		return edited(t, w, func(file string) error { return os.Truncate(file, 8192) })
	}},
	{"the store is empty", "store", "is empty", "restore it from a backup", func(t *testing.T, w *harness.World) func() {
		firstStart(t, w)
		return edited(t, w, func(file string) error { return os.Truncate(file, 0) })
	}},
	{"the store is gone", "store", "is missing", "restore the file from a backup", func(t *testing.T, w *harness.World) func() {
		firstStart(t, w)
		return edited(t, w, os.Remove)
	}},
	{"the key of the store is gone", "store", "secret.key is missing", "restore it from a backup", func(t *testing.T, w *harness.World) func() {
		firstStart(t, w)
		key := filepath.Join(w.Dir, "state", "secret.key")
		must(t, os.Rename(key, key+".away"))
		return func() { must(t, os.Rename(key+".away", key)) }
	}},
}

// On each broken host the check fails with a fix, and the gateway refuses to start with the same sentence. After the
// repair, the check passes and the gateway starts.
func TestABrokenHostIsNamedAndMended(t *testing.T) {
	t.Parallel()
	for _, b := range brokenHosts {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := harness.NewStopped(t, lab.Options{})
			mend := b.do(t, w)
			said := check(w)
			sentence := strings.Join(said[b.what], "; ")
			if extra := b.what != "state directory" && len(said) != 1; extra || !strings.Contains(sentence, b.says) || !strings.Contains(sentence, b.remedy) {
				t.Errorf("the check says %q, want of %q alone that %q, and %q", said, b.what, b.says, b.remedy)
			}
			for range nightly.Size(1, 2) { // a failed start must not affect the next one
				err := w.Start(t.Context())
				if err == nil || sentence == "" || !strings.Contains(strings.ReplaceAll(err.Error(), "\n", "; "), sentence) {
					t.Errorf("the gateway says %v, want %q", err, sentence)
				}
				w.Kill()
			}
			mend()
			if said := check(w); len(said) > 0 {
				t.Errorf("mended: the check says %q", said)
			}
			if err := w.Start(t.Context()); err != nil {
				t.Errorf("mended: %v", err)
			}
		})
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// inside runs a shell command in the gateway's network namespace.
func inside(t *testing.T, w *harness.World, script string) {
	t.Helper()
	if out, err := w.Net.Gateway().Run(t.Context(), "sh", "-ec", script); err != nil {
		t.Fatal(err, out)
	}
}

func joined(fs ...func()) func() {
	return func() {
		for _, f := range fs {
			f()
		}
	}
}

// both breaks a host in two ways.
func both(a, b func(*testing.T, *harness.World) func()) func(*testing.T, *harness.World) func() {
	return func(t *testing.T, w *harness.World) func() { return joined(a(t, w), b(t, w)) }
}

// configured breaks the host by the configuration.
func configured(change func(*config.Config)) func(*testing.T, *harness.World) func() {
	return func(t *testing.T, w *harness.World) func() {
		before, err := os.ReadFile(w.Config)
		must(t, err)
		cfg, err := config.Load(w.Config, nil)
		must(t, err)
		change(&cfg)
		after, err := yaml.Marshal(cfg)
		must(t, err, os.WriteFile(w.Config, after, 0o600))
		return func() { must(t, os.WriteFile(w.Config, before, 0o600)) }
	}
}

// wrapped makes another command run every command of the gateway.
func wrapped(by string) func(*testing.T, *harness.World) func() {
	return func(t *testing.T, w *harness.World) func() {
		self := w.Self
		w.Self = filepath.Join(w.Dir, "wrapped")
		must(t, os.WriteFile(w.Self, fmt.Appendf(nil, "#!/bin/sh\nexec %s %s \"$@\"\n", by, self), 0o700))
		return func() { w.Self = self }
	}
}

// under makes every command of the gateway run in a new mount namespace, after a script.
func under(script string) func(*testing.T, *harness.World) func() {
	return wrapped("unshare -m sh -c '" + script + ` && exec "$0" "$@"'`)
}

// mountedState mounts a separate file system on the state directory.
func mountedState(options string) func(*testing.T, *harness.World) func() {
	return func(t *testing.T, w *harness.World) func() { return mount(t, filepath.Join(w.Dir, "state"), options) }
}

func mount(t *testing.T, dir, options string) func() {
	t.Helper()
	var flags uintptr
	if rest, ok := strings.CutPrefix(options, "ro"); ok {
		flags, options = unix.MS_RDONLY, strings.TrimPrefix(rest, ",")
	}
	must(t, os.MkdirAll(dir, 0o700), unix.Mount("boxgate-test", dir, "tmpfs", flags, options))
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			must(t, unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
	t.Cleanup(unmount)
	return unmount
}

// portInUse makes another program listen in the gateway's network namespace.
func portInUse(network, address string) func(*testing.T, *harness.World) func() {
	return func(t *testing.T, w *harness.World) func() {
		var ln net.Listener
		must(t, w.Net.Gateway().Do(func() (err error) { ln, err = net.Listen(network, address); return err }))
		return func() { ln.Close() }
	}
}

// firstStart makes the gateway create its store.
func firstStart(t *testing.T, w *harness.World) {
	t.Helper()
	must(t, w.Start(t.Context()), w.Stop())
}

// edited changes the store. The returned function restores it.
func edited(t *testing.T, w *harness.World, change func(file string) error) func() {
	t.Helper()
	file := filepath.Join(w.Dir, "state", "boxgate.db")
	before, err := os.ReadFile(file)
	must(t, err, change(file))
	return func() { must(t, os.WriteFile(file, before, 0o600)) }
}

// TestNobodyElseKeepsAGatewayFromStarting: an unprivileged process in the gateway's network namespace can neither
// prevent its start nor answer commands instead of it, and a killed gateway does not prevent the start of the next one.
func TestNobodyElseKeepsAGatewayFromStarting(t *testing.T) {
	w := harness.NewStopped(t, lab.Options{})
	defer portInUse("unix", "@boxgate/gateway")(t, w)()
	var socket string
	must(t, w.Net.Gateway().Do(func() (err error) { socket, err = nslock.Socket(); return err }))
	must(t, w.Start(t.Context()))
	if _, err := os.Lstat(socket); err != nil {
		t.Error("there is no socket for commands:", err)
	}
	stranger := exec.Command("sh", "-c", "ls "+nslock.Dir+" || touch "+nslock.Dir+"/x || flock -n "+filepath.Join(nslock.Dir, "x")+" true")
	stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := stranger.CombinedOutput(); err == nil {
		t.Errorf("another user gets at the lock: %s", out)
	}
	w.Kill()
	must(t, w.Start(t.Context()), w.Stop())
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Error("a gateway that has stopped leaves its socket:", err)
	}
}
