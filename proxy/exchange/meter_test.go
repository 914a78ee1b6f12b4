package exchange_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/exchange"
	"boxgate/proxy/proxytest"
)

// ledger is a meter that records.
type ledger struct {
	mu      sync.Mutex
	refuse  error // returned by Reserve
	calls   []llm.Call
	settled []settled
	twice   bool // some reservation was settled twice
}

// settled is a settled reservation.
type settled struct {
	usage    llm.Usage
	model    string
	complete bool
}

// Reserve implements [llm.Meter].
func (l *ledger) Reserve(box, rule string, c llm.Call) (llm.Reservation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuse != nil {
		return nil, l.refuse
	}
	if box != "box1" || !strings.Contains(rule, proxytest.API) {
		return nil, fmt.Errorf("box %q, rule %q", box, rule)
	}
	l.calls = append(l.calls, c)
	return &heldCost{of: l}, nil
}

type heldCost struct {
	of   *ledger
	done bool
}

// Settle implements [llm.Reservation].
func (h *heldCost) Settle(u llm.Usage, model string, complete bool) {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	h.of.twice = h.of.twice || h.done
	h.done = true
	h.of.settled = append(h.of.settled, settled{u, model, complete})
}

// await waits for n settled reservations, of n.
func (l *ledger) await(t *testing.T, n int) []settled {
	t.Helper()
	var got []settled
	proxytest.Await(t, "settled reservations", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		got = append(got[:0], l.settled...)
		return len(got) >= n
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.twice || len(got) != n || len(l.calls) != n {
		t.Errorf("%d calls, %d settled, want %d; one of them twice: %v", len(l.calls), len(got), n, l.twice)
	}
	return got
}

// eachMetered runs a test over every pair of protocols, with a rule that meters.
func eachMetered(t *testing.T, rule string, serve http.HandlerFunc, test func(t *testing.T, l *proxytest.Rig, client *http.Client, at string, meter *ledger)) {
	t.Helper()
	for _, v := range []struct {
		name       string
		client, up bool // HTTP/2
	}{{"h1 to h1", false, false}, {"h2 to h2", true, true}, {"h2 to h1", true, false}} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			meter := &ledger{}
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) { c.Meter = meter })
			_, port := l.HTTPSServer(v.up, serve)
			l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Api-Key": "sk-secret-value"}, `+rule+`}}`)
			test(t, l, l.HTTPClient(port, v.client), "https://"+proxytest.HostPort(port), meter)
		})
	}
}

const (
	anthropicRule = `"meter": "anthropic"`
	openAIRule    = `"meter": "openai"`
	ask           = `{"model":"claude-x","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"hello"}]}`
	messagesPath  = "/v1/messages"
)

// events are the events of an answer by Anthropic.
var events = []string{
	"event: message_start\ndata: " + `{"type":"message_start","message":{"model":"claude-x-1","usage":{"input_tokens":11,"cache_read_input_tokens":3,"cache_creation_input_tokens":2,"output_tokens":1}}}` + "\n\n",
	"event: content_block_delta\ndata: " + `{"type":"content_block_delta","delta":{"text":"{\"usage\":{\"output_tokens\":999}}"}}` + "\n\n",
	"event: message_delta\ndata: " + `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":21}}` + "\n\n",
	"event: message_stop\ndata: " + `{"type":"message_stop"}` + "\n\n",
}

// wholeUsage is that of events.
var wholeUsage = llm.Usage{Input: 11, Output: 21, CacheRead: 3, CacheWrite: 2, Requests: 1}

