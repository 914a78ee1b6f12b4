package attack

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	clusterWeb = "web.default.svc.cluster.local" // 10.96.0.20 and fd00:96::20
	clusterDB  = "db.default.svc.cluster.local"  // 10.96.0.21
	kubeDNS    = "10.96.0.10"
)

// clusterWorld is a gateway with a cluster, whose services are in the namespace of the internet: each address accepts TCP on port
// 5432 and answers "cluster" before it echoes; 10.96.0.20 and fd00:96::20 also have the servers of the internet. 10.96.0.99 is an
// address of the gateway's host as well, with a server on port 5432.
type clusterWorld struct {
	*harness.World
	mu    sync.Mutex
	asked []string // of the cluster's DNS server
}

func newClusterWorld(t *testing.T) *clusterWorld {
	t.Helper()
	c := &clusterWorld{World: harness.NewCaptured(t, func(c *config.Config) {
		c.Network.Cluster = config.Cluster{Services: []string{"10.96.0.0/16", "fd00:96::/112"}, DNS: []string{kubeDNS}}
	})}
	// The servers of the internet have these names too, so that an answer from there would show.
	hosts := map[string][]string{clusterWeb: {"10.96.0.20", "fd00:96::20"}, clusterDB: {"10.96.0.21"}, "kube-dns.kube-system.svc.cluster.local": {kubeDNS},
		"outside.svc.cluster.local": {"10.97.0.20"}, "rebound.example.com": {"10.96.0.20"}}
	for host, addrs := range hosts {
		if err := c.Net.AddHost(host, addrs...); err != nil {
			t.Fatal(err)
		}
	}
	c.serveDNS(hosts)
	for _, at := range []string{"10.96.0.20", "10.96.0.21", "[fd00:96::20]", "10.97.0.20"} {
		c.echo(c.ListenBeside(at + ":5432"))
	}
	if out, err := c.Net.Gateway().Run(t.Context(), "ip", "address", "add", "10.96.0.99/32", "dev", "lo"); err != nil {
		t.Fatal(out, err)
	}
	ln, err := c.Net.Gateway().Listen("tcp", "0.0.0.0:5432")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	c.echo(ln)
	return c
}

// echo serves connections of a listener until it is closed.
func (c *clusterWorld) echo(ln net.Listener) {
	go func() {
		for conn, err := ln.Accept(); err == nil; conn, err = ln.Accept() {
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, "cluster")
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

// serveDNS serves the names of the cluster at its DNS server.
func (c *clusterWorld) serveDNS(hosts map[string][]string) {
	c.T.Helper()
	beside := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) { // other sockets are bound to this port of every address
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }), err)
	}}
	var pc net.PacketConn
	err := c.Net.Internet().Do(func() (err error) {
		pc, err = beside.ListenPacket(c.T.Context(), "udp4", kubeDNS+":53")
		return err
	})
	if err != nil {
		c.T.Fatal(err)
	}
	started := make(chan struct{})
	s := &mdns.Server{PacketConn: pc, NotifyStartedFunc: func() { close(started) }, Handler: mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
		m := new(mdns.Msg).SetReply(q)
		asked := strings.TrimSuffix(mdns.CanonicalName(q.Question[0].Name), ".")
		c.mu.Lock()
		c.asked = append(c.asked, asked)
		c.mu.Unlock()
		for _, a := range hosts[asked] {
			kind := "A"
			if strings.Contains(a, ":") {
				kind = "AAAA"
			}
			if rr, err := mdns.NewRR(q.Question[0].Name + " 5 IN " + kind + " " + a); err == nil && rr.Header().Rrtype == q.Question[0].Qtype {
				m.Answer = append(m.Answer, rr)
			}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = s.ActivateAndServe() }()
	<-started
	c.T.Cleanup(func() { _ = s.Shutdown() })
}

// lookups returns the names that the cluster's DNS server was asked for since the last call.
func (c *clusterWorld) lookups() (asked []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked, c.asked = c.asked, nil
	return asked
}

// answers returns whether a connection is answered by a server of the cluster.
func answers(conn net.Conn, err error) bool {
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(harness.Patience))
	_, _ = io.WriteString(conn, "\x00echo this") // begins no protocol that the gateway would wait for
	answer := make([]byte, len("cluster"))
	_, err = io.ReadFull(conn, answer)
	return err == nil && string(answer) == "cluster"
}

