package export

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestWebhooksAreSigned checks that the standard's own library verifies each batch with any of the signing keys and
// with no other, that header, time and ID are signed too, and that the decisions are complete.
func TestWebhooksAreSigned(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	w := newWorld(t, c, Options{Kind: Webhook, Headers: map[string]string{"X-Team": "token"}}, quick)
	w.secrets.Store("key", key("o")+" "+key("n"))
	w.log.Record(audit.Event{Box: "box-1", Stage: policy.StageConn, Name: "denied.example.com", Port: 443, Reason: name.ReasonNotAllowed, Action: audit.ActionRefuse})
	w.close()
	got := c.received()
	if len(got) != 1 {
		t.Fatalf("%d requests arrived: %s", len(got), w.texts())
	}
	for _, k := range []string{key("o"), key("n")} {
		d := verified(t, got[0], k)
		if d.Host != "abc123" || d.HostName != "host-1" || d.Run != "run-1" || d.Version != "1.2.3" || len(d.Decisions) != 1 {
			t.Errorf("the data is %+v", d)
		}
		if e := d.Decisions[0]; e.Seq != 1 || e.Box != "box-1" || e.Name != "denied.example.com" || e.Verdict != policy.Deny || e.Reason != name.ReasonNotAllowed {
			t.Errorf("the decision is %+v", e)
		}
	}
	if h := got[0].header; h.Get("Content-Type") != "application/json" || h.Get("X-Team") != "Bearer of-the-collector" {
		t.Errorf("the headers are %v", h)
	}
	for what, change := range map[string]func(*request){
		"another key":  func(*request) {},
		"another ID":   func(r *request) { r.header.Set("Webhook-Id", r.header.Get("Webhook-Id")+"0") },
		"another time": func(r *request) { r.header.Set("Webhook-Timestamp", fmt.Sprint(time.Now().Unix()+30)) },
		"another body": func(r *request) { r.body = append(r.body, ' ') },
		"no signature": func(r *request) { r.header.Del("Webhook-Signature") },
		"another scheme": func(r *request) {
			r.header.Set("Webhook-Signature", strings.ReplaceAll(r.header.Get("Webhook-Signature"), "v1,", "v2,"))
		},
	} {
		r, k := got[0], key("n")
		r.header = r.header.Clone()
		if change(&r); what == "another key" {
			k = key("x")
		}
		if hook, err := standardwebhooks.NewWebhook(k); err != nil || hook.Verify(r.body, r.header) == nil {
			t.Errorf("%s: the signature is right", what)
		}
	}
}

// TestNothingIsLostWhileACollectorIsDown checks that after hang-ups, overload and failures the collector has
// everything, in order and once, and that each batch kept its ID.
func TestNothingIsLostWhileACollectorIsDown(t *testing.T) {
	t.Parallel()
	c := newCollector(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		switch {
		case n%6 == 0 || n > 40:
		case n%3 == 0:
			w.WriteHeader(http.StatusInternalServerError)
		case n%2 == 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			hangUp(w)
		}
	})
	w := newWorld(t, c, Options{Kind: Webhook}, quick)
	const all = 3000
	w.record(all)
	w.until("everything is sent", func() bool { return w.sent.Load() == all })
	w.close()
	if got := w.counts(); got != fmt.Sprintf("sent %d, full 0, refused 0, stopped 0", all) || w.failed.Load() == 0 {
		t.Errorf("%s, failed %d", got, w.failed.Load())
	}
	bodies, next := map[string]string{}, uint64(1)
	for _, r := range c.received() {
		d := verified(t, r, key("k"))
		if len(d.Decisions) > batchEvents {
			t.Errorf("a batch has %d decisions", len(d.Decisions))
		}
		id := r.header.Get("Webhook-Id")
		if before, again := bodies[id]; again {
			if before != string(r.body) {
				t.Errorf("%s came with different bodies", id)
			}
			continue
		}
		bodies[id] = string(r.body)
		for _, e := range d.Decisions {
			if e.Seq != next {
				t.Fatalf("decision %d follows %d", e.Seq, next-1)
			}
			next++
		}
	}
	if next != all+1 {
		t.Errorf("the last decision is %d", next-1)
	}
	if text := w.texts(); strings.Count(text, "cannot be exported") != 1 || strings.Count(text, "exported again") != 1 {
		t.Errorf("the log says %s", text)
	}
}

