package acme

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"

	"boxgate/certs/acme/pebbletest"
)

// renewalInfo is the path under which pebble suggests renewal times (RFC 9773).
const renewalInfo = "/renewalInfo/"

// recalls makes the front, once now is set, demand the renewal of the first certificate, and of no other one. other may
// answer the remaining requests.
func (f *front) recalls(now *atomic.Bool, other func(http.ResponseWriter, *http.Request) bool) {
	var first atomic.Pointer[string]
	f.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, renewalInfo) {
			return other != nil && now.Load() && other(w, r)
		}
		first.CompareAndSwap(nil, &r.URL.Path)
		start := time.Now().Add(24 * time.Hour)
		if now.Load() && *first.Load() == r.URL.Path {
			start = time.Now().Add(-24 * time.Hour)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Retry-After", "1")
		_, _ = fmt.Fprintf(w, `{"suggestedWindow":{"start":%q,"end":%q}}`, start.Format(time.RFC3339), start.Add(time.Hour).Format(time.RFC3339))
		return true
	})
}

// renewable returns a host and its first certificate, which pebble can renew: pebble does not find the order of a
// replaced certificate whose serial number begins with a zero byte in DER, which happens for one in 512.
func (f *field) renewable() (host string, first *x509.Certificate) {
	f.Helper()
	for i := 0; ; i++ {
		host = fmt.Sprintf("renewed-%d-%d.example.org", i, at(f.https).Port())
		f.served.Store(host, true)
		if first, _ = f.visit(host); first.SerialNumber.BitLen()%8 != 0 {
			return host, first
		}
		f.served.Delete(host)
	}
}

// An issuer can demand the replacement of a certificate (ARI), and learns which one the new one replaces.
func TestRenewsWhenTheIssuerAsks(t *testing.T) {
	t.Parallel()
	f := newField(t)
	p := f.pebble(pebbletest.Options{})
	front := newFront(t, p)
	var now atomic.Bool
	front.recalls(&now, nil)
	cfg := f.config(front.Issuer)
	cfg.check = 100 * time.Millisecond
	m := f.use(cfg)
	host, first := f.renewable()
	before := m.Counts().Obtained
	now.Store(true)
	f.eventually("another certificate", func() bool { return !f.mustShow(host, p).Equal(first) })
	if front.replaced.Load() == 0 || m.Counts().Obtained != before+1 {
		t.Errorf("%d orders say what they replace; %+v", front.replaced.Load(), m.Counts())
	}
}

