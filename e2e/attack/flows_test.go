package attack

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// cutWithin bounds the time from the answer of the PUT to the last data on a connection, without the scheduling delay
// of this process. In the gate it includes the delay of the gateway.
var cutWithin = nightly.Size(time.Second, 100*time.Millisecond)

// more is the time after that in which a connection that is still open would receive data.
const more = 400 * time.Millisecond

// graceOf returns a function that returns cutWithin plus twice the lag so far.
func graceOf(t *testing.T) func() time.Duration {
	lag := harness.Lag(t)
	return func() time.Duration { return cutWithin + 2*lag() }
}

// listenTo writes once to a pusher and then only listens, so that no packet of the box triggers a refusal.
func listenTo(r *harness.Raider, to netip.AddrPort) *harness.Chatter {
	r.T.Helper()
	c := &harness.Chatter{Conn: r.MustDial("udp", to)}
	if _, err := io.WriteString(c.Conn, "begin\n"); err != nil {
		r.T.Fatal(err)
	}
	go func() {
		for buf := make([]byte, 64); ; {
			if _, err := c.Conn.Read(buf); err != nil {
				return
			}
			c.Heard.Store(time.Now().UnixNano())
			c.Count.Add(1)
		}
	}()
	r.Until(fmt.Sprintf("udp from %v is heard", to), func() bool { return c.Count.Load() > 3 })
	return c
}

// push serves UDP on an address of the internet. Each client that wrote once is sent a datagram every millisecond.
func push(w *harness.World, at netip.AddrPort) {
	w.T.Helper()
	pc, err := w.Net.Internet().ListenPacket("udp", at.String())
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { pc.Close() })
	go func() {
		_, to, err := pc.ReadFrom(make([]byte, 64))
		pace := time.NewTicker(time.Millisecond)
		defer pace.Stop()
		for ; !errors.Is(err, net.ErrClosed); <-pace.C {
			_, err = pc.WriteTo([]byte("still here\n"), to)
		}
	}()
}

// All connections that only the old policy allowed are closed when the PUT of the new one has been answered: a tunnel
// through the proxy, and a connection and a UDP flow forwarded by the kernel. Connections that stay allowed lose no
// data.
func TestAttackFlowsOutliveThePolicy(t *testing.T) {
	t.Parallel()
	for _, tight := range []map[string]any{
		nil, // the same policy without the attacked hosts
		{"mode": "custom", "allowed_domains": []string{"kept.example.com"}, "allowed_cidrs": []string{"198.51.100.30/32", "2001:db8:1::30/128"}, "denied_cidrs": attackerNets},
	} {
		name := "no longer allowed"
		if tight != nil {
			name = "denied"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testFlowsEnd(t, tight)
		})
	}
}

