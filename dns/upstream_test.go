package dns

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"
)

// realUpstream is a DNS server on loopback, UDP and TCP on one port, that answers from a zone.
type realUpstream struct {
	zone     *zone
	addr     string
	mu       sync.Mutex
	received []received
	change   func(network string, m *mdns.Msg) // changes an answer before it is sent; may be nil
}

type received struct {
	network string
	port    string
	msg     *mdns.Msg
}

func newRealUpstream(t *testing.T, z *zone, change func(network string, m *mdns.Msg)) *realUpstream {
	t.Helper()
	u := &realUpstream{zone: z, change: change}
	ln, pc := listenBoth(t)
	u.addr = ln.Addr().String()
	serve(t, &mdns.Server{PacketConn: pc, Handler: u})
	serve(t, &mdns.Server{Listener: ln, Handler: u})
	return u
}

func listenBoth(t *testing.T) (net.Listener, net.PacketConn) {
	t.Helper()
	for range 20 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if pc, err := net.ListenPacket("udp", ln.Addr().String()); err == nil {
			return ln, pc
		}
		ln.Close()
	}
	t.Fatal("no port is free for both UDP and TCP")
	return nil, nil
}

func serve(t *testing.T, s *mdns.Server) {
	t.Helper()
	started, done := make(chan struct{}), make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	go func() { defer close(done); s.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { s.Shutdown(); <-done })
}

func (u *realUpstream) ServeDNS(w mdns.ResponseWriter, q *mdns.Msg) {
	network := w.RemoteAddr().Network()
	_, port, _ := net.SplitHostPort(w.RemoteAddr().String())
	u.mu.Lock()
	u.received = append(u.received, received{network, port, q.Copy()})
	u.mu.Unlock()
	m, err := u.zone.exchange(context.Background(), q.Question[0].Name, q.Question[0].Qtype)
	if err != nil {
		m = new(mdns.Msg).SetRcode(q, mdns.RcodeServerFailure)
	}
	m.Id, m.Question = q.Id, q.Question
	if u.change != nil {
		u.change(network, m)
	}
	w.WriteMsg(m)
}

func (u *realUpstream) queries() []received {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.received)
}