// TestTokensOfAStream: they are read in every coding while each event passes before the next is sent.
func TestTokensOfAStream(t *testing.T) {
	t.Parallel()
	next := map[string]chan bool{}
	var mu sync.Mutex
	gate := func(id string) chan bool {
		mu.Lock()
		defer mu.Unlock()
		if next[id] == nil {
			next[id] = make(chan bool)
		}
		return next[id]
	}
	eachMetered(t, anthropicRule, func(w http.ResponseWriter, r *http.Request) {
		if body := proxytest.ReadAll(t, r.Body); body != ask || r.Header.Get("X-Api-Key") != "sk-secret-value" {
			t.Errorf("the server received %q, %v", body, r.Header)
		}
		coding := r.Header.Get("X-Coding")
		if coding != "" {
			w.Header().Set("Content-Encoding", coding)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		out, flush := packed(w, coding)
		for _, e := range events {
			_, _ = io.WriteString(out, e)
			_ = flush()
			w.(http.Flusher).Flush()
			select {
			case <-gate(r.Header.Get("X-Id")):
			case <-r.Context().Done():
				return
			}
		}
		_ = out.Close()
	}, func(t *testing.T, _ *proxytest.Rig, client *http.Client, at string, meter *ledger) {
		for i, coding := range []string{"", "gzip", "br", "zstd"} {
			id := t.Name() + coding
			req, _ := http.NewRequest("POST", at+messagesPath+"?beta=true", strings.NewReader(ask))
			req.Header = http.Header{"X-Coding": {coding}, "X-Id": {id}, "Accept-Encoding": {"gzip, br, zstd, dcb"}}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			plain, err := unpacked(res.Body, coding)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				got := make([]byte, len(e))
				if _, err := io.ReadFull(plain, got); err != nil || string(got) != e {
					t.Fatalf("%s: %q, %v; want %q", coding, got, err, e)
				}
				gate(id) <- true
			}
			if rest, err := io.ReadAll(plain); len(rest) > 0 || err != nil {
				t.Errorf("%s: %q, %v", coding, rest, err)
			}
			res.Body.Close()
			got := meter.await(t, i+1)[i]
			if want := (settled{wholeUsage, "claude-x-1", true}); got != want {
				t.Errorf("%s: %+v, want %+v", coding, got, want)
			}
			if want := (llm.Call{Vendor: llm.Anthropic, Model: "claude-x", Max: 50, Input: uint64(len(ask))}); meter.calls[i] != want {
				t.Errorf("%+v, want %+v", meter.calls[i], want)
			}
		}
	})
}

// TestTokensOfDocuments: those of other vendors, with a length and without, and responses that cost nothing.
func TestTokensOfDocuments(t *testing.T) {
	t.Parallel()
	const chat = `{"model":"gpt-x-1","choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":10,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":6}}}`
	eachMetered(t, openAIRule, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.Header.Get("X-Answer") {
		case "429":
			http.Error(w, `{"error":{}}`, 429)
		case "204":
			w.WriteHeader(204)
		case "stream":
			_, _ = io.WriteString(w, "data: "+`{"choices":[{"delta":{"content":"12345678"}}]}`+"\n\ndata: [DONE]\n\n")
		default:
			_, _ = io.WriteString(w, chat)
		}
	}, func(t *testing.T, _ *proxytest.Rig, client *http.Client, at string, meter *ledger) {
		const body = `{"model":"gpt-x","stream":true}`
		for i, c := range []struct {
			answer string
			want   settled
		}{
			{"", settled{llm.Usage{Input: 4, Output: 4, CacheRead: 6, Requests: 1}, "gpt-x-1", true}},
			{"429", settled{llm.Usage{}, "gpt-x", true}},
			{"204", settled{llm.Usage{Input: 8, Requests: 1}, "gpt-x", false}},
			{"stream", settled{llm.Usage{Input: 8, Output: 2, Requests: 1}, "gpt-x", false}},
		} {
			_, _ = proxytest.Send(t, client, "POST", at+"/v1/chat/completions", http.Header{"X-Answer": {c.answer}}, strings.NewReader(body))
			if got := meter.await(t, i+1)[i]; got != c.want {
				t.Errorf("%s: %+v, want %+v", c.answer, got, c.want)
			}
		}
	})
}

