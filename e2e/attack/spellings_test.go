package attack

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// refusedNames are texts that must never match a name below example.com, or any host.
var refusedNames = []string{
	"evil-example.com", "example.com", "example.com.evil.example.net", "notexample.com", "api.example.com.evil.example.net", "example.com.", "com", "example.net",
	"api.example.com\x00.evil.example.net", "api.example.com\x01", "api.example.com\x7f", "api.example.com/", "api.example.com/.evil.example.net",
	"api.example.com#.evil.example.net", "api.example.com?.evil.example.net", "api.example.com\\.evil.example.net", "user@api.example.com", "evil.example.net@api.example.com",
	"api.example.com@evil.example.net", "api..example.com", ".api.example.com", "api.example.com..", "*.example.com", "[api.example.com]", "api.example.com]", "[::1]api.example.com",
	"api.example.com%00", "api%2eexample.com", "api.example.com:80:80", "api.example.com:0", "api.example.com:65616", "api.example.com:+80", "api.example.com:080x",
	"evil.example.net,api.example.com", "evil.example.net api.example.com", "evil.example.net\tapi.example.com", "evil。example。net", "\u202eapi.example.com", "api.example.com\u2028",
	"xn--.example.com", "xn--a-.example.com", "xn--api.example.com", "\xff.example.com", strings.Repeat("a", 64) + ".example.com", strings.Repeat("a.", 126) + "example.com",
	"http://api.example.com", "//api.example.com", "",
}

// canonicalNames are other spellings of a name below example.com.
var canonicalNames = []string{"API.Example.COM", "api.example.com.", "api。example。com", "ａｐｉ.example.com", "api.example.com:80", "API.EXAMPLE.COM.:80"}

// Unusual spellings of a name are either that name or invalid.
func TestAttackSpellingsOfNames(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	if err := w.Net.AddHost("xn--bcher-kva.example.com", "198.51.100.81", "2001:db8:1::81"); err != nil {
		t.Fatal(err)
	}
	r := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("*.example.com")}))
	evil := [2]netip.Addr{w.V4("evil.example.net"), w.V6("evil.example.net")}
	for i, name := range refusedNames {
		to := evil[i%2]
		if got := plainAnswer(r, netip.AddrPortFrom(to, 80), name, "/spelling"); got != "400" && got != "403" && got != "421" {
			t.Errorf("Host %q: the box saw %s", name, got)
		}
		proxy := netip.MustParseAddrPort([]string{"10.200.0.1:3128", "[fd42:b0c5::1]:3128"}[i%2])
		c := r.MustDial("tcp", proxy)
		if resp, text := sendRequest(r, c, bufio.NewReader(c), "GET http://"+name+"/spelling HTTP/1.1\r\nHost: "+name+"\r\n\r\n"); resp == nil || resp.StatusCode/100 != 4 {
			t.Errorf("explicit proxy, %q: the box saw %v %s", name, resp, text)
		}
		host, _, withPort := strings.Cut(name, ":")
		if withPort { // the host without the port is allowed
			continue
		}
		c = r.MustDial("tcp", proxy)
		if resp, text := sendRequest(r, c, bufio.NewReader(c), "CONNECT "+host+":443 HTTP/1.1\r\nHost: "+host+":443\r\n\r\n"); resp == nil || resp.StatusCode/100 != 4 {
			t.Errorf("CONNECT %q: the box saw %v %s", host, resp, text)
		}
		if host != "" {
			c := r.MustDial("tcp", netip.AddrPortFrom(to, 443))
			answer := sendHello(c, host)
			if !strings.HasPrefix(answer, "\x15") && answer != harness.SawReset {
				t.Errorf("SNI %q: the box saw %q", host, answer)
			}
		}
	}
	if seen := w.Net.Received("", testnet.Path("/spelling")); len(seen) != 0 {
		t.Errorf("%d requests arrived, the first: %+v", len(seen), seen[0])
	}
	w.NothingReached("evil.example.net")
	w.NothingReached("api.example.com")
	for i, name := range append(canonicalNames, "bücher.example.com", "XN--BCHER-KVA.example.com") {
		host, path := "api.example.com", fmt.Sprintf("/canonical%d", i)
		if i >= len(canonicalNames) {
			host = "xn--bcher-kva.example.com"
		}
		if got := plainAnswer(r, netip.AddrPortFrom(evil[i%2], 80), name, path); got != "200" && got != "400" {
			t.Errorf("Host %q: the box saw %s", name, got)
		} else if got == "200" {
			reached(w, host, path)
		} else if !strings.ContainsFunc(name, func(c rune) bool { return c > 127 }) {
			t.Errorf("Host %q: refused", name)
		}
	}
	w.NothingReached("evil.example.net")
	w.DenialOf(r.Box, policy.StageHTTP, "evil-example.com", name.ReasonNotAllowed)
	w.DenialOf(r.Box, policy.StageConn, "evil-example.com", name.ReasonNotAllowed)
}

// sendHello sends a ClientHello with the given SNI unchanged, and returns the first bytes of the answer.
func sendHello(c net.Conn, sni string) string {
	placeholder := strings.Repeat("x", len(sni))
	if len(placeholder) > 63 {
		placeholder = strings.TrimSuffix(strings.Repeat("xxxxxxxxx.", len(sni)/10+1)[:len(sni)], ".")
		placeholder += strings.Repeat("x", len(sni)-len(placeholder))
	}
	rewritten := &rewriting{Conn: c, from: placeholder, to: sni}
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	_ = tls.Client(rewritten, &tls.Config{ServerName: placeholder, InsecureSkipVerify: true}).Handshake()
	if len(rewritten.answer) == 0 {
		return harness.Saw(rewritten.err)
	}
	return string(rewritten.answer)
}

// rewriting replaces a text in written data, and records the data read.
type rewriting struct {
	net.Conn
	from, to string
	answer   []byte
	err      error
}

func (c *rewriting) Write(p []byte) (int, error) {
	_, err := io.WriteString(c.Conn, strings.Replace(string(p), c.from, c.to, 1))
	return len(p), err
}

func (c *rewriting) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.answer = append(c.answer, p[:n]...)
	c.err = err
	return n, err
}