func testFlowsEnd(t *testing.T, tight map[string]any) {
	w := harness.SharedCaptured(t)
	kept := map[string]any{"mode": "custom", "allowed_domains": []string{"kept.example.com"}, "allowed_cidrs": []string{"198.51.100.30/32", "2001:db8:1::30/128"}}
	if tight == nil {
		tight = kept
	}
	if err := w.Net.AddHost("kept.example.com", "198.51.100.31", "2001:db8:1::31"); err != nil {
		t.Fatal(err)
	}
	flows, stays := harness.AttackerAt(71), [2]netip.Addr{netip.MustParseAddr("198.51.100.30"), netip.MustParseAddr("2001:db8:1::30")}
	r := w.Raid(w.Create(map[string]any{"network_policy": map[string]any{
		"mode": "custom", "allowed_domains": []string{"kept.example.com", "evil.example.net"},
		"allowed_cidrs": []string{"198.51.100.30/32", "2001:db8:1::30/128", flows[0].String() + "/32", flows[1].String() + "/128"},
	}}))
	w.MustSh(r.Box, "getent ahosts kept.example.com; getent ahostsv4 evil.example.net; getent ahostsv6 evil.example.net")
	tunnels := [2]netip.Addr{w.V4("evil.example.net"), w.V6("evil.example.net")}
	keptTunnels := [2]netip.Addr{w.V4("kept.example.com"), w.V6("kept.example.com")}
	var servers []*echoServer
	received := func() (n int64) {
		for _, s := range servers {
			n += s.bytes.Load()
		}
		for _, a := range flows {
			n += int64(len(w.Net.Received(a.String(), testnet.Of(testnet.Datagram))))
		}
		return n
	}
	var doomed, silent []*harness.Chatter
	var transfers sync.WaitGroup
	begun, changed := make(chan struct{}, 4), make(chan struct{})
	for family := range 2 {
		tunnel, flow := echo(w, netip.AddrPortFrom(tunnels[family], 7777)), echo(w, netip.AddrPortFrom(flows[family], 7777))
		servers = append(servers, tunnel, flow)
		doomed = append(doomed, r.Chat("tcp", tunnel.at), r.Chat("tcp", flow.at),
			r.Chat("udp", netip.AddrPortFrom(flows[family], 4444)))
		push(w, netip.AddrPortFrom(flows[family], 7778))
		silent = append(silent, listenTo(r, netip.AddrPortFrom(flows[family], 7778)))
		for _, a := range []netip.Addr{stays[family], keptTunnels[family]} {
			c := r.MustDial("tcp", netip.AddrPortFrom(a, 4444))
			transfers.Go(func() { transfer(t, c, begun, changed) })
		}
	}
	for range 4 {
		<-begun
	}
	grace := graceOf(t)
	w.SetPolicy(r.Box, tight)
	answered := time.Now()
	close(changed)
	w.Until("what was under way has arrived", func() bool { return time.Since(answered) > grace() })
	before := received()
	for i, c := range doomed {
		if _, udp := c.Conn.(*net.UDPConn); !udp {
			select {
			case <-c.Ended:
			case <-time.After(harness.Patience):
				t.Errorf("flow %d to %v is still open", i, c.Conn.RemoteAddr())
			}
		}
	}
	// The UDP flows keep trying. Each attempt is refused and no answer arrives.
	w.Until("the box has tried again", func() bool { return time.Since(answered) > grace()+more })
	for i, c := range append(doomed, silent...) {
		if last := time.Unix(0, c.Heard.Load()); last.After(answered.Add(grace())) {
			t.Errorf("flow %d to %v was heard %v after the answer", i, c.Conn.RemoteAddr(), last.Sub(answered))
		}
	}
	w.AwaitCounted()
	if after := received(); after != before {
		t.Errorf("%d bytes or datagrams arrived %v after the PUT was answered, or later", after-before, grace())
	}
	transfers.Wait()
	w.Event(r.Box, func(e audit.Event) bool { return e.Reason == name.ReasonPolicyChanged && e.Addr == tunnels[0] })
	w.Event(r.Box, func(e audit.Event) bool { return e.Reason == name.ReasonPolicyChanged && e.Addr == tunnels[1] })
	for _, a := range flows {
		e := w.Event(r.Box, func(e audit.Event) bool { return e.Addr == a && e.Protocol == policy.UDP && e.Verdict == policy.Deny })
		if e.Reason != name.ReasonNotAllowed && e.Reason != name.ReasonDeniedCIDR {
			t.Errorf("decision: %s", audit.Line(e))
		}
		// The cut of the kernel's connection is reported when it ends, with its byte counts.
		w.Event(r.Box, func(e audit.Event) bool {
			return e.Addr == a && e.Protocol == policy.TCP && e.Stage == policy.StageKernel && e.BytesOut > 0
		})
	}
}

// echoServer echoes its input and counts it.
type echoServer struct {
	at    netip.AddrPort
	bytes atomic.Int64
}

// echo serves TCP on an address of the internet.
func echo(w *harness.World, at netip.AddrPort) *echoServer {
	w.T.Helper()
	ln, err := w.Net.Internet().Listen("tcp", at.String())
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { ln.Close() })
	s := &echoServer{at: at}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 4096)
				for {
					n, err := c.Read(buf)
					s.bytes.Add(int64(n))
					if err != nil {
						return
					}
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return s
}

// transfer sends half a megabyte to an echo server and compares the echo. It starts before the policy changes, and
// waits for the change halfway.
func transfer(t *testing.T, c net.Conn, begun chan<- struct{}, changed <-chan struct{}) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<15)
	go func() {
		for rest := want; len(rest) > 0; rest = rest[4096:] {
			if len(rest) == len(want)/2 {
				<-changed
			}
			if _, err := c.Write(rest[:4096]); err != nil {
				t.Errorf("sending to %v, which stays allowed: %v", c.RemoteAddr(), err)
				return
			}
		}
	}()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got[:1]); err != nil {
		t.Errorf("%v: %v", c.RemoteAddr(), err)
	}
	begun <- struct{}{}
	if n, err := io.ReadFull(c, got[1:]); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, which stays allowed, gave back %d of %d bytes: %v", c.RemoteAddr(), n+1, len(want), err)
	}
}

