package attack

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy/name"
)

// rude are servers that end a connection where the system's error message reveals most: it names both ends.
var rude = map[uint16]struct {
	end       func(net.Conn)
	protocols []string
	reason    name.Reason
	says      string // part of the answer to the box
}{
	9441: {afterRead(testnet.Reset), nil, name.ReasonUpstreamTLS, "connection reset"},
	9442: {afterRead(testnet.Reset), []string{"http/1.1"}, name.ReasonUpstreamHTTP, "connection reset"},
	9443: {afterRead(testnet.Reset), []string{"h2"}, name.ReasonUpstreamHTTP, ""},
	9444: {func(c net.Conn) { _ = c.Close() }, nil, name.ReasonUpstreamTLS, ""},
	9445: {afterRead(func(c net.Conn) { _, _ = c.Write([]byte("SSH-2.0-x\r\n")); _ = c.Close() }), nil, name.ReasonUpstreamTLS, "does not speak TLS"},
	9446: {afterRead(func(c net.Conn) { _, _ = c.Write([]byte("SSH-2.0-x\r\n\r\n")); _ = c.Close() }), []string{"http/1.1"}, name.ReasonUpstreamHTTP, "malformed"},
}

func afterRead(end func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		end(c)
	}
}

// TestAttackErrorsShowNothingOfTheHost makes connections to servers fail in every way. The log has the system's error.
// The box learns the kind of the error, but no address or port of the host.
func TestAttackErrorsShowNothingOfTheHost(t *testing.T) {
	t.Parallel()
	const host, closed = "rude.example.com", 9440
	w := harness.Shared(t)
	key, rules := map[string]string{"X-Key": harness.Canary}, map[string]any{"bad-cert.example.com": map[string]string{"X-Key": harness.Canary}}
	if err := w.Net.AddHost(host, "198.51.100.91", "2001:db8:1::91"); err != nil {
		t.Fatal(err)
	}
	for port, r := range rude {
		if err := w.Net.ServeConns(host, port, r.end, r.protocols...); err != nil {
			t.Fatal(err)
		}
		rules[fmt.Sprintf("%s:%d", host, port)] = key
	}
	if err := w.Net.ServeConns(host, 9447, afterRead(testnet.Reset)); err != nil { // for plain HTTP
		t.Fatal(err)
	}
	rules[fmt.Sprintf("%s:%d", host, closed)] = key
	box := w.Create(map[string]any{"network_policy": harness.Custom("*.example.com"), "attach_headers": rules})

	v4, v6 := w.Net.GatewayAddrs()
	check := func(what, url string, reason name.Reason, says string) {
		t.Helper()
		out, code := w.Sh(box, "curl -sS --max-time 60 "+what+" -w ' %{http_code}' "+url)
		if code != 0 || !strings.HasSuffix(out, " 502") || !strings.Contains(out, `"`+string(reason)+`"`) || !strings.Contains(out, says) {
			t.Errorf("curl %s %s: %d %s", what, url, code, out)
		}
		for _, told := range []string{v4.String(), v6.String(), "->", "tcp ", "198.51.100.", "2001:db8:"} {
			if strings.Contains(out, told) {
				t.Errorf("curl %s %s: the box reads %q in %s", what, url, told, out)
			}
		}
	}
	for _, family := range []string{"-4", "-6"} {
		for _, version := range []string{"--http1.1", "--http2"} {
			for port, r := range rude {
				check(family+" "+version, fmt.Sprintf("https://%s:%d/", host, port), r.reason, r.says)
			}
			check(family+" "+version, fmt.Sprintf("https://%s:%d/", host, closed), name.ReasonUnreachable, "connection refused")
			check(family+" "+version, "https://bad-cert.example.com/", name.ReasonUpstreamTLS, "unknown authority")
		}
		check(family, fmt.Sprintf("http://%s:9447/", host), name.ReasonUpstreamHTTP, "connection reset")
	}
	check("-x http://10.200.0.1:3128", fmt.Sprintf("http://%s:9447/", host), name.ReasonUpstreamHTTP, "connection reset")
	check("-x http://10.200.0.1:3128", fmt.Sprintf("http://%s:9439/", host), name.ReasonUnreachable, "connection refused")

	for _, own := range []string{v4.String(), "[" + v6.String() + "]"} { // for the operator of the host
		w.Event(box, func(e audit.Event) bool {
			return e.Port == 9442 && strings.Contains(e.Error, own+":") && strings.Contains(e.Error, "->")
		})
	}
}

// TestAttackDenialsShowNoProtectedRange: a name resolves to an address of the host, or to a private one known to the
// host's DNS. The box learns that it is protected, but neither the address nor its range.
func TestAttackDenialsShowNoProtectedRange(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	v4, v6 := w.Net.GatewayAddrs()
	if err := w.Net.AddHost("inside.example.com", "10.11.12.13", "fd99::13"); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.SetRecords("host.example.com", "host.example.com. 60 IN A "+v4.String(), "host.example.com. 60 IN AAAA "+v6.String()); err != nil {
		t.Fatal(err)
	}
	box := w.Create(map[string]any{"network_policy": harness.Custom("*.example.com"), "attach_headers": map[string]any{
		"host.example.com": map[string]string{"X-Key": harness.Canary}, "inside.example.com": map[string]string{"X-Key": harness.Canary},
	}})
	r := w.Raid(box)
	for label, addrs := range map[string][]netip.Addr{"host.example.com": {v4, v6}, "inside.example.com": w.Net.Addrs("inside.example.com")} {
		var told []string
		for _, line := range []string{
			"-x http://10.200.0.1:3128 http://" + label + "/",
			"--resolve " + label + ":80:198.51.100.10 http://" + label + "/",
			"--resolve " + label + ":443:198.51.100.10 https://" + label + "/",
			"--http1.1 --resolve " + label + ":443:[2001:db8:1::10] https://" + label + "/",
		} {
			out, _ := w.Sh(box, "curl -sS --max-time 60 "+line)
			if !strings.Contains(out, `"protected_range"`) {
				t.Errorf("curl %s: %s", line, out)
			}
			told = append(told, out)
		}
		for _, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA, mdns.TypeHTTPS, mdns.TypeANY} {
			told = append(told, ask(r, "udp", gatewayDNS, label, qtype).String())
		}
		for _, out := range told {
			for _, secret := range []string{addrs[0].String(), addrs[1].String(), "10.0.0.0/8", "fc00::/7", "host or boxes"} {
				if strings.Contains(out, secret) {
					t.Errorf("%s: the box reads %q in %s", label, secret, out)
				}
			}
		}
		w.Event(box, func(e audit.Event) bool {
			return e.Name == label && e.Reason == name.ReasonProtectedRange && e.Rule != "" && (e.Addr == addrs[0] || e.Addr == addrs[1])
		})
	}
}
