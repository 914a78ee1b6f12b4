package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/server"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// logged is a host whose decisions are in a real log.
type logged struct {
	*apitest.Host
	log *audit.Log
}

func (l logged) RecentEvents(_ context.Context, f api.EventFilter) (api.PastEvents, error) {
	which := audit.Filter{Box: f.Box, Since: f.Since, After: f.After, Denied: f.Denied}
	return api.PastEvents{Events: l.log.Recent(which), Run: l.log.ID()}, nil
}

func (l logged) FollowEvents(ctx context.Context, f api.EventFilter) (api.EventStream, error) {
	return l.log.Subscribe(ctx, audit.Filter{Box: f.Box, Denied: f.Denied}), nil
}

// stream reads the data of n batches, and the ID of the last.
func (g *rig) stream(t *testing.T, b *browser, path string, n int, header ...string) (data []string, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if len(header) == 2 {
		req.Header.Set(header[0], header[1])
	}
	resp, err := b.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %s %s", path, resp.Status, resp.Header.Get("Content-Type"))
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	for len(data) < n && lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			data = append(data, text)
		}
		if text, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			id = text
		}
	}
	if len(data) < n {
		t.Fatalf("%s ended after %d batches: %v", path, len(data), lines.Err())
	}
	return data, id
}

func batchOf(t *testing.T, text string) (m message) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestLive: a page receives the decisions of the past, then new ones, and after a reconnection those that it has missed.
func TestLive(t *testing.T) {
	t.Parallel()
	l := audit.New(audit.Options{})
	g := serve(t, func(c *server.Config) { c.Decisions = logged{c.Decisions.(*apitest.Host), l} })
	id := policy.BoxID(g.host.Add(t, api.CreateRequest{Name: "first"}))
	record := func(host string, v policy.Verdict) {
		l.Record(audit.Event{Box: id, Stage: policy.StageHTTP, Name: host, Port: 443, Verdict: v, Reason: name.ReasonNotAllowed, Action: audit.ActionRefuse})
		l.Flush()
	}
	record("one.example", policy.Allow)
	record("two.example", policy.Deny)
	b := g.as(t, apitest.Key)
	data, seen := g.stream(t, b, boxPath(id, "live"), 1)
	m := batchOf(t, data[0])
	if !m.First || len(m.Rows) != 2 || m.Rows[0].Host != "one.example" || m.Rows[1].Verdict != "deny" || m.Rows[1].Domain != "two.example" {
		t.Fatalf("%+v", m)
	}
	record("three.example", policy.Deny)
	data, _ = g.stream(t, b, boxPath(id, "live"), 1, "Last-Event-ID", seen)
	if m = batchOf(t, data[0]); m.First || len(m.Rows) != 1 || m.Rows[0].Host != "three.example" {
		t.Errorf("after a reconnection: %+v", m)
	}
	data, _ = g.stream(t, b, boxPath(id, "live")+"?denied=1", 1)
	if m = batchOf(t, data[0]); len(m.Rows) != 2 || m.Rows[0].Host != "two.example" {
		t.Errorf("denials: %+v", m)
	}
}

// TestLiveEnds: a stream ends when its session does, and when its key is deleted.
func TestLiveEnds(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := g.host.Add(t, api.CreateRequest{Name: "first"})
	g.host.Mu.Lock()
	g.host.Keys = map[string]api.Key{"secret-of-reader": {Caller: api.Caller{Key: "key_1", Name: "reader", Role: api.RoleReader}}}
	g.host.Mu.Unlock()
	for _, end := range []func(b *browser){
		func(b *browser) {
			_, page := b.get(t, "/ui/")
			b.post(t, "/ui/sign-out", map[string][]string{"token": {tokenOf(t, page)}})
		},
		func(*browser) {
			g.host.Mu.Lock()
			defer g.host.Mu.Unlock()
			delete(g.host.Keys, "secret-of-reader")
		},
	} {
		b := g.as(t, "secret-of-reader")
		resp, err := b.Get(g.URL + boxPath(id, "live"))
		if err != nil {
			t.Fatal(err)
		}
		end(b)
		ended := make(chan error, 1)
		go func() { _, err := io.Copy(io.Discard, resp.Body); ended <- err }()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("the stream continues")
		}
		resp.Body.Close()
	}
}