func newTestForwarder(t *testing.T, dial Dial, roots *x509.CertPool, upstreams ...string) *forwarder {
	t.Helper()
	f, err := newForwarder(Config{Upstreams: upstreams, Dial: dial, Roots: roots, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestForwarderAsksOverUDPUnpredictably(t *testing.T) {
	t.Parallel()
	u := newRealUpstream(t, newZone(t, "abcdefghijklmnopqrstuvwxyz.example.com. 60 IN A "+goodV4), nil)
	f := newTestForwarder(t, nil, nil, u.addr)
	ids, names, ports := map[uint16]bool{}, map[string]bool{}, map[string]bool{}
	for range 8 {
		m, err := f.exchange(t.Context(), "abcdefghijklmnopqrstuvwxyz.example.com.", mdns.TypeA)
		if err != nil || !slices.Equal(addresses(m), []string{goodV4}) {
			t.Fatalf("got %v, %v", m, err)
		}
	}
	for _, r := range u.queries() {
		opt := r.msg.IsEdns0()
		if r.network != "udp" || opt == nil || opt.Do() || len(opt.Option) > 0 || !r.msg.RecursionDesired {
			t.Errorf("upstream got over %s\n%v", r.network, r.msg)
		}
		ids[r.msg.Id], names[r.msg.Question[0].Name], ports[r.port] = true, true, true
	}
	if len(ids) < 7 || len(names) != 8 || len(ports) < 4 {
		t.Errorf("of 8 queries %d IDs, %d spellings and %d ports differ", len(ids), len(names), len(ports))
	}
}

func TestTruncatedAnswerIsAskedForOverTCP(t *testing.T) {
	t.Parallel()
	u := newRealUpstream(t, newZone(t, "a.example.com. 60 IN A "+goodV4, "a.example.com. 60 IN A "+goodV4b), func(network string, m *mdns.Msg) {
		if network == "udp" {
			m.Truncated, m.Answer = true, m.Answer[:1]
		}
	})
	m, err := newTestForwarder(t, nil, nil, u.addr).exchange(t.Context(), "a.example.com.", mdns.TypeA)
	if err != nil || len(m.Answer) != 2 {
		t.Fatalf("got %v, %v", m, err)
	}
	if q := u.queries(); len(q) != 2 || q[1].network != "tcp" {
		t.Errorf("upstream got %v", q)
	}
}

func TestServerThatFoldsCaseIsAskedOverTCP(t *testing.T) {
	t.Parallel()
	u := newRealUpstream(t, newZone(t, "folded.example.com. 60 IN A "+goodV4), func(_ string, m *mdns.Msg) {
		m.Question[0].Name = strings.ToLower(m.Question[0].Name)
	})
	m, err := newTestForwarder(t, nil, nil, u.addr).exchange(t.Context(), "folded.example.com.", mdns.TypeA)
	if err != nil || len(m.Answer) != 1 {
		t.Fatalf("got %v, %v", m, err)
	}
}

func TestForgedDatagramsAreIgnored(t *testing.T) {
	t.Parallel()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	go func() {
		buf := make([]byte, 4096)
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		q := new(mdns.Msg)
		q.Unpack(buf[:n])
		send := func(id uint16, a string, response bool) {
			m := new(mdns.Msg).SetReply(q)
			m.Id, m.Response, m.Answer = id, response, []mdns.RR{mustRR("a.example.com. 60 IN A " + a)}
			wire, _ := m.Pack()
			pc.WriteTo(wire, from)
		}
		pc.WriteTo([]byte("junk"), from)
		send(q.Id+1, "6.6.6.6", true)
		send(q.Id, "6.6.6.6", false)
		send(q.Id, goodV4, true)
	}()
	m, err := newTestForwarder(t, nil, nil, pc.LocalAddr().String()).exchange(t.Context(), "a.example.com.", mdns.TypeA)
	if err != nil || !slices.Equal(addresses(m), []string{goodV4}) {
		t.Fatalf("got %v, %v", m, err)
	}
}

func TestAnswersToOtherQuestionsAreNotBelieved(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(network string, m *mdns.Msg){
		"another name": func(_ string, m *mdns.Msg) {
			m.Question = []mdns.Question{{Name: "b.example.com.", Qtype: mdns.TypeA, Qclass: mdns.ClassINET}}
		},
		"another type": func(_ string, m *mdns.Msg) {
			m.Question = []mdns.Question{{Name: m.Question[0].Name, Qtype: mdns.TypeTXT, Qclass: mdns.ClassINET}}
		},
		"no question": func(_ string, m *mdns.Msg) { m.Question = nil },
		"another ID": func(network string, m *mdns.Msg) {
			if m.Truncated = network == "udp"; network == "tcp" {
				m.Id++
			}
		},
		"cut TCP": func(_ string, m *mdns.Msg) { m.Truncated = true },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			u := newRealUpstream(t, newZone(t, "a.example.com. 60 IN A "+goodV4), change)
			if m, err := newTestForwarder(t, nil, nil, u.addr).exchange(t.Context(), "a.example.com.", mdns.TypeA); err == nil {
				t.Errorf("believed\n%v", m)
			}
		})
	}
}

func TestFailoverFromAServerThatRefuses(t *testing.T) {
	t.Parallel()
	bad, good := newRealUpstream(t, newZone(t), nil), newRealUpstream(t, newZone(t, "a.example.com. 60 IN A "+goodV4), nil)
	bad.zone.fail(errDown) // answers SERVFAIL
	f := newTestForwarder(t, nil, nil, bad.addr, good.addr)
	if m, err := f.exchange(t.Context(), "a.example.com.", mdns.TypeA); err != nil || len(m.Answer) != 1 {
		t.Fatalf("got %v, %v", m, err)
	}
	good.zone.fail(errDown)
	_, err := f.exchange(t.Context(), "a.example.com.", mdns.TypeA)
	if rc, ok := errors.AsType[rcodeError](err); !ok || int(rc) != mdns.RcodeServerFailure {
		t.Errorf("got %v", err)
	}
	if n := len(bad.queries()); n != 2 {
		t.Errorf("a server that answers was asked %d times for two questions", n)
	}
}

func TestFailoverFromAServerThatIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Int64
		dial := func(_ context.Context, network, address string) (net.Conn, error) {
			client, server := net.Pipe()
			if address == "192.0.2.1:53" {
				silent.Add(1)
				return client, nil
			}
			go answerOnce(server)
			return client, nil
		}
		f := newTestForwarder(t, dial, nil, "192.0.2.1", "192.0.2.2")
		exchange := func() time.Duration {
			start := time.Now()
			if m, err := f.exchange(t.Context(), "a.example.com.", mdns.TypeA); err != nil || len(m.Answer) != 1 {
				t.Fatalf("got %v, %v", m, err)
			}
			return time.Since(start)
		}
		if took := exchange(); took != tryTimeout {
			t.Errorf("failover took %v", took)
		}
		if took := exchange(); took != 0 || silent.Load() != 1 {
			t.Errorf("the silent server was asked %d times", silent.Load())
		}
		time.Sleep(holdDown)
		if exchange(); silent.Load() != 2 {
			t.Error("the silent server was never tried again")
		}
	})
}

