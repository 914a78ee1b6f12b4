// Package field has the network namespaces of the benchmarks, and the gateways in them:
//
//	box ── gateway ── upstream ── peers ── client
//
// A box is attached to its gateway as in production. The peers have a namespace of their own. Connections of the client
// to an upstream's address and a peer's port are redirected to that peer. Every gateway has its own namespace and
// boxes, so that two builds can be compared.
package field

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/bench/origin"
	"boxgate/internal/testnet"
)

// Addresses of the links.
const (
	PeersListen = "172.31.2.1" // the peers' address on the client's side
	PeersPublic = "172.31.1.2" // the peers' address on the upstream's side
	ClientAddr  = "172.31.2.2"

	steererListen, steererPublic, steeredAddr = "172.31.4.1", "172.31.3.2", "172.31.4.2"
)

// Field is the namespaces of a run. They are unnamed and end with this process, even if it crashes.
type Field struct {
	Dir                                string // directory of all files; removed by Close
	Upstream, Peers, Client            *testnet.NS
	TransparentHost, TransparentClient *testnet.NS // a host whose nftables rules redirect a client's connections to a listener, and that client
	Certificates                       Certificates
	Images                             string // directory where the gateway unpacks images

	lock     *os.File
	gateways []*Gateway
	all      []*testnet.NS
}

// New creates the namespaces, except the gateways'.
func New(ctx context.Context, images string) (*Field, error) {
	if err := removeStale(); err != nil {
		return nil, fmt.Errorf("removing the remains of an earlier run: %w", err)
	}
	if err := errors.Join(os.MkdirAll(parent, 0o755), os.MkdirAll(runRoot, 0o755)); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return nil, err
	}
	f := &Field{Dir: dir, Images: images}
	if f.lock, err = lock(dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := f.build(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Field) build(ctx context.Context) (err error) {
	if err := os.Chmod(f.Dir, 0o755); err != nil { // the peers change to other users
		return err
	}
	if f.Certificates, err = newCertificates(f.Dir); err != nil {
		return err
	}
	for _, ns := range []**testnet.NS{&f.Upstream, &f.Peers, &f.Client, &f.TransparentHost, &f.TransparentClient} {
		if *ns, err = f.Namespace(ctx); err != nil {
			return err
		}
	}
	if err := errors.Join(
		connect(ctx, f.Upstream, "172.31.1.1", f.Peers, PeersPublic, "peers"),
		connect(ctx, f.Client, ClientAddr, f.Peers, PeersListen, "client"),
		connect(ctx, f.Upstream, "172.31.3.1", f.TransparentHost, steererPublic, "steerer"),
		connect(ctx, f.TransparentClient, steeredAddr, f.TransparentHost, steererListen, "steered")); err != nil {
		return err
	}
	var addresses strings.Builder
	for _, a := range []string{origin.Web, origin.Hello, origin.Sink, origin.GRPC, origin.Name} {
		fmt.Fprintf(&addresses, "ip address add %s/32 dev lo\n", a)
	}
	return errors.Join(
		run(ctx, f.Upstream, addresses.String()),
		run(ctx, f.Peers, "ip route add default via 172.31.1.1\n"+redirect),
		run(ctx, f.Client, "ip route add default via "+PeersListen),
		run(ctx, f.TransparentHost, "ip route add default via 172.31.3.1\n"+steer),
		run(ctx, f.TransparentClient, "ip route add default via "+steererListen))
}

// TransparentPort is the port of the transparent listener, where nftables redirects connections.
const TransparentPort = 8998

// steer redirects connections to a transparent listener as in the kernel's documentation of TPROXY: packets of known
// sockets take one lookup, new connections go to the listener.
const steer = `
ip rule add fwmark 1 lookup 100
ip route add local default dev lo table 100
nft 'table ip steer {
  chain divert { type filter hook prerouting priority mangle; iifname "steered" jump known; }
  chain known {
    meta l4proto tcp socket transparent 1 meta mark set 1 accept
    tcp dport 443 tproxy to :8998 meta mark set 1 accept
  }
}'`

// redirect redirects the client's connections to the peers and masquerades the peers' connections.
const redirect = `
echo 1 > /proc/sys/net/ipv4/ip_forward
nft 'table ip peers {
  chain pre { type nat hook prerouting priority dstnat; iifname "client" ip daddr 203.0.113.0/24 tcp dport 9000-9999 redirect; }
  chain post { type nat hook postrouting priority srcnat; oifname "peers" masquerade; }
}'`

// tuning has the sysctls of a host that opens many connections.
const tuning = `
ip link set lo up
cd /proc/sys/net
echo "10240 65535" > ipv4/ip_local_port_range
echo 1 > ipv4/tcp_tw_reuse
echo 65535 > core/somaxconn
echo 65535 > ipv4/tcp_max_syn_backlog
`

// Namespace creates a namespace that Close removes.
func (f *Field) Namespace(ctx context.Context) (*testnet.NS, error) {
	ns, err := f.bareNamespace()
	if err != nil {
		return nil, err
	}
	return ns, run(ctx, ns, tuning)
}

// bareNamespace is Namespace without tuning, for namespaces without measurements.
func (f *Field) bareNamespace() (*testnet.NS, error) {
	ns, err := testnet.NewNS()
	if err == nil {
		f.all = append(f.all, ns)
	}
	return ns, err
}

// connect joins two namespaces; the link has the same name at both ends.
func connect(ctx context.Context, a *testnet.NS, addrA string, b *testnet.NS, addrB, name string) error {
	return errors.Join(
		run(ctx, a, fmt.Sprintf("ip link add %[1]s type veth peer name %[1]s netns %[2]s\nip address add %[3]s/30 dev %[1]s\nip link set %[1]s up", name, b.Path(), addrA)),
		run(ctx, b, fmt.Sprintf("ip address add %[2]s/30 dev %[1]s\nip link set %[1]s up", name, addrB)))
}

// run runs a shell script in a namespace.
func run(ctx context.Context, ns *testnet.NS, script string) error {
	out, err := ns.Run(ctx, "sh", "-e", "-c", script)
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.TrimSpace(script), err, strings.TrimSpace(out))
	}
	return nil
}