// TestBudgetsRefuse: a request that the meter refuses is answered as the vendor would, and not sent.
func TestBudgetsRefuse(t *testing.T) {
	t.Parallel()
	eachMetered(t, anthropicRule+`, "models": {"allow": ["claude-*"], "deny": ["claude-opus-*"]}`, func(http.ResponseWriter, *http.Request) {
		t.Error("the server received a request")
	}, func(t *testing.T, l *proxytest.Rig, client *http.Client, at string, meter *ledger) {
		for _, c := range []struct {
			refuse       error
			model        string
			status       int
			kind, after  string
			should, text string
			reason       name.Reason
		}{
			{&llm.Refusal{Reason: "model_budget", RetryAfter: 1500 * time.Millisecond, Message: "20 usd a day"}, "claude-x", 429, "rate_limit_error", "2", "", "20 usd a day", name.ReasonModelBudget},
			{&llm.Refusal{Reason: "model_budget", RetryAfter: time.Hour, Message: "over"}, "claude-x", 429, "rate_limit_error", "3600", "false", "over", name.ReasonModelBudget},
			{&llm.Refusal{Reason: "model_budget", Message: "over"}, "claude-x", 429, "rate_limit_error", "", "false", "over", name.ReasonModelBudget},
			{&llm.Refusal{Reason: "model_denied", Message: "no price"}, "claude-x", 403, "permission_error", "", "", "no price", name.ReasonModelDenied},
			{errors.New("the store is closed"), "claude-x", 403, "permission_error", "", "", "cannot count", name.ReasonModelDenied},
			{nil, "claude-opus-4", 403, "permission_error", "", "", "claude-opus-4", name.ReasonModelDenied},
			{nil, "CLAUDE-OPUS-4", 403, "permission_error", "", "", "CLAUDE-OPUS-4", name.ReasonModelDenied},
			{nil, "gpt-x", 403, "permission_error", "", "", "gpt-x", name.ReasonModelDenied},
		} {
			meter.refuse = c.refuse
			res, err := client.Post(at+messagesPath, "application/json", strings.NewReader(strings.Replace(ask, "claude-x", c.model, 1)))
			if err != nil {
				t.Fatal(err)
			}
			body := proxytest.ReadAll(t, res.Body)
			if res.StatusCode != c.status || res.Header.Get("Content-Type") != "application/json" || res.Header.Get("Retry-After") != c.after || res.Header.Get("X-Should-Retry") != c.should ||
				!strings.HasPrefix(body, `{"error":{"message":"boxgate: `) || !strings.Contains(body, `"type":"`+c.kind+`"`) || !strings.Contains(body, c.text) {
				t.Errorf("%v: %d %v %s", c.refuse, res.StatusCode, res.Header, body)
			}
		}
		events := l.Events.Wait(t, 8)
		// A refused request is recorded after its answer, and the next one has another connection.
		slices.SortFunc(events, func(a, b audit.Event) int { return a.Time.Compare(b.Time) })
		for i, e := range events {
			want := name.ReasonModelBudget
			if i > 2 {
				want = name.ReasonModelDenied
			}
			if e.Reason != want || e.Verdict == policy.Allow || !strings.Contains(e.Rule, proxytest.API) || !strings.HasPrefix(e.Messages, "model ") || len(e.Headers) > 0 {
				t.Errorf("%d: %+v", i, e)
			}
		}
		meter.await(t, 0)
	})
}