// answerOnce answers one datagram on a pipe.
func answerOnce(conn net.Conn) {
	defer conn.Close()
	buf := make([]byte, 4096)
	n, _ := conn.Read(buf)
	q := new(mdns.Msg)
	if q.Unpack(buf[:n]) != nil {
		return
	}
	m := new(mdns.Msg).SetReply(q)
	m.Answer = []mdns.RR{mustRR("a.example.com. 60 IN A " + goodV4)}
	wire, _ := m.Pack()
	conn.Write(wire)
}

func TestAllServersSilentEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dial := func(context.Context, string, string) (net.Conn, error) { c, _ := net.Pipe(); return c, nil }
		f := newTestForwarder(t, dial, nil, "192.0.2.1", "192.0.2.2", "192.0.2.3")
		b := newBench(t, domains("a.example.com"), newZone(t))
		b.cache.upstream = f
		start := time.Now()
		m := b.ask(t, "a.example.com", mdns.TypeA)
		if took := time.Since(start); m.Rcode != mdns.RcodeServerFailure || ede(m) != int(mdns.ExtendedErrorCodeNetworkError) || took > lookupTimeout {
			t.Errorf("after %v got\n%v", took, m)
		}
	})
}

func TestUpstreamOverTLS(t *testing.T) {
	t.Parallel()
	cert, roots := selfSigned(t)
	z := newZone(t, "a.example.com. 60 IN A "+goodV4)
	var conns atomic.Int64
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &realUpstream{zone: z}
	tlsListener := tls.NewListener(countingListener{ln, &conns}, &tls.Config{Certificates: []tls.Certificate{cert}})
	serve(t, &mdns.Server{Listener: tlsListener, Handler: u})
	f := newTestForwarder(t, nil, roots, "tls://"+ln.Addr().String())
	for range 3 {
		if m, err := f.exchange(t.Context(), "a.example.com.", mdns.TypeA); err != nil || len(m.Answer) != 1 {
			t.Fatalf("got %v, %v", m, err)
		}
	}
	if conns.Load() != 1 {
		t.Errorf("%d connections for three questions", conns.Load())
	}
	for what, f := range map[string]*forwarder{
		"a certificate of nobody": newTestForwarder(t, nil, x509.NewCertPool(), "tls://"+ln.Addr().String()),
		"another server's name":   newTestForwarder(t, nil, roots, "tls://"+ln.Addr().String()+"#other.example"),
	} {
		if m, err := f.exchange(t.Context(), "a.example.com.", mdns.TypeA); err == nil {
			t.Errorf("%s was believed: %v", what, m)
		}
	}
	if n := len(u.queries()); n != 3 {
		t.Errorf("the server got %d questions", n)
	}
}

type countingListener struct {
	net.Listener
	n *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

func TestUpstreamAddresses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"1.1.1.1": "1.1.1.1:53", "1.1.1.1:5353": "1.1.1.1:5353", "2606:4700::1111": "[2606:4700::1111]:53", "[::1]:54": "[::1]:54",
		"tls://9.9.9.9": "9.9.9.9:853", "tls://dns.quad9.net:8853": "dns.quad9.net:8853", "tls://9.9.9.9#dns.quad9.net": "9.9.9.9:853",
		"": "", "tls://": "", "1.1.1.1:0": "", "1.1.1.1:99999": "", "https://1.1.1.1/dns-query": "", "1.1.1.1#name": "", ":53": "",
	} {
		u, err := newUpstream(in, nil, nil)
		if (err == nil) != (want != "") || err == nil && u.addr != want {
			t.Errorf("%q: %+v, %v; want %q", in, u, err, want)
		}
	}
	u, _ := newUpstream("tls://9.9.9.9#dns.quad9.net", nil, nil)
	if u.tls.ServerName != "dns.quad9.net" || u.tls.InsecureSkipVerify {
		t.Errorf("server name %q", u.tls.ServerName)
	}
}

func TestUpstreamsFromResolvConf(t *testing.T) {
	t.Parallel()
	got, err := UpstreamsFromResolvConf(strings.NewReader("search lan\nnameserver 192.0.2.1\n# no\nnameserver 2001:db8::1\n"))
	if want := []string{"192.0.2.1:53", "[2001:db8::1]:53"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := UpstreamsFromResolvConf(strings.NewReader("search lan\n")); err == nil {
		t.Errorf("got %v", got)
	}
}
