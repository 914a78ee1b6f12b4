package export

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// patience is a timeout with a large margin for busy machines.
const patience = time.Minute

var quick = times{requestTimeout: patience, firstBackoff: 2 * time.Millisecond, maxBackoff: 10 * time.Millisecond, linger: time.Millisecond, stopTimeout: patience, warnInterval: time.Hour}

// request is a request that a collector received.
type request struct {
	path   string
	header http.Header
	body   []byte
	at     time.Time
}

// collector is a web server that records its requests.
type collector struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	requests []request
	answer   func(n int, w http.ResponseWriter, r *http.Request) // to the nth request, from 1
}

// newCollector starts a collector. It answers 200 unless answer is given.
func newCollector(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *collector {
	t.Helper()
	c := &collector{t: t, answer: answer}
	c.Server = httptest.NewUnstartedServer(c)
	c.Config.ErrorLog = zap.NewStdLog(zap.NewNop())
	c.StartTLS()
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	c.mu.Lock()
	c.requests = append(c.requests, request{r.URL.Path, r.Header.Clone(), body, time.Now()})
	n := len(c.requests)
	c.mu.Unlock()
	if c.answer != nil {
		c.answer(n, w, r)
	}
}

func (c *collector) received() []request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]request(nil), c.requests...)
}

// hangUp ends the connection without an answer.
func hangUp(w http.ResponseWriter) {
	if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
		conn.Close()
	}
}

func (c *collector) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.Certificate())
	return pool
}

// key is a signing key.
func key(letter string) string {
	return "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(letter, 32)))
}

// world is an exporter with a log of decisions in front of it.
type world struct {
	*Exporter
	t       *testing.T
	log     *audit.Log
	reply   *observer.ObservedLogs
	secrets sync.Map // by name
	closed  sync.Once
}

// newWorld makes an exporter to a collector. Its secrets are "key" and "token".
func newWorld(t *testing.T, c *collector, o Options, times times) *world {
	t.Helper()
	core, reply := observer.New(zap.DebugLevel)
	w := &world{t: t, reply: reply}
	w.secrets.Store("key", key("k"))
	w.secrets.Store("token", "Bearer of-the-collector")
	if o.URL == "" {
		o.URL = c.URL + "/hook"
	}
	if o.Roots == nil {
		o.Roots = c.roots()
	}
	o.Key, o.Log = "key", zap.New(core)
	o.Origin = func() Origin { return Origin{Host: "abc123", Name: "host-1", Run: "run-1", Version: "1.2.3"} }
	o.Secret = func(_ context.Context, label string) (name.Secret, error) {
		value, ok := w.secrets.Load(label)
		if !ok {
			return name.Secret{}, fmt.Errorf("secret %q: there is none", label)
		}
		return name.NewSecret(value.(string)), nil
	}
	w.Exporter = newExporter(o, times)
	w.log = audit.New(audit.Options{Exports: []audit.Export{{Lines: w.Lines()}}})
	t.Cleanup(w.close)
	return w
}

func (w *world) close() {
	w.closed.Do(func() {
		w.log.Flush()
		w.Close()
	})
}

// allowed is an event that is not coalesced with others.
func allowed(box string, n int) audit.Event {
	return audit.Event{
		Box: policy.BoxID(box), Stage: policy.StageHTTP, Protocol: policy.TCP, Name: "api.example.com", Port: 443, Method: "GET",
		Path: fmt.Sprintf("/%d", n), Verdict: policy.Allow, Action: audit.ActionIntercept, Reason: name.ReasonAllowedDomain, Status: 200,
	}
}

// record records n decisions of a box.
func (w *world) record(n int) {
	for i := range n {
		w.log.Record(allowed("box-1", i))
	}
}

// until waits for a condition.
func (w *world) until(what string, holds func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%s: it has not happened; the log says %s", what, w.texts())
		}
	}
}

// texts returns the whole log.
func (w *world) texts() string {
	var b strings.Builder
	for _, e := range w.reply.All() {
		fmt.Fprintln(&b, e.Level, e.Message, e.ContextMap())
	}
	return b.String()
}

// counts returns the metrics.
func (w *world) counts() string {
	return fmt.Sprintf("sent %d, full %d, refused %d, stopped %d", w.sent.Load(), w.lines.Lost(), w.refused.Load(), w.abandoned.Load())
}

// verified returns the decisions of a webhook whose signature the standard's own library accepts.
func verified(t *testing.T, r request, key string) decisions {
	t.Helper()
	hook, err := standardwebhooks.NewWebhook(key)
	if err == nil {
		err = hook.Verify(r.body, r.header)
	}
	var p payload
	if err = errors.Join(err, json.Unmarshal(r.body, &p)); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	if p.Type != "boxgate.decisions" || p.Timestamp.IsZero() || len(p.Data.Decisions) == 0 || !p.Timestamp.Equal(p.Data.Decisions[0].Time) {
		t.Errorf("the payload is %s", r.body)
	}
	return p.Data
}