// TestAnOutageCountsAsNoError checks that a receiver that was down for long and then fails once is retried.
func TestAnOutageCountsAsNoError(t *testing.T) {
	t.Parallel()
	c := newCollector(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		switch {
		case n <= webhookAttempts+1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case n == webhookAttempts+2:
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	w := newWorld(t, c, Options{Kind: Webhook}, quick)
	w.record(5)
	w.until("everything is sent", func() bool { return w.sent.Load() == 5 })
	w.close()
	if got := w.counts(); got != "sent 5, full 0, refused 0, stopped 0" {
		t.Error(got)
	}
}

// TestACollectorSaysWhenToComeBack checks that Retry-After is respected, as seconds and as a date.
func TestACollectorSaysWhenToComeBack(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{OTLP, Webhook} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			comesBack(t, kind)
		})
	}
	for text, most := range map[string]time.Duration{"": 0, "-1": 0, "soon": 0, "0": 0, "86400": maxRetryAfter, "99999999999999999999": 0} {
		if d := retryAfter(http.Header{"Retry-After": {text}}); d != most {
			t.Errorf("%q is %v", text, d)
		}
	}
}

// comesBack fails the test if an exporter of a kind retries earlier than requested.
func comesBack(t *testing.T, kind Kind) {
	t.Helper()
	c := newCollector(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		switch n {
		case 1:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		case 2: // a date has whole seconds
			w.Header().Set("Retry-After", time.Now().Add(2*time.Second).UTC().Format(http.TimeFormat))
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	w := newWorld(t, c, Options{Kind: kind}, quick)
	w.record(1)
	w.until("it is sent", func() bool { return w.sent.Load() == 1 })
	got := c.received()
	if len(got) != 3 || got[1].at.Sub(got[0].at) < time.Second || got[2].at.Sub(got[1].at) < time.Second {
		t.Errorf("requests came at %v", got)
	}
}

// TestAnswers checks which answers are retried and counted.
func TestAnswers(t *testing.T) {
	t.Parallel()
	partial := func(text string) func(int, http.ResponseWriter, *http.Request) {
		return func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(text))
		}
	}
	status := func(codes ...int) func(int, http.ResponseWriter, *http.Request) {
		return func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			if r.URL.Path != "/elsewhere" {
				w.WriteHeader(codes[min(n, len(codes))-1])
			}
		}
	}
	for name, c := range map[string]struct {
		kind     Kind
		answer   func(int, http.ResponseWriter, *http.Request)
		requests int
		counts   string
	}{
		"OTLP, 202":             {OTLP, status(202), 1, "sent 3, full 0, refused 0, stopped 0"},
		"OTLP, 400":             {OTLP, status(400), 1, "sent 0, full 0, refused 3, stopped 0"},
		"OTLP, 413":             {OTLP, status(413), 1, "sent 0, full 0, refused 3, stopped 0"},
		"OTLP, 500":             {OTLP, status(500), 1, "sent 0, full 0, refused 3, stopped 0"},
		"OTLP, 307":             {OTLP, status(307), 1, "sent 0, full 0, refused 3, stopped 0"},
		"OTLP, overloaded":      {OTLP, status(429, 502, 503, 504, 200), 5, "sent 3, full 0, refused 0, stopped 0"},
		"OTLP, some rejected":   {OTLP, partial(`{"partialSuccess":{"rejectedLogRecords":"2","errorMessage":"too old"}}`), 1, "sent 1, full 0, refused 2, stopped 0"},
		"OTLP, one rejected":    {OTLP, partial(`{"partialSuccess":{"rejectedLogRecords":1}}`), 1, "sent 2, full 0, refused 1, stopped 0"},
		"OTLP, a warning":       {OTLP, partial(`{"partialSuccess":{"errorMessage":"slow down"}}`), 1, "sent 3, full 0, refused 0, stopped 0"},
		"OTLP, too many":        {OTLP, partial(`{"partialSuccess":{"rejectedLogRecords":"99"}}`), 1, "sent 0, full 0, refused 3, stopped 0"},
		"OTLP, nonsense":        {OTLP, partial(`{"partialSuccess":{"rejectedLogRecords":"-1"`), 1, "sent 3, full 0, refused 0, stopped 0"},
		"webhook, 204":          {Webhook, status(204), 1, "sent 3, full 0, refused 0, stopped 0"},
		"webhook, 410":          {Webhook, status(410), 1, "sent 0, full 0, refused 3, stopped 0"},
		"webhook, 413":          {Webhook, status(413), 1, "sent 0, full 0, refused 3, stopped 0"},
		"webhook, 302":          {Webhook, status(302), webhookAttempts, "sent 0, full 0, refused 3, stopped 0"},
		"webhook, 500":          {Webhook, status(500), webhookAttempts, "sent 0, full 0, refused 3, stopped 0"},
		"webhook, 401 at first": {Webhook, status(401, 401, 204), 3, "sent 3, full 0, refused 0, stopped 0"},
		"webhook, overloaded":   {Webhook, status(429, 502, 503, 504, 503, 503, 503, 503, 503, 503, 503, 503, 200), 13, "sent 3, full 0, refused 0, stopped 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newCollector(t, c.answer)
			w := newWorld(t, server, Options{Kind: c.kind}, quick)
			batch := make([]byte, 0, 4096)
			for i := range 3 {
				batch = append(batch, line(allowed("box-1", i))...)
			}
			w.deliver(batch)
			if got := w.counts(); got != c.counts {
				t.Errorf("%s, want %s", got, c.counts)
			}
			if got := server.received(); len(got) != c.requests || got[len(got)-1].path != "/hook" {
				t.Errorf("%d requests, want %d", len(got), c.requests)
			}
		})
	}
}

