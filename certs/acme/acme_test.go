package acme

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"

	"boxgate/certs/acme/pebbletest"
	"boxgate/internal/nightly"
	"boxgate/policy/name"
)

// payload returns the payload of a request to an issuer (RFC 7515, section 7.2.2).
func payload(body []byte) string {
	var jws struct{ Payload string }
	_ = json.Unmarshal(body, &jws)
	text, _ := base64.RawURLEncoding.DecodeString(jws.Payload)
	return string(text)
}

// Each challenge is sufficient on its own, with an issuer that refuses every third nonce. Certificates outlive the
// Manager.
func TestObtainsByEachChallenge(t *testing.T) {
	t.Parallel()
	f := newField(t)
	p := f.pebble(pebbletest.Options{Environment: []string{"PEBBLE_WFE_NONCEREJECT=30"}})
	for host, without := range map[string]func(*Config){
		"http.example.org": func(c *Config) { c.HTTPS = netip.AddrPort{} },
		"alpn.example.org": func(c *Config) { c.HTTP = netip.AddrPort{} },
	} {
		cfg := f.config(issuer(t, p))
		without(&cfg)
		f.served.Store(host, true)
		m := f.use(cfg)
		first := f.mustShow(host, p)
		if len(m.Expiries()) != 1 || m.Counts().Obtained != 1 {
			t.Errorf("%s: expire at %v, %+v", host, m.Expiries(), m.Counts())
		}
		m.Close()
		again := f.use(cfg)
		if leaf := f.mustShow(host, p); !leaf.Equal(first) || again.Counts() != (Counts{}) {
			t.Errorf("%s: another certificate after a restart, %+v", host, again.Counts())
		}
		private(t, cfg.Storage)
	}
}

// private requires that only their owner can read the files of a storage.
func private(t *testing.T, s certmagic.Storage) {
	t.Helper()
	dir, n := s.(*files).Path, 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		n++
		return err
	})
	if err != nil || n < 5 {
		t.Errorf("%s holds %d files, %v", dir, n, err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := NewFiles(dir); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("a storage that everybody may open: %v", err)
	}
}

// countingStorage counts the calls of a storage.
type countingStorage struct {
	certmagic.Storage
	asked atomic.Int64
}

func (s *countingStorage) Load(ctx context.Context, key string) ([]byte, error) {
	s.asked.Add(1)
	return s.Storage.Load(ctx, key)
}

func (s *countingStorage) Exists(ctx context.Context, key string) bool {
	s.asked.Add(1)
	return s.Storage.Exists(ctx, key)
}

// TestAttackRandomNames checks that requests of strangers for names that are not URLs, by the handshake of a browser,
// by that of a validating issuer and by HTTP-01, are refused before the storage or an issuer is used.
func TestAttackRandomNames(t *testing.T) {
	t.Parallel()
	f := newField(t)
	front := newFront(t, f.pebble(pebbletest.Options{}))
	cfg := f.config(front.Issuer)
	storage := &countingStorage{Storage: cfg.Storage}
	cfg.Storage = storage
	m := f.use(cfg)
	f.served.Store("app.example.org", true)
	f.visit("app.example.org")
	f.eventually("the storage is cleaned", func() bool { return storage.Storage.Exists(t.Context(), "last_clean.json") })
	asked, loads := front.asked.Load(), storage.asked.Load()
	if asked == 0 || loads == 0 {
		t.Fatalf("a URL: the issuer was asked %d times, the storage %d", asked, loads)
	}
	for _, host := range []string{
		"evil.example.org", "id-80.preview.example.com", "preview.example.com", "x.app.example.org", "example.org", "localhost", "..", "*.example.org", "APP.example.org.evil.net", "",
	} {
		for _, protocols := range [][]string{nil, {"h2"}, {Protocol}, {Protocol, "h2"}} {
			if leaf, _, err := f.shown(host, protocols...); err == nil {
				t.Errorf("%q by %v: the certificate of %v", host, protocols, leaf.DNSNames)
			} else if host == "evil.example.org" && !strings.Contains(err.Error(), "unrecognized name") {
				t.Errorf("%q by %v: %v", host, protocols, err)
			}
		}
		if body, ok := m.Challenge(host, "/.well-known/acme-challenge/x"); ok {
			t.Errorf("%q: %s", host, body)
		}
	}
	if front.asked.Load() != asked || storage.asked.Load() != loads {
		t.Errorf("random names: the issuer was asked %d times more, the storage %d", front.asked.Load()-asked, storage.asked.Load()-loads)
	}
}

