package launcher

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"boxgate/launcher/launchertest"
	"boxgate/launcher/namespace"
	"boxgate/launcher/rootfs"
)

// Real clients accept the CA, over real TLS, next to the public roots.
func TestClientsInTheBoxTrustItsCA(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	ca, server := testChain(t, "shop.example")
	id := newBox(t, l, func(s *Spec) { s.CA = ca })
	if err := namespace.InNetNS(l.dirs.pin(id), func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}); err != nil {
		t.Fatal(err)
	}
	if r := rootSh(t, l, id, "echo 127.0.0.1 shop.example >> /etc/hosts"); r.exit != 0 {
		t.Fatalf("%+v", r)
	}
	want(t, run(t, l, id, ExecSpec{Args: []string{"sh", "-c", "cat > server.pem; echo hello > page"}, Stdin: bytes.NewReader(server)}), "")
	want(t, sh(t, l, id, `cat > server.py <<'.'
import http.server, ssl, socketserver
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); c.load_cert_chain("server.pem")
socketserver.ThreadingTCPServer.daemon_threads = True
s = socketserver.ThreadingTCPServer(("127.0.0.1", 443), http.server.SimpleHTTPRequestHandler)
s.socket = c.wrap_socket(s.socket, server_side=True)
open("up", "w").close()
s.serve_forever()
.
python3 server.py >log 2>&1 & until [ -e up ]; do sleep 0.01; done; echo up`), "up")
	for client, script := range map[string]string{
		"curl":                   "curl -sS https://shop.example/page",
		"curl, store only":       "env -i curl -sS https://shop.example/page",
		"python":                 `python3 -c 'import urllib.request as u; print(u.urlopen("https://shop.example/page").read().decode())'`,
		"python, store only":     `env -i python3 -c 'import urllib.request as u; print(u.urlopen("https://shop.example/page").read().decode())'`,
		"node":                   `node -e 'require("https").get("https://shop.example/page", r => r.pipe(process.stdout))'`,
		"openssl, by the bundle": `echo | openssl s_client -verify_return_error -connect shop.example:443 -servername shop.example 2>&1 | grep -q 'Verify return code: 0' && echo hello`,
		"openssl, by the hash":   `echo | env -u SSL_CERT_FILE openssl s_client -verify_return_error -no-CAfile -CApath /etc/ssl/certs -connect shop.example:443 -servername shop.example 2>&1 | grep -q 'Verify return code: 0' && echo hello`,
		"git":                    `git -c http.followRedirects=false ls-remote https://shop.example/x 2>&1 | grep -q 'not found' && echo hello`,
		"git, store only":        `env -i git ls-remote https://shop.example/x 2>&1 | grep -q 'not found' && echo hello`,
	} {
		t.Run(client, func(t *testing.T) { want(t, sh(t, l, id, script), "hello") })
	}
	public := sh(t, l, id, "grep -c BEGIN.CERTIFICATE $SSL_CERT_FILE")
	if len(strings.TrimSpace(public.out)) < 3 {
		t.Errorf("the bundle holds no public roots: %s certificates", public.out)
	}
	for _, name := range rootfs.TrustVariables {
		want(t, sh(t, l, id, "echo $"+name), rootfs.BundlePath)
	}
	// A box that rebuilds its store keeps its CA.
	if r := rootSh(t, l, id, "update-ca-certificates >/dev/null 2>&1; env -i curl -sS https://shop.example/page"); strings.TrimSpace(r.out) != "hello" {
		t.Errorf("after update-ca-certificates: %+v", r)
	}
}

func TestBoxWithoutCAHasPublicRoots(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, func(s *Spec) { s.CA = nil })
	r := sh(t, l, id, "grep -c BEGIN.CERTIFICATE $SSL_CERT_FILE; ls /etc/ssl/certs/boxgate* /usr/local/share/ca-certificates/boxgate.crt 2>/dev/null")
	if f := strings.Fields(r.out); len(f) != 1 || len(f[0]) < 3 {
		t.Errorf("%+v", r)
	}
}

// testChain returns a CA and a server's certificate with its key.
func testChain(t *testing.T, host string) (ca, server []byte) {
	t.Helper()
	caPEM, caKey := launchertest.Certificate(t, pkix.Name{CommonName: "Boxgate  Test CA ", Organization: []string{"Maple & Co"}}, nil, nil)
	block, _ := pem.Decode(caPEM)
	parent, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	leaf, key := launchertest.Certificate(t, pkix.Name{CommonName: host}, parent, caKey)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return caPEM, append(leaf, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...)
}