// TestAttackBoundsOfAStream: a box that decides faster than a page can show, or a browser that reads slowly, loses rows: denials last.
// What waits for the browser stays bounded.
func TestAttackBoundsOfAStream(t *testing.T) {
	t.Parallel()
	b := &batch{most: maxRows}
	line := func(verdict policy.Verdict, path string) {
		text, err := json.Marshal(audit.Event{Seq: 1, Time: time.Now(), Box: "b", Name: "a.example", Path: path, Verdict: verdict})
		if err == nil {
			err = b.add(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 20_000 {
		line(policy.Allow, `/"verdict":"deny"`)
	}
	for range 50 {
		line(policy.Deny, "/")
	}
	m, _ := b.take()
	if len(m.Rows) != maxRows+50 || m.Lost != 20_000-maxRows {
		t.Errorf("%d rows, %d lost", len(m.Rows), m.Lost)
	}
	for range 1000 {
		line(policy.Deny, "/"+strings.Repeat("a", 20_000))
	}
	if m, _ = b.take(); len(m.Rows) > maxLineRows/20_000 || m.Lost != uint64(1000-len(m.Rows)) {
		t.Errorf("%d large rows, %d lost", len(m.Rows), m.Lost)
	}
	for _, text := range []string{`{"lost":12}`, `{"gap":"restarted"}`, `{"lost":3}`, `nonsense`} {
		if err := b.add([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if m, _ = b.take(); m.Lost != 16 || m.Gap != "restarted" || len(m.Rows) != 0 {
		t.Errorf("%+v", m)
	}
}

// TestStreamKeepsUp: a page receives a busy box's decisions in few large batches, within its rate, and is told what it lost.
func TestStreamKeepsUp(t *testing.T) {
	t.Parallel()
	l := audit.New(audit.Options{})
	g := serve(t, func(c *server.Config) { c.Decisions = logged{c.Decisions.(*apitest.Host), l} })
	id := policy.BoxID(g.host.Add(t, api.CreateRequest{Name: "first"}))
	b := g.as(t, apitest.Key)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil && i < 10_000_000; i++ {
			l.Record(audit.Event{Box: id, Stage: policy.StageHTTP, Name: fmt.Sprintf("h%d.example", i), Port: 443, Verdict: policy.Allow, Reason: name.ReasonAllowAll, Action: audit.ActionForward})
			runtime.Gosched()
		}
	}()
	defer func() { stop(); <-done }()
	const batches = 6
	began := time.Now()
	data, _ := g.stream(t, b, boxPath(id, "live"), batches)
	if took := time.Since(began); took < (batches-2)*batchTime {
		t.Errorf("%d batches within %v", batches, took)
	}
	lost := uint64(0)
	for i, text := range data {
		m := batchOf(t, text)
		if lost += m.Lost; len(m.Rows) > 2*maxRows && i > 0 {
			t.Errorf("batch %d has %d rows", i, len(m.Rows))
		}
	}
	if lost == 0 {
		t.Error("the page is not told that it lost decisions")
	}
}

// lines answers every request with these lines.
type lines string

func (l lines) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(l))), Request: req}, nil
}

// TestLivePanics: a panic about one decision ends the stream, not the gateway.
func TestLivePanics(t *testing.T) {
	t.Parallel()
	begun := make(chan string, 1)
	client := api.NewClientOver(lines("{\"seq\":1}\n"))
	if err := readLive(t.Context(), client, "/v2/box/b/egress", begun, nil); err == nil || !strings.Contains(err.Error(), "cannot be shown") {
		t.Errorf("%v", err)
	}
}
