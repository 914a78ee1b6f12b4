package acme

import (
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"boxgate/certs/acme/pebbletest"
	"boxgate/internal/nightly"
	"boxgate/policy/name"
)

// knotRoot is the directory into which `make nameserver` unpacks Knot DNS.
const knotRoot = "/var/lib/boxgate/knot"

// tsigKey signs the updates that the nameserver accepts.
var tsigKey = base64.StdEncoding.EncodeToString([]byte("thirty-two bytes that are secret"))

// newKnot runs a nameserver that accepts updates of one record of preview.example.com, and returns its address.
func newKnot(t *testing.T) string {
	t.Helper()
	nightly.Root(t)
	program := filepath.Join(knotRoot, "usr/sbin/knotd")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: run sudo make nameserver", err)
	}
	dir := t.TempDir()
	for zone, more := range map[string]string{"preview.example.com": "", "example.org": "app 60 A 127.0.0.1\n"} {
		text := "@ 60 SOA ns hostmaster 1 3600 600 86400 60\n@ 60 NS ns\nns 60 A 127.0.0.1\n" + more
		if err := os.WriteFile(filepath.Join(dir, zone), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	libraries, err := filepath.Glob(filepath.Join(knotRoot, "usr/lib/*-linux-gnu*"))
	if err != nil {
		t.Fatal(err)
	}
	for range 5 { // another program may take the port first
		address := freeAddress(t)
		config := filepath.Join(dir, "knot.conf")
		if err := os.WriteFile(config, []byte(knotConfig(dir, address)), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, "-c", config)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
		if run(t, cmd, func() bool { return answers(address) }) {
			return address
		}
	}
	t.Fatal("knotd does not run")
	return ""
}

func knotConfig(dir, address string) string {
	return fmt.Sprintf(`
server:
    listen: %[1]s
    rundir: %[2]s
database:
    storage: %[2]s
key:
  - id: boxgate
    algorithm: hmac-sha256
    secret: %[3]s
acl:
  - id: challenges
    key: boxgate
    action: update
    update-type: TXT
    update-owner: name
    update-owner-match: equal
    update-owner-name: _acme-challenge
template:
  - id: default
    storage: %[2]s
    file: %%s
zone:
  - domain: preview.example.com
    acl: challenges
  - domain: example.org
`, strings.Replace(address, ":", "@", 1), dir, tsigKey)
}

// freeAddress returns a free loopback address.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// run starts a program that runs until the test ends, and returns true when it is ready, false when it has exited.
func run(t *testing.T, cmd *exec.Cmd, ready func() bool) bool {
	t.Helper()
	var output buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("%s: %s", cmd.Path, output.text())
		}
	})
	for !ready() {
		select {
		case <-exited:
			t.Logf("%s: %s", cmd.Path, output.text())
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
	return true
}

func answers(address string) bool {
	m := new(dns.Msg).SetQuestion("preview.example.com.", dns.TypeSOA)
	in, _, err := (&dns.Client{Net: "tcp"}).Exchange(m, address)
	return err == nil && len(in.Answer) == 1
}

// One certificate serves all names below the domain, by a record that is written with TSIG and removed afterwards. A
// custom domain of a URL has its own certificate in addition.
func TestWildcardByDNS01(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.names.address = newKnot(t)
	front := newFront(t, f.pebble(pebbletest.Options{}))
	cfg := f.config(front.Issuer)
	cfg.DNS01 = &DNS01{Server: f.names.address, KeyName: "boxgate", KeyAlgorithm: "hmac-sha256", Key: name.NewSecret(tsigKey)}
	f.served.Store("app.example.org", true)
	m := f.use(cfg)
	for _, host := range []string{"id-80.preview.example.com", "nobody.preview.example.com"} {
		if leaf, _ := f.visit(host); leaf.DNSNames[0] != "*.preview.example.com" || leaf.VerifyHostname(host) != nil {
			t.Errorf("%s is shown the certificate of %v", host, leaf.DNSNames)
		}
	}
	if leaf, _ := f.visit("app.example.org"); leaf.VerifyHostname("app.example.org") != nil {
		t.Errorf("a domain of its own is shown the certificate of %v", leaf.DNSNames)
	}
	asked := front.asked.Load()
	for _, host := range []string{"preview.example.com", "a.b.preview.example.com", "www.example.org"} {
		if leaf, _, err := f.shown(host); err == nil {
			t.Errorf("%s is shown the certificate of %v", host, leaf.DNSNames)
		}
	}
	if m.Counts().Obtained != 2 || front.asked.Load() != asked {
		t.Errorf("%+v; names that are not below the domain cost the issuer %d requests", m.Counts(), front.asked.Load()-asked)
	}
	query := new(dns.Msg).SetQuestion("_acme-challenge.preview.example.com.", dns.TypeTXT)
	if in, _, err := (&dns.Client{Net: "tcp"}).Exchange(query, f.names.address); err != nil || len(in.Answer) > 0 {
		t.Errorf("the record of the challenge is still there: %v, %v", in, err)
	}
}

// A nameserver that refuses the signature does not change its zone, so the issuer does not validate the domain.
func TestWrongTSIGKey(t *testing.T) {
	t.Parallel()
	f := newField(t)
	f.names.address = newKnot(t)
	cfg := f.config(issuer(t, f.pebble(pebbletest.Options{})))
	wrong := base64.StdEncoding.EncodeToString([]byte("thirty-two bytes that are public"))
	cfg.DNS01 = &DNS01{Server: f.names.address, KeyName: "boxgate", KeyAlgorithm: "hmac-sha256", Key: name.NewSecret(wrong)}
	cfg.retry = time.Hour
	m := f.use(cfg)
	f.eventually("the wildcard fails", func() bool { return m.Failing() == 1 })
	if leaf, _, err := f.shown("id-80.preview.example.com"); err == nil {
		t.Errorf("the certificate of %v", leaf.DNSNames)
	}
}