// TestAttacksOnMetering: no request asks a model without being counted.
func TestAttacksOnMetering(t *testing.T) {
	t.Parallel()
	zip := func(coding, text string) string {
		var b bytes.Buffer
		z, _ := packed(&b, coding)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
		return b.String()
	}
	coded := func(coding string) http.Header { return http.Header{"Content-Encoding": {coding}} }
	eachMetered(t, openAIRule, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("X-Passes") == "" {
			t.Errorf("the server received %s %s %v %.100q", r.Method, r.URL, r.Header, body)
		}
		fmt.Fprintf(w, `{"model":"m","usage":{"prompt_tokens":%d,"completion_tokens":1}}`, len(body))
	}, func(t *testing.T, l *proxytest.Rig, client *http.Client, at string, meter *ledger) {
		const fine = `{"model":"gpt-x","max_tokens":5}`
		passes := 0
		for _, c := range []struct {
			what, method, path, body string
			header                   http.Header
			status                   int
		}{
			{"a key twice", "POST", "/v1/chat/completions", `{"model":"a","model":"b"}`, nil, 400},
			{"a key in another case", "POST", "/v1/chat/completions", `{"model":"a","Max_Tokens":5}`, nil, 400},
			{"a huge limit", "POST", "/v1/chat/completions", `{"model":"a","max_tokens":1e30}`, nil, 400},
			{"no JSON", "POST", "/v1/chat/completions", `model=a`, http.Header{"Content-Type": {"application/json"}}, 400},
			{"JSON as another type", "POST", "/v1/chat/completions", fine, http.Header{"Content-Type": {"text/plain"}, "X-Passes": {"1"}}, 200},
			{"JSON of a parameter", "POST", "/v1/chat/completions", fine, http.Header{"Content-Type": {"application/json; charset=UTF-8"}, "X-Passes": {"1"}}, 200},
			{"a form", "POST", "/v1/chat/completions", `{"model":"a","x":"&model=b&"}`, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, 400},
			{"protocol buffers", "POST", "/v1/chat/completions", fine, http.Header{"Content-Type": {"application/x-protobuf"}}, 400},
			{"another charset", "POST", "/v1/chat/completions", `{"model":"a","+ACI,+ACI-model+ACI:+ACI-b":1}`, http.Header{"Content-Type": {"application/json; charset=utf-7"}}, 400},
			{"two types", "POST", "/v1/chat/completions", fine, http.Header{"Content-Type": {"application/json", "application/x-www-form-urlencoded"}}, 400},
			{"an unknown coding", "POST", "/v1/chat/completions", fine, coded("dcb"), 400},
			{"a coding that it does not have", "POST", "/v1/chat/completions", fine, coded("gzip"), 400},
			{"two codings", "POST", "/v1/chat/completions", zip("gzip", zip("gzip", fine)), coded("gzip, gzip"), 400},
			{"a bomb", "POST", "/v1/chat/completions", zip("gzip", strings.Repeat(" ", 40<<20)+fine), coded("gzip"), 400},
			{"data after the coding", "POST", "/v1/chat/completions", zip("gzip", fine) + "x", coded("gzip"), 400},
			{"a coding", "POST", "/v1/chat/completions", zip("gzip", fine), http.Header{"Content-Encoding": {"gzip"}, "X-Passes": {"1"}}, 200},
			{"another method", "GET", "/v1/chat/completions", `{"model":"a","model":"b"}`, nil, 400},
			{"a batch", "POST", "/v1/batches", fine, nil, 403},
			{"an upload", "PUT", "/v1/files", "x", nil, 403},
			{"an escaped path", "POST", "/v1/chat/c%6fmpletions", fine, nil, 403},
			{"an answer in the background", "POST", "/v1/responses", `{"model":"a","background":true}`, nil, 400},
			{"a read", "GET", "/v1/models", "", http.Header{"X-Passes": {"1"}}, 200},
			{"a large body", "POST", "/v1/chat/completions", `{"model":"a","input":"` + strings.Repeat("x", 3<<20) + `"}`, http.Header{"X-Passes": {"1"}}, 200},
			{"too large a body", "POST", "/v1/chat/completions", strings.Repeat(" ", exchange.MaxMetered) + fine, nil, 413},
		} {
			for _, sized := range []bool{true, false} {
				if c.body == "" && !sized || len(c.body) > 16<<20 && sized {
					continue
				}
				var body io.Reader
				if body = strings.NewReader(c.body); !sized {
					body = proxytest.Unsized(c.body)
				}
				if c.body == "" {
					body = nil
				}
				req, err := http.NewRequest(c.method, at+c.path, body)
				if err != nil {
					t.Fatal(err)
				}
				for k, v := range c.header {
					req.Header[k] = v
				}
				res, err := client.Do(req)
				if err != nil {
					t.Errorf("%s: %v", c.what, err)
					continue
				}
				text := proxytest.ReadAll(t, res.Body)
				if res.StatusCode != c.status || c.status != 200 && !strings.HasPrefix(text, `{"error":{"code":"`) {
					t.Errorf("%s, sized %v: %d %.300s", c.what, sized, res.StatusCode, text)
				}
				if c.status == 200 && c.body != "" {
					passes++
				}
			}
		}
		for _, s := range meter.await(t, passes) {
			if !s.complete || s.usage.Input == 0 {
				t.Errorf("%+v", s)
			}
		}
		l.WantReason(name.ReasonUnreadableContent)
	})
}