// A host gets a header rule while unread connections to it are open: the rule must apply to them too.
func TestAttackFlowsPastANewHeaderRule(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	for _, c := range []struct {
		name   string
		policy map[string]any
	}{
		{"forwarded by the kernel", map[string]any{"mode": "allow-all"}},
		{"spliced", harness.Custom("*.example.com")},
	} {
		r := w.Raid(w.Create(map[string]any{"network_policy": c.policy}))
		w.MustSh(r.Box, "getent ahosts api.example.com")
		for _, a := range []netip.Addr{w.V4("api.example.com"), w.V6("api.example.com")} {
			if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(r.Box, "config/attach-headers"), map[string]any{}, nil); err != nil {
				t.Fatal(err)
			}
			conn := tls.Client(r.MustDial("tcp", netip.AddrPortFrom(a, 443)), &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true})
			if err := conn.Handshake(); err != nil {
				t.Fatalf("%s, %v: %v", c.name, a, err)
			}
			if issuer := conn.ConnectionState().PeerCertificates[0].Issuer.CommonName; issuer != "Test Internet CA" {
				t.Fatalf("%s, %v: intercepted without a rule, by %s", c.name, a, issuer)
			}
			var datagrams []*harness.Chatter
			if c.policy["mode"] == "allow-all" {
				push(w, netip.AddrPortFrom(a, 7778))
				datagrams = append(datagrams, r.Chat("udp", netip.AddrPortFrom(a, 443)), listenTo(r, netip.AddrPortFrom(a, 7778)))
			}
			key := map[string]string{"X-Key": harness.TestSecret}
			rules := map[string]any{"api.example.com": key, "api.example.com:7778": key}
			if err := w.Client.Do(t.Context(), "PUT", api.BoxPath(r.Box, "config/attach-headers"), rules, nil); err != nil {
				t.Fatal(err)
			}
			answered, grace := time.Now(), graceOf(t)
			_ = conn.SetDeadline(answered.Add(harness.Patience))
			_, err := io.WriteString(conn, "GET /past HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
			if err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
			if got := harness.Saw(err); got != harness.SawReset && !errors.Is(err, io.EOF) {
				t.Errorf("%s, %v: the connection past the rule: %v", c.name, a, err)
			}
			for _, d := range datagrams {
				w.Until("time for more datagrams has passed", func() bool { return time.Since(answered) > grace()+more })
				if last := time.Unix(0, d.Heard.Load()); last.After(answered.Add(grace())) {
					t.Errorf("%s: UDP from %v was heard %v after the answer", c.name, d.Conn.RemoteAddr(), last.Sub(answered))
				}
			}
		}
	}
	if seen := w.Net.Received("api.example.com", testnet.Path("/past")); len(seen) != 0 {
		t.Errorf("the server received %+v", seen)
	}
}

// sse is an event stream with a listening client.
type sse struct {
	what  string
	heard atomic.Int64 // nanoseconds of the last event
}

// listen opens a stream of events at an address, under the name of www.example.com.
func listen(r *harness.Raider, to netip.Addr, secure bool) *sse {
	r.T.Helper()
	c := r.MustDial("tcp", netip.AddrPortFrom(to, map[bool]uint16{false: 80, true: 443}[secure]))
	if secure {
		c = tls.Client(c, &tls.Config{ServerName: "www.example.com", InsecureSkipVerify: true})
	}
	if _, err := io.WriteString(c, "GET /sse HTTP/1.1\r\nHost: www.example.com\r\n\r\n"); err != nil {
		r.T.Fatal(err)
	}
	s := &sse{what: fmt.Sprintf("%v, TLS %v", to, secure)}
	go func() {
		for in := bufio.NewReader(c); ; {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if strings.HasPrefix(line, "data:") {
				s.heard.Store(time.Now().UnixNano())
			}
		}
	}()
	r.Until(s.what+" is heard", func() bool { return s.heard.Load() > 0 })
	return s
}

// While an address is allowed, a box opens connections to it under another host's name. When only that name stays
// allowed, they must be cut. Connections that do belong to the name stay.
func TestAttackFlowsUnderABorrowedName(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	evil, www := [2]netip.Addr{w.V4("evil.example.net"), w.V6("evil.example.net")}, [2]netip.Addr{w.V4("www.example.com"), w.V6("www.example.com")}
	for label, loose := range map[string]map[string]any{
		"addresses": {"mode": "custom", "denied_domains": []string{"unrelated.example.org"},
			"allowed_cidrs": append([]string{www[0].String() + "/32", www[1].String() + "/128"}, attackerNets...)},
		"allow-all": {"mode": "allow-all"},
	} {
		t.Run(label, func(t *testing.T) {
			w := w.On(t)
			r := w.Raid(w.Create(map[string]any{
				"network_policy": loose, "attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.TestSecret}},
			}))
			w.MustSh(r.Box, "getent ahostsv4 www.example.com; getent ahostsv6 www.example.com")
			var borrowed, honest []*sse
			for family := range 2 {
				for _, secure := range []bool{true, false} {
					if s := listen(r, evil[family], secure); secure && label == "allow-all" {
						honest = append(honest, s) // the header rule makes names decide on 443: it went to the name's owner
					} else {
						borrowed = append(borrowed, s)
					}
					if secure || label != "allow-all" { // without them the kernel forwards plain HTTP
						honest = append(honest, listen(r, www[family], secure))
					}
				}
			}
			grace := graceOf(t)
			w.SetPolicy(r.Box, harness.Custom("www.example.com"))
			answered := time.Now()
			w.Until("time for more events has passed", func() bool { return time.Since(answered) > grace()+more })
			for _, s := range borrowed {
				if heard := time.Unix(0, s.heard.Load()); heard.After(answered.Add(grace())) {
					t.Errorf("%s: heard %v after the answer", s.what, heard.Sub(answered))
				}
			}
			for _, s := range honest {
				w.Until(s.what+", which leads to the name, goes on", func() bool { return time.Unix(0, s.heard.Load()).After(answered.Add(3 * cutWithin)) })
			}
			w.Event(r.Box, func(e audit.Event) bool { return e.Reason == name.ReasonPolicyChanged && e.Addr == evil[0] })
		})
	}
}