// Without such advice a certificate is renewed when a third of its lifetime is left.
func TestRenewsNearExpiry(t *testing.T) {
	t.Parallel()
	f := newField(t)
	p := f.pebble(pebbletest.Options{Validity: 8 * time.Second})
	front := newFront(t, p)
	front.answers(func(w http.ResponseWriter, r *http.Request) bool { // the directory of an issuer without ARI
		if r.URL.Path != "/dir" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"newNonce":"https://%[1]s/nonce-plz","newAccount":"https://%[1]s/sign-me-up","newOrder":"https://%[1]s/order-plz"}`, r.Host)
		return true
	})
	cfg := f.config(front.Issuer)
	cfg.check = 100 * time.Millisecond
	f.use(cfg)
	host, first := f.renewable()
	f.eventually("another certificate", func() bool {
		leaf, _ := f.visit(host)
		return !leaf.Equal(first)
	})
}

// If the only issuer is down when a certificate should be renewed, the existing one is served. If there is a second
// issuer, it renews the certificate.
func TestIssuerIsDownAtRenewal(t *testing.T) {
	t.Parallel()
	f := newField(t)
	p, second := f.pebble(pebbletest.Options{}), f.pebble(pebbletest.Options{})
	down := func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	for name, others := range map[string][]Issuer{"alone": nil, "both": {issuer(t, second)}} {
		// A name unique to this run: certmagic remembers failed renewals for a minute, process-wide.
		host := fmt.Sprintf("%s-%d.example.org", name, at(f.https).Port())
		front := newFront(t, p)
		var now atomic.Bool
		front.recalls(&now, down)
		cfg := f.config(append([]Issuer{front.Issuer}, others...)...)
		cfg.check = 100 * time.Millisecond
		f.served.Store(host, true)
		m := f.use(cfg)
		first := f.mustShow(host, p)
		now.Store(true)
		if others != nil {
			f.eventually("a certificate of the second issuer", func() bool { leaf, _ := f.visit(host); return !leaf.Equal(first) })
			f.mustShow(host, second)
			continue
		}
		f.eventually("the renewal fails", func() bool { return m.Counts().Failed > 0 })
		if leaf := f.mustShow(host, p); !leaf.Equal(first) || m.Failing() != 0 {
			t.Errorf("served is %v, failing are %d", leaf.SerialNumber, m.Failing())
		}
	}
}

// responder answers OCSP requests about the certificates of a pebble.
type responder struct {
	of atomic.Pointer[pebbletest.Pebble]
}

func (r *responder) answer(t *testing.T, w http.ResponseWriter, req *http.Request) {
	p := r.of.Load()
	issuer, err := x509.ParseCertificate(block(t, p.Management(t, "/intermediates/0")))
	if err != nil {
		t.Error(err)
		return
	}
	body, _ := io.ReadAll(req.Body)
	asked, err := ocsp.ParseRequest(body)
	if err != nil {
		t.Error(err)
		return
	}
	key, err := x509.ParsePKCS1PrivateKey(block(t, p.Management(t, "/intermediate-keys/0")))
	if err != nil {
		t.Error(err)
		return
	}
	response, err := ocsp.CreateResponse(issuer, issuer, ocsp.Response{
		Status: ocsp.Good, SerialNumber: asked.SerialNumber, ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(24 * time.Hour),
	}, key)
	if err != nil {
		t.Error(err)
	}
	_, _ = w.Write(response)
}

func block(t *testing.T, text []byte) []byte {
	t.Helper()
	b, _ := pem.Decode(text)
	if b == nil {
		t.Fatalf("no PEM: %s", text)
	}
	return b.Bytes
}

// The response of the certificate's OCSP responder is stapled to it.
func TestStaplesOCSP(t *testing.T) {
	t.Parallel()
	f := newField(t)
	var r responder
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.answer(t, w, req) }))
	t.Cleanup(server.Close)
	p := f.pebble(pebbletest.Options{OCSP: server.URL})
	r.of.Store(p)
	f.served.Store("app.example.org", true)
	f.use(f.config(issuer(t, p)))
	leaf, state := f.visit("app.example.org")
	response, err := ocsp.ParseResponseForCert(state.OCSPResponse, leaf, state.PeerCertificates[1])
	if err != nil || response.Status != ocsp.Good {
		t.Errorf("%+v, %v", response, err)
	}
}

// An issuer that does not answer does not keep the gateway from stopping, and no work continues afterwards. This test
// is not parallel, because no other test may run goroutines at the same time.
func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	f := newField(t)
	front := newFront(t, f.pebble(pebbletest.Options{}))
	begun := make(chan struct{}, 1)
	front.answers(func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case begun <- struct{}{}:
		default:
		}
		<-r.Context().Done()
		return true
	})
	f.served.Store("app.example.org", true)
	m := f.use(f.config(front.Issuer))
	visited := make(chan error)
	go func() {
		_, _, err := f.shown("app.example.org")
		visited <- err
	}()
	<-begun
	m.Close()
	if err := <-visited; err == nil {
		t.Error("the visitor got a certificate")
	}
	if _, err := m.request("app.example.org"); err == nil {
		t.Error("a certificate is obtained after the end")
	}
	f.eventually("no goroutine is left but the rate limiter of the process", func() bool {
		stacks := make([]byte, 1<<20)
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			ours := strings.Contains(stack, "caddyserver/certmagic") || strings.Contains(stack, "acme.(*Manager)")
			if ours && !strings.Contains(stack, "RingBufferRateLimiter") {
				return false
			}
		}
		return true
	})
}
