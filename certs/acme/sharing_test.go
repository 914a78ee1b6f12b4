package acme

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/fleet/etcdtest"
)

// sharing has three hosts of a fleet, which are not started, and their issuer, which asks the host behind the forwarder.
type sharing struct {
	etcd   *etcdtest.Server
	hosts  []fleetHost
	front  *front
	behind *forwarder
}

func newSharing(t *testing.T, dns string) *sharing {
	t.Helper()
	s := &sharing{behind: newForwarder(t)}
	_, s.front = sharedIssuer(t, at(s.behind.Listener).Port(), dns)
	s.etcd, s.hosts = fleetOf(t, s.front.Issuer)
	writeRoots(t, s.front, s.hosts[0].Roots)
	return s
}

// start starts the hosts, which serve these public URLs; -1: all.
func (s *sharing) start(t *testing.T, owner int, served ...string) (running []*runningHost) {
	t.Helper()
	for n, h := range s.hosts {
		if owner < 0 || n == owner {
			h.Served = served
		}
		running = append(running, startHost(t, h))
	}
	s.behind.to.Store(&running[1].HTTP)
	return running
}

// TestFleetHasOneCertificate: three hosts obtain one certificate, by a challenge that another host than the obtaining one may be asked for;
// one of them renews it, and the others serve the new one.
func TestFleetHasOneCertificate(t *testing.T) {
	t.Parallel()
	s := newSharing(t, newNameserver(t).address)
	var now atomic.Bool
	s.front.recalls(&now, nil)
	running := s.start(t, -1, "one.example.org")
	first := certified(t, "one.example.org", running)
	if n := s.front.orders.Load(); n != 1 {
		t.Errorf("%d orders for one certificate of three hosts", n)
	}
	if first.SerialNumber.BitLen()%8 == 0 {
		t.Skip("pebble cannot renew a certificate with this serial number")
	}
	now.Store(true)
	second := certified(t, "one.example.org", running, first)
	if n := s.front.orders.Load(); n != 2 {
		t.Errorf("%d orders for a certificate and its renewal", n)
	}
	now.Store(false)
	running[0].kill()
	again := startHost(t, func() fleetHost { h := s.hosts[0]; h.Served = []string{"one.example.org"}; return h }())
	if c := certified(t, "one.example.org", append(running[1:], again), first); !c.Equal(second) || s.front.orders.Load() != 2 {
		t.Errorf("a host that starts again ordered another certificate: %d orders", s.front.orders.Load())
	}
}

// TestAnotherHostAnswersTheChallenge: only the first host has the public URL; the issuer asks the second one.
func TestAnotherHostAnswersTheChallenge(t *testing.T) {
	t.Parallel()
	s := newSharing(t, newNameserver(t).address)
	running := s.start(t, 0, "elsewhere.example.org")
	certified(t, "elsewhere.example.org", running[:1])
	if s.behind.asked.Load() == 0 {
		t.Error("the issuer did not ask the second host")
	}
	if running[1].leaf("elsewhere.example.org") != nil {
		t.Error("a host serves a public URL that it does not have")
	}
	resp, err := http.Get("http://" + running[1].HTTP + "/.well-known/acme-challenge/x")
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a challenge that is not pending: %d", resp.StatusCode)
	}
}

// TestHolderDiesWhileObtaining: a host is killed while its order is at the issuer; another one obtains the certificate.
func TestHolderDiesWhileObtaining(t *testing.T) {
	t.Parallel()
	s := newSharing(t, newNameserver(t).address)
	ordered, resume := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	s.front.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/finalize-order/") && once.CompareAndSwap(false, true) {
			close(ordered)
			<-resume
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	running := s.start(t, -1, "dies.example.org")
	go running[0].leaf("dies.example.org")
	select {
	case <-ordered:
	case <-time.After(patience):
		t.Fatal("nothing was ordered")
	}
	running[0].kill()
	close(resume)
	certified(t, "dies.example.org", running[1:])
	if n := s.front.orders.Load(); n != 2 {
		t.Errorf("%d orders; one by the host that died, and one after it", n)
	}
}

// TestServesWithoutEtcd: with etcd away, each host serves the certificate, also one that is started then; nothing is ordered.
func TestServesWithoutEtcd(t *testing.T) {
	t.Parallel()
	s := newSharing(t, newNameserver(t).address)
	hosts := []string{"served.example.org", "new.example.org"}
	running := s.start(t, -1, hosts...)
	first := certified(t, hosts[0], running)
	s.etcd.Kill()
	orders := s.front.orders.Load()
	running[2].kill()
	last := s.hosts[2]
	last.Served = hosts
	running[2] = startHost(t, last)
	if c := certified(t, hosts[0], running); !c.Equal(first) {
		t.Error("another certificate is served without etcd")
	}
	if slices.ContainsFunc(running, func(r *runningHost) bool { return r.leaf(hosts[1]) != nil }) || s.front.orders.Load() != orders {
		t.Errorf("a certificate was ordered without etcd: %d orders", s.front.orders.Load()-orders)
	}
	s.etcd.Restart()
	certified(t, hosts[1], running)
}

// TestFleetWildcard: the fleet has one wildcard, by one record of DNS.
func TestFleetWildcard(t *testing.T) {
	t.Parallel()
	dns := newKnot(t)
	s := newSharing(t, dns)
	for n := range s.hosts {
		s.hosts[n].DNS = dns
	}
	running := s.start(t, -1)
	if leaf := certified(t, "id-80.preview.example.com", running); leaf.DNSNames[0] != "*.preview.example.com" || s.front.orders.Load() != 1 {
		t.Errorf("the certificate of %v after %d orders", leaf.DNSNames, s.front.orders.Load())
	}
}
