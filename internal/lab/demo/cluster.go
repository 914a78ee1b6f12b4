package demo

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
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"boxgate/config"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// hostCount is the number of hosts of the demo.
const hostCount = 3

// Addresses on the switch between the hosts.
const etcdAddress = "10.213.0.254"

func hostAddress(i int) string { return fmt.Sprintf("10.213.0.%d", i+1) }

// cluster is an etcd and labs that are connected by a switch, in namespaces of their own. Its files are in the directory of the first lab.
type cluster struct {
	lan   *testnet.NS
	hosts []*lab.Lab
	etcd  *exec.Cmd
	stdin io.Closer // closing it ends etcd
	dir   string    // of etcd
}

// newCluster makes the namespaces and starts etcd. Close it also after an error.
func newCluster(ctx context.Context, o Options) (*cluster, error) {
	c := &cluster{}
	var err error
	if c.lan, err = testnet.NewNS(); err != nil {
		return c, err
	}
	if err := c.ip(ctx, c.lan, "link set lo up", "link add switch type bridge", "address add "+etcdAddress+"/24 dev switch", "link set switch up"); err != nil {
		return c, err
	}
	for i := range hostCount {
		l, err := lab.New(ctx, lab.Options{Gateway: o.Gateway, ImageDir: o.ImageDir, Change: func(cfg *config.Config) { c.configure(i, cfg) }})
		if err != nil {
			return c, err
		}
		c.hosts = append(c.hosts, l)
		port, gateway := fmt.Sprintf("host%d", i+1), l.Net.Gateway()
		err = errors.Join(
			c.ip(ctx, c.lan, "link add "+port+" type veth peer name lan0 netns "+gateway.Path(), "link set "+port+" master switch up"),
			c.ip(ctx, gateway, "link set lan0 up", "address add "+hostAddress(i)+"/24 dev lan0"),
		)
		if err != nil {
			return c, err
		}
	}
	return c, c.startEtcd(ctx, o.Etcd)
}

// configure makes a host part of the fleet.
func (c *cluster) configure(i int, cfg *config.Config) {
	smallImage(cfg)
	if i == 0 {
		c.dir = filepath.Join(filepath.Dir(cfg.StateDir), "etcd")
	}
	cfg.Fleet = config.Fleet{
		Name: "demo", Endpoints: []string{"https://" + etcdAddress + ":2379"}, Advertise: hostAddress(i) + ":8700", Ingress: hostAddress(i) + ":443",
		TLS: config.FleetTLS{CAFile: c.file(caFile), CertFile: c.file(hostFile), KeyFile: c.file(hostFile)},
	}
}

// ip runs lines of ip(8) in a namespace.
func (c *cluster) ip(ctx context.Context, ns *testnet.NS, lines ...string) error {
	for _, line := range lines {
		if out, err := ns.Run(ctx, "sh", "-c", "exec ip "+line); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return nil
}

// file returns the path of a file of etcd.
func (c *cluster) file(name string) string { return filepath.Join(c.dir, name) }

// health is the address at which etcd reports that it serves, in its namespace.
const health = "127.0.0.1:2381"

// untilEOF is a shell line that runs a command until its own standard input ends, which it does with the process of the demo.
const untilEOF = `"$0" "$@" </dev/null & read -r _; kill -9 $! 2>/dev/null; wait $!`

// startEtcd starts etcd with TLS, and returns when it serves.
func (c *cluster) startEtcd(ctx context.Context, program string) error {
	if err := errors.Join(os.Mkdir(c.dir, 0o700), c.writeCertificates()); err != nil {
		return err
	}
	log, err := os.Create(c.file("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	client := "https://" + etcdAddress + ":2379"
	// The socket is a file of the working directory: etcd requires the form of host and port. Without fsync: the demo is over after a crash.
	cmd := exec.Command("sh", "-c", untilEOF, program, "--data-dir="+c.file("data"), "--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls=unix://peer:1", "--initial-advertise-peer-urls=unix://peer:1", "--initial-cluster=default=unix://peer:1", "--listen-metrics-urls=http://"+health,
		"--cert-file="+c.file(etcdFile), "--key-file="+c.file(etcdFile), "--trusted-ca-file="+c.file(caFile), "--client-cert-auth", "--unsafe-no-fsync", "--logger=zap", "--log-level=warn")
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the demo handles Ctrl-C, not etcd
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	cmd.Stdin = read
	if err := c.lan.Start(cmd); err != nil {
		return errors.Join(err, write.Close())
	}
	c.etcd, c.stdin = cmd, write
	return c.awaitEtcd(ctx)
}

// etcdPatience bounds the start of etcd on a busy machine.
const etcdPatience = time.Minute

func (c *cluster) awaitEtcd(ctx context.Context) error {
	asking := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: c.lan.DialContext}}
	err := until(ctx, etcdPatience, func() bool {
		r, err := asking.Get("http://" + health + "/health")
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	if err != nil {
		text, _ := os.ReadFile(c.file("log"))
		return fmt.Errorf("etcd does not serve: %w: %s", err, clip(string(text), 1000))
	}
	return nil
}

// until waits for a condition.
func until(ctx context.Context, limit time.Duration, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for tick := time.NewTicker(50 * time.Millisecond); !is(); {
		select {
		case <-ctx.Done():
			tick.Stop()
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// close ends everything, and looks for leftovers.
func (c *cluster) close() error {
	var errs []error
	if c.etcd != nil {
		_ = c.stdin.Close()
		_ = c.etcd.Wait() // killed
	}
	if c.lan != nil {
		errs = append(errs, c.lan.End())
	}
	return errors.Join(append(errs, closeLabs(c.hosts...))...)
}

// Files of etcd, in its directory. The ones of etcd and of the hosts have certificate and key.
const (
	caFile   = "ca.pem"
	etcdFile = "etcd.pem"
	hostFile = "host.pem"
)

// writeCertificates makes an authority, and the certificates of etcd and of its clients.
func (c *cluster) writeCertificates() error {
	template := func(name string, serial int64) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	}
	root := template("etcd of the demo", 1)
	root.IsCA, root.BasicConstraintsValid, root.KeyUsage = true, true, x509.KeyUsageCertSign
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	errs := []error{c.writeCertificate(caFile, root, root, rootKey, rootKey)}
	for i, file := range []string{etcdFile, hostFile} {
		leaf := template(file, int64(2+i))
		leaf.ExtKeyUsage, leaf.IPAddresses = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, []net.IP{net.ParseIP(etcdAddress)}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		errs = append(errs, c.writeCertificate(file, leaf, root, key, rootKey))
	}
	return errors.Join(errs...)
}

// writeCertificate signs a certificate and writes it, with its key unless it is the authority's.
func (c *cluster) writeCertificate(file string, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if template != parent {
		if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
			return err
		}
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...)
	}
	return os.WriteFile(c.file(file), text, 0o600)
}
