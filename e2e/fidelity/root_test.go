package fidelity

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
)

// TestFidelityRootsDot: a client that sends a final dot in the server name reaches a server that ignores it, like
// OpenSSL. The policy decides by the name without the dot, also for Host and :authority.
func TestFidelityRootsDot(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	const spliced = "raw.example.org"
	if err := f.Net.ServeConns(spliced, 9443, f.openSSL(spliced)); err != nil {
		t.Fatal(err)
	}
	say := func(host, sni string, port string) string {
		out, _ := f.Sh(f.Box, `python3 -c '
import socket, ssl
s = ssl._create_unverified_context().wrap_socket(socket.create_connection(("`+host+`", `+port+`), 20), server_hostname="`+sni+`")
s.sendall(b"olleh\n")
print(s.recv(100))' 2>&1`)
		return out
	}
	for _, sni := range []string{spliced, spliced + "."} {
		if out := say(spliced, sni, "9443"); out != "b'hello\\n'\n" {
			t.Errorf("%s: %s", sni, out)
		}
	}
	if out := say(spliced, "evil.example.net.", "9443"); !strings.Contains(out, "ACCESS_DENIED") {
		t.Errorf("a name that is not allowed: %s", out)
	}
	if e := f.DenialOf(f.Box, policy.StageConn, "evil.example.net", name.ReasonNotAllowed); e.Port != 9443 {
		t.Errorf("decision %+v", e)
	}
	// The gateway's TLS cannot serve such a client: the log has the reason.
	if out := say(bothHost, bothHost+".", "443"); !strings.Contains(out, "ACCESS_DENIED") {
		t.Errorf("an intercepted host: %s", out)
	}
	if e := f.DenialOf(f.Box, policy.StageConn, bothHost, name.ReasonProtocol); !strings.Contains(e.Error, "ends in a dot") {
		t.Errorf("decision %+v", e)
	}
	for _, version := range []string{"--http1.1", "--http2"} {
		out := f.run("curl -sS -o /dev/null -w '%{http_code}' " + version + " -H 'Host: " + bothHost + ".' https://" + bothHost + "/none")
		if out != "404" {
			t.Errorf("%s: %s", version, out)
		}
	}
}

// openSSL returns a handler that serves a connection with openssl s_server, which reverses each line.
func (f *fidelity) openSSL(host string) func(net.Conn) {
	t := f.T
	t.Helper()
	cert, err := f.Net.Certificate(host)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	file := filepath.Join(t.TempDir(), "server.pem")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", file, "-rev")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	said := bufio.NewScanner(out)
	address := ""
	for address == "" {
		if !said.Scan() {
			t.Fatalf("openssl s_server does not listen: %v", said.Err())
		}
		_, address, _ = strings.Cut(said.Text(), "ACCEPT ")
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return func(c net.Conn) {
		defer c.Close()
		to, err := net.Dial("tcp", address)
		if err != nil {
			t.Error(err)
			return
		}
		defer to.Close()
		go func() { // it serves one connection at a time
			_, _ = io.Copy(to, c)
			to.Close()
		}()
		_, _ = io.Copy(c, to)
	}
}