// TestAHangingCollectorHoldsNobodyUp checks that decisions continue while the collector does not answer, that the
// buffer is bounded and drops are counted and logged, that another box keeps its share, and that Close returns in time.
func TestAHangingCollectorHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	c := newCollector(t, func(int, http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	times := quick
	times.stopTimeout = 100 * time.Millisecond
	w := newWorld(t, c, Options{Kind: OTLP, URL: c.URL + "/v1/logs"}, times)
	w.record(1)
	w.until("the collector hangs", func() bool { return len(c.received()) == 1 })
	const boxes, each = 4, 10000
	var flood sync.WaitGroup
	for b := range boxes {
		flood.Go(func() {
			for i := range each {
				w.log.Record(allowed(fmt.Sprint("flood-", b), i))
			}
		})
	}
	flood.Wait()
	pending, most := w.lines.Pending()
	lost := w.lines.Lost()
	if pending > most || lost == 0 {
		t.Errorf("%d bytes are pending and %d decisions lost", pending, lost)
	}
	w.log.Record(allowed("modest", 0))
	if w.lines.Lost() != lost {
		t.Error("there is no room for a box that has nothing waiting")
	}
	w.close()
	if got := w.sent.Load() + w.dropped(); got != boxes*each+2 || w.abandoned.Load() == 0 || w.sent.Load() != 0 {
		t.Errorf("%d decisions are accounted for: %s", got, w.counts())
	}
	told := uint64(0)
	for _, e := range w.reply.FilterMessage("decisions were not exported and are dropped").All() {
		told += e.ContextMap()["dropped"].(uint64)
	}
	if told != w.dropped() {
		t.Errorf("the log says %s", w.texts())
	}
}

// TestLinesAreOnlyCountedAfterTheEnd checks that a full buffer costs no decoding once sending has ended, because Close waits for it.
func TestLinesAreOnlyCountedAfterTheEnd(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	w := newWorld(t, c, Options{Kind: OTLP}, quick)
	w.options.Origin = func() Origin {
		t.Error("a batch is encoded")
		return Origin{}
	}
	w.cancel()
	w.record(2 * batchEvents)
	w.close()
	if got := w.counts(); got != fmt.Sprintf("sent 0, full 0, refused 0, stopped %d", 2*batchEvents) || len(c.received()) != 0 {
		t.Errorf("%s, %d requests", got, len(c.received()))
	}
}

// TestTheEndIsBounded checks that neither a collector that hangs nor one that requests a pause keeps the gateway from
// stopping, and that a slow one still receives everything.
func TestTheEndIsBounded(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	for i, answer := range []func(int, http.ResponseWriter, *http.Request){
		func(int, http.ResponseWriter, *http.Request) { <-release },
		func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusServiceUnavailable)
		},
	} {
		name := []string{"hangs", "busy"}[i]
		c := newCollector(t, answer)
		times := quick
		times.stopTimeout = 100 * time.Millisecond
		w := newWorld(t, c, Options{Kind: Webhook}, times)
		w.record(3)
		ended := make(chan struct{})
		go func() {
			w.close()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatalf("%s: it does not end", name)
		}
		if got := w.counts(); got != "sent 0, full 0, refused 0, stopped 3" {
			t.Errorf("%s: %s", name, got)
		}
	}
	c := newCollector(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	times := quick
	times.firstBackoff, times.maxBackoff, times.linger = patience, patience, patience // cut short by Close
	w := newWorld(t, c, Options{Kind: Webhook}, times)
	w.record(2 * batchEvents)
	w.close()
	if got := w.counts(); got != fmt.Sprintf("sent %d, full 0, refused 0, stopped 0", 2*batchEvents) {
		t.Error(got)
	}
}