// proxied sends a request to the explicit proxy and returns whether the last answer is a success. A tunnel is opened before its destination is
// connected to.
func proxied(in *harness.Intruder, request string) bool {
	c, err := in.Connect(netip.MustParseAddrPort("10.200.0.1:3128"))
	if err != nil {
		return false
	}
	defer c.Close()
	answer, _ := harness.SendAndReadAll(c, request)
	return strings.Count(answer, "HTTP/1.1 200") == strings.Count(request, " HTTP/1.1\r\n")
}

// resolves returns whether the box's DNS server answers with a service address. A query without an answer, because of the rate limit or a
// change of the policy, is repeated.
func resolves(in *harness.Intruder, host string) bool {
	var m *mdns.Msg
	err := errors.New("not asked")
	for began := time.Now(); err != nil && time.Since(began) < harness.Patience; {
		err = in.InNetNS(func() (err error) {
			m, _, err = (&mdns.Client{Timeout: time.Second}).Exchange(new(mdns.Msg).SetQuestion(host+".", mdns.TypeA), in.DNS)
			return err
		})
	}
	return err == nil && slices.ContainsFunc(m.Answer, func(rr mdns.RR) bool {
		return strings.Contains(rr.String(), "\t10.96.") || strings.Contains(rr.String(), "\t10.97.")
	})
}

// probe is a way to the cluster.
type probe struct {
	what string
	try  func(in *harness.Intruder) bool // reports whether it leads there
	by   string                          // the entries that open it: "names", "services", "either" or "none"
}

// probes are all ways on which the gateway judges an address.
func probes() []probe {
	raw := func(at string) func(*harness.Intruder) bool {
		return func(in *harness.Intruder) bool { return answers(in.Connect(netip.MustParseAddrPort(at))) }
	}
	tls := func(at, host string) func(*harness.Intruder) bool {
		return func(in *harness.Intruder) bool { return in.Fetch(netip.MustParseAddrPort(at), host) == nil }
	}
	named := func(host string, port uint16) func(*harness.Intruder) bool {
		return func(in *harness.Intruder) bool {
			if !resolves(in, host) {
				return false
			}
			return answers(in.Connect(netip.AddrPortFrom(in.Resolve(host, "ip4"), port)))
		}
	}
	udp := func(at string) func(*harness.Intruder) bool {
		return func(in *harness.Intruder) bool {
			_ = in.InNetNS(func() error {
				c, err := net.Dial("udp", at)
				if err == nil {
					_, err = io.WriteString(c, "datagram")
					_ = c.Close()
				}
				return err
			})
			return false // see Untouched
		}
	}
	list := []probe{
		{"a lookup", func(in *harness.Intruder) bool { return resolves(in, clusterWeb) }, "either"},
		{"a lookup of an address outside", func(in *harness.Intruder) bool { return resolves(in, "outside.svc.cluster.local") }, "none"},
		{"rebinding", func(in *harness.Intruder) bool { return resolves(in, "rebound.example.com") }, "none"},
		{"TCP by name", named(clusterWeb, 5432), "either"},
		{"TLS by name", tls("10.96.0.20:443", clusterWeb), "either"},
		{"TLS by name over IPv6", tls("[fd00:96::20]:443", clusterWeb), "either"},
		{"TLS at the sink", tls("10.200.0.2:443", clusterWeb), "names"},
		{"TLS under a name on the internet", tls("10.96.0.20:443", "rebound.example.com"), "services"},
		{"an address", raw("10.96.0.21:5432"), "services"},
		{"an IPv6 address", raw("[fd00:96::20]:5432"), "services"},
		{"a translated address", raw("[64:ff9b::a60:15]:5432"), "none"},
		{"an address outside", raw("10.97.0.20:5432"), "none"},
		{"the host", raw("10.96.0.99:5432"), "none"},
		{"UDP", udp("10.96.0.22:5353"), "none"},
		{"UDP over IPv6", udp("[fd00:96::22]:5353"), "none"},
	}
	for host, by := range map[string]string{clusterWeb + ":80": "either", "10.96.0.20:80": "services", "[fd00:96::20]:80": "services", "rebound.example.com:80": "none",
		"10.97.0.20:80": "none", "10.96.0.99:5432": "none", "[::ffff:10.96.0.20]:80": "services"} {
		list = append(list,
			probe{"CONNECT " + host, func(in *harness.Intruder) bool {
				return proxied(in, fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\nGET / HTTP/1.1\r\nHost: %[1]s\r\nConnection: close\r\n\r\n", host, host))
			}, by},
			probe{"GET http://" + host, func(in *harness.Intruder) bool {
				return proxied(in, fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host, host))
			}, by})
	}
	return list
}