// NewDir creates a directory for the files of one program.
func (f *Field) NewDir(name string) (string, error) {
	dir := filepath.Join(f.Dir, name)
	return dir, os.MkdirAll(dir, 0o755)
}

// Close stops the gateways, kills the processes still in the namespaces and removes everything.
func (f *Field) Close() error {
	var errs []error
	for _, g := range f.gateways {
		errs = append(errs, g.Stop())
	}
	for _, ns := range f.all {
		errs = append(errs, ns.End())
	}
	return errors.Join(append(errs, removeAll(f.Dir), f.lock.Close())...)
}

// Certificates are the files of two certificate authorities, one for the origins and one for the peers, each with a
// certificate for all names of the benchmarks. All keys are ECDSA on P-256.
type Certificates struct{ Upstream, Peers Authority }

// Authority lists the files of one authority.
type Authority struct{ CA, CAKey, Leaf, LeafKey, Both string }

func newCertificates(dir string) (c Certificates, err error) {
	if c.Upstream, err = newAuthority(filepath.Join(dir, "upstream")); err != nil {
		return c, err
	}
	c.Peers, err = newAuthority(filepath.Join(dir, "peers"))
	return c, err
}

func newAuthority(prefix string) (a Authority, err error) {
	a = Authority{prefix + "-ca.pem", prefix + "-ca.key", prefix + "-leaf.pem", prefix + "-leaf.key", prefix + "-both.pem"}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench " + filepath.Base(prefix)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	ca, caKey, err := issue(root, nil, nil)
	if err != nil {
		return a, err
	}
	parent, err := x509.ParseCertificate(ca.Bytes)
	if err != nil {
		return a, err
	}
	key, err := x509.ParsePKCS8PrivateKey(caKey.Bytes)
	if err != nil {
		return a, err
	}
	leaf, leafKey, err := issue(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: origin.Suffix}, DNSNames: []string{"*." + origin.Suffix, "*.fresh." + origin.Suffix},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, parent, key.(*ecdsa.PrivateKey))
	if err != nil {
		return a, err
	}
	return a, a.write(ca, caKey, leaf, leafKey)
}

// issue creates a key and a certificate for it, signed by parent. Without parent it is self-signed.
func issue(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (cert, key *pem.Block, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, signer = template, own
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(30*24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, own.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(own)
	return &pem.Block{Type: "CERTIFICATE", Bytes: der}, &pem.Block{Type: "PRIVATE KEY", Bytes: private}, err
}

func (a Authority) write(ca, caKey, leaf, leafKey *pem.Block) error {
	for path, blocks := range map[string][]*pem.Block{
		a.CA: {ca}, a.CAKey: {caKey}, a.Leaf: {leaf}, a.LeafKey: {leafKey}, a.Both: {leaf, leafKey},
	} {
		var text []byte
		for _, b := range blocks {
			text = append(text, pem.EncodeToMemory(b)...)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // keys of a test that lasts minutes
			return err
		}
	}
	return nil
}

// The directory for the files of runs, writable by root only, and the run directory of their gateways with the pinned
// namespaces.
const (
	parent  = "/var/lib/boxgate/bench"
	prefix  = "run-"
	runRoot = "/run/boxgate-bench"
)

// lock marks the directory of a run as used for the lifetime of this process.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeStale removes the files of killed runs.
func removeStale() error {
	dirs, err := filepath.Glob(filepath.Join(parent, prefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		f, err := lock(dir)
		if err != nil {
			continue // in use
		}
		errs = append(errs, removeAll(dir), f.Close())
	}
	return errors.Join(errs...)
}

// removeAll removes the files of a run, including the pins of its boxes' namespaces, which outlive the gateways.
func removeAll(dir string) error {
	runs, err := filepath.Glob(filepath.Join(runRoot, filepath.Base(dir)+"-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, run := range runs {
		errs = append(errs, unmountBelow(run), os.RemoveAll(run))
	}
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

// unmountBelow unmounts everything below a directory.
func unmountBelow(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for _, at := range mountPoints(string(mounts), dir) {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", at, err))
		}
	}
	return errors.Join(errs...)
}

// mountPoints returns the mount points below a directory in a mountinfo file, the last mounted first.
func mountPoints(mountinfo, dir string) (points []string) {
	for line := range strings.Lines(mountinfo) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			points = append([]string{fields[4]}, points...)
		}
	}
	return points
}
