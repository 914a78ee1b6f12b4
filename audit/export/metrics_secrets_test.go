package export

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/policy/name"
)

// TestMetricsGoToTheCollectorAlone: nothing is sent without verified certificate or without its headers, and no redirect is followed.
func TestMetricsGoToTheCollectorAlone(t *testing.T) {
	t.Parallel()
	secret := func(text string, err error) func(context.Context, string) (name.Secret, error) {
		return func(context.Context, string) (name.Secret, error) { return name.NewSecret(text), err }
	}
	for what, spoil := range map[string]func(*Metrics){
		"not trusted":    func(m *Metrics) { m.client = newClient(x509.NewCertPool()) },
		"no secret":      func(m *Metrics) { m.options.Secret = secret("", errors.New("there is none")) },
		"no field value": func(m *Metrics) { m.options.Secret = secret("of-the-collector\r\nX: y", nil) },
	} {
		c := newCollector(t, nil)
		m, _ := newMetrics(t, c, time.Minute)
		spoil(m)
		m.Close()
		if _, err := m.State(); err == nil || strings.Contains(err.Error(), "of-the-collector") || len(c.received()) != 0 {
			t.Errorf("%s: %v, %d requests", what, err, len(c.received()))
		}
	}
	for _, status := range []int{301, 302, 307, 308} {
		elsewhere := newCollector(t, nil)
		c := newCollector(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/v1/metrics", status)
		})
		m, _ := newMetrics(t, c, time.Minute)
		m.Close()
		if _, err := m.State(); err == nil || len(c.received()) != 1 || len(elsewhere.received()) != 0 {
			t.Errorf("%d: %v, %d requests elsewhere", status, err, len(elsewhere.received()))
		}
	}
}

// TestMetricsShowNoSecret: neither the log nor the status has the secret, whatever the collector answers, or how much.
func TestMetricsShowNoSecret(t *testing.T) {
	t.Parallel()
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = z.Write(make([]byte, 64<<20))
	_ = z.Close()
	for what, answer := range map[string]func(int, http.ResponseWriter, *http.Request){
		"reflected": func(_ int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Seen", r.Header.Get("Authorization"))
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(r.Header.Get("Authorization")))
		},
		"no HTTP": func(_ int, w http.ResponseWriter, r *http.Request) {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				fmt.Fprintf(conn, "%s is no status line\r\n\r\n", r.Header.Get("Authorization"))
				conn.Close()
			}
		},
		"a long header": func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("a", 2*maxHead))
		},
		"a bomb": func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write(bomb.Bytes())
		},
	} {
		c := newCollector(t, answer)
		m, _ := newMetrics(t, c, time.Minute)
		core, log := observer.New(zap.DebugLevel)
		m.report.log = zap.New(core)
		m.Close()
		_, err := m.State()
		if err == nil || len(c.received()) != 1 || log.Len() != 1 {
			t.Fatalf("%s: %v, %d requests, %d lines", what, err, len(c.received()), log.Len())
		}
		if text := fmt.Sprint(err, log.All()[0].Message, log.All()[0].ContextMap()); strings.Contains(text, "of-the-collector") {
			t.Errorf("%s: %s", what, text)
		}
	}
}

// TestTheEndOfMetricsIsBounded: a collector that hangs delays the end for one timeout. A request that the end cuts short is no failure.
func TestTheEndOfMetricsIsBounded(t *testing.T) {
	t.Parallel()
	release, arrived := make(chan struct{}), make(chan struct{}, 2)
	c := newCollector(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(release) })
	m, _ := newMetrics(t, c, time.Hour)
	m.times.stopTimeout = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		m.Run(ctx)
		if _, err := m.State(); err != nil || m.failed.Load() != 0 {
			t.Errorf("the end is a failure: %v", err)
		}
		m.Close()
		close(ended)
	}()
	<-arrived
	cancel()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
	if _, err := m.State(); err == nil || m.failed.Load() != 1 {
		t.Errorf("%v, %d failures", err, m.failed.Load())
	}
}

// TestNamesOfHostsMayBeAnything: metrics are exported although the name of the host is no valid text.
func TestNamesOfHostsMayBeAnything(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	m, _ := newMetrics(t, c, time.Minute)
	m.options.Origin = func() Origin { return Origin{Host: "5f2a1c", Name: "host\xff"} }
	m.Close()
	all := c.received()
	if len(all) != 1 {
		t.Fatalf("%d requests", len(all))
	}
	if resource, by := decodeMetrics(t, all[0]); resource["host.name"] != "host\ufffd" || len(by) == 0 {
		t.Errorf("%v", resource)
	}
}