// TestCutsSettleOnce: wherever a response ends, by client or server, the reservation is settled once.
func TestCutsSettleOnce(t *testing.T) {
	t.Parallel()
	whole := strings.Join(events, "")
	final := len(strings.Join(events[:3], ""))
	eachMetered(t, anthropicRule, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		var n int
		by := r.Header.Get("X-By")
		_, _ = fmt.Sscan(r.Header.Get("X-Cut"), &n)
		if n < 0 {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, whole[:n])
		w.(http.Flusher).Flush()
		if by == "server" {
			panic(http.ErrAbortHandler)
		}
		<-r.Context().Done() // the client leaves
	}, func(t *testing.T, l *proxytest.Rig, client *http.Client, at string, meter *ledger) {
		n := 0
		for _, by := range []string{"server", "client"} {
			for cut := -1; cut <= len(whole); cut += 37 {
				if cut < 1 && by == "client" {
					continue
				}
				req, _ := http.NewRequest("POST", at+messagesPath, strings.NewReader(ask))
				req.Header = http.Header{"X-By": {by}, "X-Cut": {fmt.Sprint(cut)}}
				if res, err := client.Do(req); err == nil {
					_, _ = io.ReadFull(res.Body, make([]byte, max(cut, 0)))
					if by == "server" {
						_, _ = io.Copy(io.Discard, res.Body)
					}
					res.Body.Close()
				}
				n++
				got := meter.await(t, n)[n-1]
				if got.complete != (cut >= final) || got.usage.Requests != 1 || got.usage.Input == 0 || got.complete && got.usage != wholeUsage {
					t.Fatalf("cut by the %s at %d of %d: %+v", by, cut, len(whole), got)
				}
			}
		}
		l.Events.Wait(t, n)
		meter.await(t, n)
	})
}

// TestRequestsNotSent: a request that no server received costs nothing, and a gateway without a meter refuses.
func TestRequestsNotSent(t *testing.T) {
	t.Parallel()
	meter := &ledger{}
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) { c.Meter = meter })
	srv, port := l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) {})
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {`+anthropicRule+`}}`)
	client := l.HTTPClient(port, false)
	srv.Close()
	if status, _ := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+messagesPath, nil, strings.NewReader(ask)); status != 502 {
		t.Errorf("%d", status)
	}
	if got := meter.await(t, 1)[0]; got != (settled{llm.Usage{}, "claude-x", true}) {
		t.Errorf("%+v", got)
	}

	l = proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port = l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) { t.Error("the server received a request") })
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {`+anthropicRule+`}}`)
	if status, body := proxytest.Send(t, l.HTTPClient(port, false), "POST", "https://"+proxytest.HostPort(port)+messagesPath, nil, strings.NewReader(ask)); status != 403 {
		t.Errorf("%d %s", status, body)
	}
}

// TestAttackSocketsAndSmuggling: a WebSocket is not opened, and no body hides another request or the end of its own.
func TestAttackSocketsAndSmuggling(t *testing.T) {
	t.Parallel()
	meter := &ledger{}
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) { c.Meter = meter })
	var mu sync.Mutex
	var received []string
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		received = append(received, r.Method+" "+r.URL.Path+" "+string(body))
		mu.Unlock()
		_, _ = io.WriteString(w, `{"usage":{"input_tokens":1,"output_tokens":1}}`)
	})
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"meter": "anthropic"}}`)
	host := "Host: " + proxytest.HostPort(port) + "\r\n"
	const hidden = "POST /v1/messages/batches HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
	for _, c := range []struct {
		request string
		status  int
	}{
		{"GET /v1/realtime HTTP/1.1\r\n" + host + "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", 403},
		{"POST /v1/messages HTTP/1.1\r\n" + host + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden, 400},
		{"POST /v1/messages HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400},
		{"POST /v1/messages HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n" + chunks(ask, "5;x=\"a\r\nb\"") + hidden, 400},
		{"POST /v1/messages HTTP/1.1\r\n" + host + "Content-Length: 0\r\nX-HTTP-Method-Override: POST\r\n\r\n", 200},
		{"POST /v1/messages HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n" + chunks(ask, ""), 200},
	} {
		conn := l.DialPair(proxytest.API, port, true)
		res := proxytest.Ask(t, conn, bufio.NewReader(conn), c.request, "POST")
		if res.StatusCode != c.status {
			t.Errorf("%.200q: %s %s", c.request, res.Status, proxytest.ReadAll(t, res.Body))
		}
	}
	if got := meter.await(t, 1)[0]; got.usage != (llm.Usage{Input: 1, Output: 1, Requests: 1}) {
		t.Errorf("%+v", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"POST /v1/messages ", "POST /v1/messages " + ask}; !slices.Equal(received, want) {
		t.Errorf("the server received %q", received)
	}
}

// chunks writes a body in chunks of 7 bytes, after a malformed one if there is one.
func chunks(body, malformed string) string {
	var b strings.Builder
	if malformed != "" {
		b.WriteString(malformed + "\r\n")
	}
	for part := range slices.Chunk([]byte(body), 7) {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(part), part)
	}
	return b.String() + "0\r\n\r\n"
}
