package attack

import (
	"context"
	"crypto/tls"
	"encoding/asn1"
	"encoding/pem"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// A client with a session of an intercepted host claims that it may send early data, and sends a request for that host
// in the first flight of a connection under the same name, and under another. The early data is rejected and no server
// gets the request. A session of one box does not work in another.
func TestAttackEarlyData(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	body := map[string]any{
		"network_policy": harness.Custom("api.example.com", "cdn.example.org"),
		"attach_headers": map[string]any{
			"api.example.com": map[string]string{"X-Key": harness.Canary}, "cdn.example.org": map[string]string{"X-Other": "other"},
		},
	}
	in := w.Intrude(w.Create(body))
	dir := t.TempDir()
	session, request := filepath.Join(dir, "session"), filepath.Join(dir, "request")
	if err := os.WriteFile(request, []byte("GET /early HTTP/1.1\r\nHost: api.example.com\r\n\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(in.Resolve("api.example.com", "ip4"), 443)
	first := openssl(in, to, "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n",
		"-servername", "api.example.com", "-sess_out", session)
	harness.Contains(t, first, "HTTP/1.1 200")
	original, err := os.ReadFile(session)
	if err != nil {
		t.Fatalf("%v: %s", err, harness.Tail(first, 500))
	}
	for _, name := range []string{"api.example.com", "cdn.example.org", "evil.example.net"} {
		if err := os.WriteFile(session, withEarlyData(t, original, name), 0o600); err != nil {
			t.Fatal(err)
		}
		out := openssl(in, to, "", "-servername", name, "-sess_in", session, "-early_data", request)
		if !strings.Contains(out, "Early data was rejected") { // otherwise "not sent" or "accepted"
			t.Errorf("%s: %s", name, harness.Tail(out, 1500))
		}
	}
	for _, host := range []string{"api.example.com", "cdn.example.org", "evil.example.net"} {
		if n := len(in.Requests(host, "/early")); n != 0 {
			t.Errorf("%s received %d early requests", host, n)
		}
	}
	w.NothingReached("evil.example.net")

	cache := &oneSession{}
	for i, box := range []*harness.Intruder{in, in, w.Intrude(w.Create(body))} {
		c := tls.Client(box.Dial(to), &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true, ClientSessionCache: cache})
		if _, err := get(c, "api.example.com", "/session"); err != nil {
			t.Fatal(err)
		}
		if resumed := c.ConnectionState().DidResume; resumed != (i == 1) {
			t.Errorf("connection %d: resumed %v", i, resumed)
		}
	}
}

// openssl runs `openssl s_client` in the box's network and returns its output.
func openssl(in *harness.Intruder, to netip.AddrPort, input string, args ...string) string {
	in.T.Helper()
	ctx, cancel := context.WithTimeout(in.T.Context(), harness.Patience)
	defer cancel()
	args = append([]string{"s_client", "-connect", to.String(), "-tls1_3"}, args...)
	cmd := exec.CommandContext(ctx, "openssl", args...)
	// The input stays open until the server has answered, because its end closes the connection.
	if input != "" {
		cmd.Args = append(cmd.Args, "-ign_eof")
	}
	cmd.Stdin = strings.NewReader(input)
	var out []byte
	_ = in.InNetNS(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	return string(out)
}

// withEarlyData changes a session of OpenSSL: it claims that the server accepts early data and has the given name.
func withEarlyData(t *testing.T, session []byte, name string) []byte {
	t.Helper()
	const tagHostname, tagMaxEarlyData = 6, 15
	block, _ := pem.Decode(session)
	if block == nil {
		t.Fatal("no session")
	}
	var whole asn1.RawValue
	if _, err := asn1.Unmarshal(block.Bytes, &whole); err != nil {
		t.Fatal(err)
	}
	var fields []asn1.RawValue
	for rest := whole.Bytes; len(rest) > 0; {
		var f asn1.RawValue
		var err error
		if rest, err = asn1.Unmarshal(rest, &f); err != nil {
			t.Fatal(err)
		}
		if f.Class != asn1.ClassContextSpecific || f.Tag != tagHostname && f.Tag != tagMaxEarlyData {
			fields = append(fields, f)
		}
	}
	set := func(tag int, value any) {
		inner, err := asn1.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		f := asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, IsCompound: true, Bytes: inner}
		at := slices.IndexFunc(fields, func(o asn1.RawValue) bool { return o.Class == asn1.ClassContextSpecific && o.Tag > tag })
		if at < 0 {
			at = len(fields)
		}
		fields = slices.Insert(fields, at, f)
	}
	set(tagHostname, []byte(name))
	set(tagMaxEarlyData, 16384)
	var der []byte
	for _, f := range fields {
		f.FullBytes = nil
		b, err := asn1.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		der = append(der, b...)
	}
	out, err := asn1.Marshal(asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: der})
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: out})
}