// Every way to the cluster is closed to boxes whose policies do not list it, and open as far as an entry of the policy leads.
func TestAttackCluster(t *testing.T) {
	t.Parallel()
	c := newClusterWorld(t)
	services := func(domains ...string) map[string]any {
		return map[string]any{"mode": "custom", "allowed_domains": domains, "allowed_cidrs": []string{policy.ClusterServices}}
	}
	for what, p := range map[string]struct {
		policy map[string]any
		open   []string // the entries that open it
	}{
		"names":          {harness.Custom(clusterWeb, "rebound.example.com"), []string{"names", "either"}},
		"services":       {services("rebound.example.com"), []string{"services", "either"}},
		"allow-all":      {map[string]any{"mode": "allow-all"}, nil},
		"every name":     {harness.Custom("*", "*.local"), nil},
		"its range":      {map[string]any{"mode": "custom", "allowed_cidrs": []string{"10.96.0.0/16", "fd00:96::/112"}, "dns": "resolve"}, nil},
		"another name":   {harness.Custom(clusterDB, "rebound.example.com"), nil},
		"deny-all":       {map[string]any{"mode": "deny-all"}, nil},
		"denied by name": {map[string]any{"mode": "custom", "allowed_domains": []string{clusterWeb}, "denied_domains": []string{"*.local"}}, nil},
	} {
		in := c.Intrude(c.Create(map[string]any{"network_policy": p.policy}))
		for _, way := range probes() {
			c.lookups()
			open, want := way.try(in), slices.Contains(p.open, way.by)
			if open != want {
				t.Errorf("%s: %s leads to the cluster: %v, want %v", what, way.what, open, want)
			}
			if asked := c.lookups(); len(p.open) == 0 && what != "another name" && len(asked) > 0 {
				t.Errorf("%s: %s asks the cluster's DNS server for %q", what, way.what, asked)
			}
		}
	}
	for _, a := range []string{"10.96.0.22", "fd00:96::22", "10.97.0.20"} {
		c.Untouched(netip.MustParseAddr(a))
	}
	if asked := c.Net.Queries(clusterWeb); len(asked) > 0 {
		t.Errorf("other servers were asked for a name of the cluster: %v", asked)
	}
}