// TestAnUntrustedCollectorGetsNothing checks that it receives neither decisions nor secret headers.
func TestAnUntrustedCollectorGetsNothing(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	for _, kind := range []Kind{OTLP, Webhook} {
		times := quick
		times.stopTimeout = 50 * time.Millisecond
		w := newWorld(t, c, Options{Kind: kind, Roots: x509.NewCertPool(), Headers: map[string]string{"Authorization": "token"}}, times)
		w.record(5)
		w.until("it fails", func() bool { return w.failed.Load() > 2 })
		w.close()
		if got := w.counts(); got != "sent 0, full 0, refused 0, stopped 5" {
			t.Error(got)
		}
		if text := w.texts(); !strings.Contains(text, "the certificate is not trusted") || strings.Count(text, "cannot be exported") != 1 {
			t.Errorf("the log says %s", text)
		}
	}
	if got := c.received(); len(got) != 0 {
		t.Errorf("it received %+v", got)
	}
}

// TestNoRequestWithoutItsSecrets checks that no request is sent unsigned or without a header, and that sending starts
// once the secret exists.
func TestNoRequestWithoutItsSecrets(t *testing.T) {
	t.Parallel()
	for secret, bad := range map[string][]any{
		"key":   {nil, "", "whsec_", "whsec_AAAA", "not base64 at all!", key("a") + " whsec_AAAA", strings.Repeat(key("a")+" ", 5)},
		"token": {nil, "two\nlines", "a\x00byte"},
	} {
		for _, value := range bad {
			c := newCollector(t, nil)
			w := newWorld(t, c, Options{Kind: Webhook, Headers: map[string]string{"Authorization": "token"}}, quick)
			good, _ := w.secrets.Swap(secret, value)
			if value == nil {
				w.secrets.Delete(secret)
			}
			w.record(1)
			w.until("it fails", func() bool { return w.failed.Load() > 2 })
			if got := c.received(); len(got) != 0 {
				t.Errorf("%s %q: it received %+v", secret, value, got)
			}
			if text := w.texts(); value != nil && len(value.(string)) > 6 && strings.Contains(text, value.(string)) {
				t.Errorf("the log says %s", text)
			}
			w.secrets.Store(secret, good)
			w.until("it is sent", func() bool { return w.sent.Load() == 1 })
			w.close()
		}
	}
}

// TestNothingShowsASecret includes a collector that returns the secret, or breaks the protocol with it.
func TestNothingShowsASecret(t *testing.T) {
	t.Parallel()
	for _, answer := range []func(int, http.ResponseWriter, *http.Request){
		func(_ int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Seen", r.Header.Get("Authorization"))
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"message":"` + r.Header.Get("Authorization") + `"}`))
		},
		func(_ int, w http.ResponseWriter, r *http.Request) {
			if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
				fmt.Fprintf(conn, "%s is no status line\r\n\r\n", r.Header.Get("Authorization"))
				conn.Close()
			}
		},
	} {
		c := newCollector(t, answer)
		times := quick
		times.stopTimeout, times.warnInterval = 50*time.Millisecond, 0
		w := newWorld(t, c, Options{Kind: OTLP, Headers: map[string]string{"Authorization": "token"}}, times)
		w.record(1)
		w.until("it fails", func() bool { return w.failed.Load() > 1 })
		w.close()
		if text := w.texts(); strings.Contains(text, "of-the-collector") || !strings.Contains(text, "cannot be exported") {
			t.Errorf("the log says %s", text)
		}
	}
}

// TestBatchesAreBounded checks the limits in decisions and in bytes, which only a single long line may exceed.
func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	short, long, huge := strings.Repeat("x", 9)+"\n", strings.Repeat("x", 99999)+"\n", strings.Repeat("x", 2*batchBytes)+"\n"
	for _, c := range []struct {
		text string
		want int
	}{
		{short, 10}, {strings.Repeat(short, batchEvents+1), 10 * batchEvents}, {strings.Repeat(long, 4), 200000}, {huge + short, len(huge)}, {short + huge, 10}, {"cut", 3},
	} {
		if n := batchOf([]byte(c.text)); n != c.want {
			t.Errorf("of %d bytes %d are a batch, want %d", len(c.text), n, c.want)
		}
	}
}

// TestMetrics checks the metrics of each exporter.
func TestMetrics(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	a, b := newWorld(t, c, Options{Kind: OTLP}, quick), newWorld(t, c, Options{Kind: Webhook}, quick)
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(Exporters{a.Exporter, b.Exporter}); err != nil {
		t.Fatal(err)
	}
	a.record(7)
	a.until("it is sent", func() bool { return a.sent.Load() == 7 })
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(families)
	for _, want := range []string{"boxgate_export_sent_total", "boxgate_export_dropped_total", "boxgate_export_failures_total", "boxgate_export_queue_bytes"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %s in %s", want, text)
		}
	}
	if age := time.Since(time.Unix(0, a.succeeded.Load())); age < 0 || age > patience || b.succeeded.Load() != 0 {
		t.Errorf("the last success was %v ago", age)
	}
}