// A host that cannot be validated is tried once, however often it is visited, and again only later.
func TestFailuresAreNotRepeated(t *testing.T) {
	t.Parallel()
	f := newField(t)
	front := newFront(t, f.pebble(pebbletest.Options{}))
	f.names.lost.Store("gone.example.org", true)
	f.served.Store("gone.example.org", true)
	f.served.Store("app.example.org", true)
	cfg := f.config(front.Issuer)
	cfg.retry = time.Hour
	m := f.use(cfg)
	if _, _, err := f.shown("gone.example.org"); err == nil {
		t.Fatal("a certificate for a name that does not exist")
	}
	orders, asked := front.orders.Load(), front.asked.Load()
	for range 50 {
		if _, _, err := f.shown("gone.example.org"); err == nil {
			t.Fatal("a certificate for a name that does not exist")
		}
	}
	if front.asked.Load() != asked || orders == 0 || orders > 3 || m.Failing() != 1 {
		t.Errorf("%d orders for one visit, %d requests for 50 more; %d fail", orders, front.asked.Load()-asked, m.Failing())
	}
	for i := 0; ; i++ { // another host each time: each is tried once an hour, and a busy machine may miss its validation
		host := fmt.Sprintf("app%d.example.org", i)
		f.served.Store(host, true)
		if _, _, err := f.shown(host); err == nil {
			break
		}
		f.served.Delete(host)
	}
	f.served.Delete("gone.example.org")
	if n := m.Failing(); n != 0 {
		t.Errorf("%d hosts fail, of none", n)
	}
}

// After an issuer reports a rate limit it is not asked again for that host, and the next one is.
func TestRateLimitsAreHeeded(t *testing.T) {
	t.Parallel()
	f := newField(t)
	one, two := f.pebble(pebbletest.Options{}), f.pebble(pebbletest.Options{})
	limited := newFront(t, one)
	limited.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/order-plz" {
			return false
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many certificates","status":429}`))
		return true
	})
	f.served.Store("app.example.org", true)
	cfg := f.config(limited.Issuer)
	m := f.use(cfg)
	for range 20 {
		if _, _, err := f.shown("app.example.org"); err == nil {
			t.Fatal("a certificate")
		}
	}
	if n := limited.orders.Load(); n != 1 {
		t.Errorf("%d orders of an issuer that answered 429", n)
	}
	m.Close()
	f.use(f.config(limited.Issuer, issuer(t, two)))
	f.mustShow("app.example.org", two)
}

// The first issuer is down: the second issues.
func TestFallsBackToTheNextIssuer(t *testing.T) {
	t.Parallel()
	f := newField(t)
	p := f.pebble(pebbletest.Options{})
	down := newFront(t, p)
	down.down(http.StatusServiceUnavailable)
	f.served.Store("app.example.org", true)
	f.use(f.config(down.Issuer, Issuer{Directory: "https://" + closedPort(t) + "/dir"}, issuer(t, p)))
	f.mustShow("app.example.org", p)
}

// closedPort returns an address on which no server listens.
func closedPort(t *testing.T) string {
	t.Helper()
	ln := listen(t)
	ln.Close()
	return ln.Addr().String()
}

// An issuer that requires external accounts gets the binding to one.
func TestExternalAccount(t *testing.T) {
	t.Parallel()
	f := newField(t)
	key := base64.RawURLEncoding.EncodeToString([]byte("a key of thirty-two bytes, 32 of"))
	p := f.pebble(pebbletest.Options{Accounts: map[string]string{"kid-1": key}})
	f.served.Store("app.example.org", true)
	bound, unbound := issuer(t, p), issuer(t, p)
	f.use(f.config(unbound))
	if _, _, err := f.shown("app.example.org"); err == nil {
		t.Fatal("a certificate without an account")
	}
	bound.KeyID, bound.HMAC = "kid-1", name.NewSecret(key)
	f.use(f.config(bound))
	f.mustShow("app.example.org", p)
}

// 200 hosts are visited for the first time at the same time, each of them twice: each gets one certificate.
func TestManyNamesAtOnce(t *testing.T) {
	t.Parallel()
	f := newField(t)
	front := newFront(t, f.pebble(pebbletest.Options{}))
	m := f.use(f.config(front.Issuer))
	hosts := nightly.Size(40, 200)
	var visitors sync.WaitGroup
	for i := range hosts {
		host := "host" + string(rune('a'+i/26)) + string(rune('a'+i%26)) + ".example.org"
		f.served.Store(host, true)
		for range 2 {
			visitors.Go(func() {
				if leaf, _ := f.visit(host); leaf.VerifyHostname(host) != nil {
					t.Errorf("%s is shown the certificate of %v", host, leaf.DNSNames)
				}
			})
		}
	}
	visitors.Wait()
	if n := m.Counts().Obtained; n != uint64(hosts) || len(m.Expiries()) != hosts {
		t.Errorf("%d certificates obtained and %d served for %d hosts, by %d orders", n, len(m.Expiries()), hosts, front.orders.Load())
	}
}