// A denied part of the services stays closed, header rules apply to names of the cluster, and services whose addresses the host translates
// are reached. An entry that goes cuts its connections.
func TestAttackClusterUnderItsPolicy(t *testing.T) {
	t.Parallel()
	c := newClusterWorld(t)
	// As kube-proxy does for a service with a pod.
	c.NFT("add table ip kube-proxy")
	c.NFT("add chain ip kube-proxy out { type nat hook output priority -100; }")
	c.NFT("add chain ip kube-proxy pre { type nat hook prerouting priority -100; }")
	c.NFT("add table ip6 kube-proxy")
	c.NFT("add chain ip6 kube-proxy out { type nat hook output priority -100; }")
	c.NFT("add chain ip6 kube-proxy pre { type nat hook prerouting priority -100; }")
	for _, chain := range []string{"out", "pre"} {
		c.NFT("add rule ip kube-proxy " + chain + " ip daddr 10.96.0.30 tcp dport 7000 dnat to 10.96.0.20:5432")
		c.NFT("add rule ip6 kube-proxy " + chain + " ip6 daddr fd00:96::30 tcp dport 7000 dnat to [fd00:96::20]:5432")
	}
	box := c.Create(map[string]any{
		"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{clusterWeb}, "allowed_cidrs": []string{policy.ClusterServices}, "denied_cidrs": []string{"10.96.0.21"}},
		"attach_headers": map[string]any{clusterWeb: map[string]string{"X-Key": harness.Canary}},
	})
	in := c.Intrude(box)
	if out, _ := c.Sh(box, "curl -sS -m 60 -o /dev/null -w '%{http_code}' https://"+clusterWeb+"/keyed"); out != "200" {
		t.Errorf("a name of the cluster under a header rule: %s", out)
	}
	if got := in.Requests(clusterWeb, "/keyed"); len(got) != 1 || got[0].Header.Get("X-Key") != harness.Canary {
		t.Errorf("the service received %v", got)
	}
	for _, at := range []string{"10.96.0.30:7000", "[fd00:96::30]:7000"} {
		if !answers(in.Connect(netip.MustParseAddrPort(at))) {
			t.Errorf("the translated service %s is not reached", at)
		}
	}
	if answers(in.Connect(netip.MustParseAddrPort("10.96.0.21:5432"))) {
		t.Error("a denied service is reached")
	}
	c.Denial(box, policy.StageConn, netip.MustParseAddr("10.96.0.21"), 5432, name.ReasonDeniedCIDR)
	open := in.Dial(netip.MustParseAddrPort("10.96.0.20:5432"))
	_, _ = io.WriteString(open, "held")
	if _, err := io.ReadFull(open, make([]byte, len("clusterheld"))); err != nil {
		t.Fatal(err)
	}
	c.SetPolicy(box, harness.Custom("api.example.com"))
	if rest, _ := harness.SendAndReadAll(open, "more"); rest != "" {
		t.Errorf("the connection outlived its entry: %q", rest)
	}
	if answers(in.Connect(netip.MustParseAddrPort("10.96.0.20:5432"))) {
		t.Error("a service is reached after its entry has gone")
	}
}

// While policies change all the time, no box reaches a service that its policies never list, and none after the change that closes it.
func TestAttackClusterDuringChanges(t *testing.T) {
	t.Parallel()
	c := newClusterWorld(t)
	lists := map[string]any{"mode": "custom", "allowed_domains": []string{"api.example.com"}, "allowed_cidrs": []string{policy.ClusterServices}}
	changing, closed := c.Create(map[string]any{"network_policy": lists}), c.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	end := make(chan struct{})
	var tries sync.WaitGroup
	for _, at := range []string{"10.96.0.20:5432", "[fd00:96::20]:5432", "10.96.0.20:443"} {
		in := c.Intrude(closed)
		tries.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				conn, err := in.Connect(netip.MustParseAddrPort(at))
				if err == nil {
					_, _ = io.WriteString(conn, "x")
					_ = conn.Close()
				}
			}
		})
	}
	tries.Go(func() {
		in := c.Intrude(closed)
		for {
			select {
			case <-end:
				return
			default:
			}
			_ = in.InNetNS(func() error {
				u, err := net.Dial("udp", "10.96.0.20:5353")
				if err != nil {
					return err
				}
				_, err = io.WriteString(u, "x")
				return errors.Join(err, u.Close())
			})
			if resolves(in, clusterWeb) {
				t.Error("a name of the cluster is answered")
			}
		}
	})
	in, db := c.Intrude(changing), netip.MustParseAddrPort("10.96.0.21:5432")
	for i := range nightly.Size(12, 120) { // multiples of the number of policies
		c.SetPolicy(closed, []map[string]any{{"mode": "allow-all"}, harness.Custom("*"), {"mode": "deny-all"}, {"mode": "custom", "denied_domains": []string{"x.example"}},
			{"mode": "custom", "allowed_cidrs": []string{"10.0.0.0/8", "fd00::/8"}}, harness.Custom("api.example.com")}[i%6])
		c.SetPolicy(changing, harness.Custom("api.example.com"))
		if answers(in.Connect(db)) {
			t.Fatal("a service is reached after the change that closed it")
		}
		c.SetPolicy(changing, lists)
		if !answers(in.Connect(db)) {
			t.Fatal("a service is not reached after the change that opened it")
		}
	}
	close(end)
	tries.Wait()
	c.Untouched(netip.MustParseAddr("10.96.0.20"), netip.MustParseAddr("fd00:96::20"))
}
