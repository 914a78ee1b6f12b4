package rest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/quota"
)

// pipes is a listener whose connections are in memory, for tests with fake time.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { close(p.ended); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// view is the JSON of a route.
type view struct {
	Text string `json:"text"`
}

// slow is a route whose handler returns rep and err after some time.
func slow(after time.Duration, rep Reply, err error) Route {
	return Route{Method: "POST", Path: "/", Status: http.StatusCreated, Response: reflect.TypeFor[view](), Handle: func(w http.ResponseWriter, r *http.Request) (Reply, error) {
		if _, err := io.ReadAll(r.Body); err != nil {
			return Reply{}, err
		}
		time.Sleep(after) // of the fake time
		w.Header().Set("X-Late", "yes")
		return rep, err
	}}
}

// arrival is a response, with the times at which its header and each read of the body arrived after the request.
type arrival struct {
	*http.Response
	header time.Duration
	reads  []time.Duration
	text   string
	err    error // of the body
}

// ask serves a route with a silence of 15 s, and sends it a request. Call it in a bubble of synctest.
func ask(t *testing.T, rt Route, change func(*Writer, *http.Request)) arrival {
	t.Helper()
	ln := pipes{make(chan net.Conn), make(chan struct{})}
	answers := Answerer{Log: zap.NewNop()}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := &Writer{ResponseWriter: rw, Silence: Silence}
		if change != nil {
			change(w, r)
		}
		defer answers.Recover(w, r)
		answers.Serve(rt).ServeHTTP(w, r)
	})}
	go func() { _ = srv.Serve(ln) }()
	defer srv.Close()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		ln.conns <- theirs
		return ours, nil
	}}
	defer transport.CloseIdleConnections()
	begin := time.Now()
	req, err := http.NewRequestWithContext(t.Context(), rt.Method, "http://test/", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	a := arrival{Response: resp, header: time.Since(begin)}
	buf := make([]byte, 1<<10)
	for {
		n, err := resp.Body.Read(buf)
		if a.text += string(buf[:n]); n > 0 {
			a.reads = append(a.reads, time.Since(begin))
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				a.err = err
			}
			return a
		}
	}
}

// A response that takes long begins after 15 s, never stays silent for longer, and is the JSON that it would be otherwise.
func TestLongCallIsKeptAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := ask(t, slow(320*time.Second, Reply{Status: http.StatusCreated, Body: view{"done"}}, nil), nil)
		if a.StatusCode != http.StatusCreated || a.header != Silence || a.ContentLength >= 0 || a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s after %v, %v", a.Status, a.header, a.Header)
		}
		var got view
		if err := json.Unmarshal([]byte(a.text), &got); err != nil || got.Text != "done" || a.err != nil {
			t.Errorf("%q %v %v", a.text, err, a.err)
		}
		before := time.Duration(0)
		for _, at := range a.reads {
			if at-before > Silence {
				t.Errorf("silent from %v to %v", before, at)
			}
			before = at
		}
		if last := a.reads[len(a.reads)-1]; last != 320*time.Second {
			t.Errorf("ended after %v", last)
		}
	})
}

// A request with HEAD, which routes for GET also serve, gets the status of its failure, however late: it has no body that could break off.
func TestLateFailureOfHEAD(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := slow(40*time.Second, Reply{}, api.Errorf(api.ErrConflict, "no"))
		rt.Method = http.MethodHead
		if a := ask(t, rt, nil); a.StatusCode != http.StatusConflict || a.text != "" {
			t.Errorf("%s %q %v", a.Status, a.text, a.err)
		}
	})
}

// Calls that are answered in time keep their status, length and header.
func TestShortCallIsNotHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := ask(t, slow(14*time.Second, Reply{Body: view{"done"}}, nil), nil)
		if a.StatusCode != http.StatusOK || a.ContentLength != int64(len(a.text)) || a.Header.Get("X-Late") != "yes" || a.text != "{\"text\":\"done\"}\n" {
			t.Errorf("%s %v %q", a.Status, a.Header, a.text)
		}
		a = ask(t, slow(14*time.Second, Reply{}, api.Errorf(api.ErrConflict, "no")), nil)
		if a.StatusCode != http.StatusConflict || a.ContentLength < 0 {
			t.Errorf("%s %v", a.Status, a.Header)
		}
	})
}

// A failure after the status of success was sent is never a success: the body breaks off, after the error.
func TestLateFailureBreaksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var recorded []int
		keep := func(w *Writer, _ *http.Request) {
			w.Record = func(status int, _ *Change) error { recorded = append(recorded, status); return nil }
		}
		a := ask(t, slow(time.Minute, Reply{}, api.Errorf(api.ErrUnavailable, "git failed")), keep)
		if a.StatusCode != http.StatusCreated || a.err == nil || strings.TrimSpace(a.text) != `{"error":"git failed","status":503}` {
			t.Errorf("%s %q %v", a.Status, a.text, a.err)
		}
		if len(recorded) != 1 || recorded[0] != http.StatusServiceUnavailable {
			t.Errorf("recorded %v", recorded)
		}
		full := &quota.Error{Holder: quota.Holder{}, Kind: quota.Memory, After: 1500 * time.Millisecond}
		if a := ask(t, slow(time.Minute, Reply{}, full), nil); a.err == nil || !strings.HasSuffix(strings.TrimSpace(a.text), `"quota":"memory","status":429,"retry_after":2}`) {
			t.Errorf("%q %v", a.text, a.err)
		}
		fails := func(w *Writer, _ *http.Request) {
			w.Record = func(int, *Change) error { return errors.New("disk full") }
		}
		if a := ask(t, slow(time.Minute, Reply{Body: view{"done"}}, nil), fails); a.err == nil || strings.Contains(a.text, "done") {
			t.Errorf("a call whose outcome is not recorded succeeds: %q %v", a.text, a.err)
		}
		panics := slow(time.Minute, Reply{}, nil)
		panics.Handle = func(http.ResponseWriter, *http.Request) (Reply, error) { time.Sleep(time.Minute); panic("x") }
		panics.Method = "GET"
		if a := ask(t, panics, func(w *Writer, r *http.Request) {}); a.err == nil {
			t.Errorf("a panic is %q", a.text)
		}
	})
}

// A body that can describe a failure does.
func TestLateFailureInTheBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := slow(time.Minute, Reply{}, api.Errorf(api.ErrConflict, "cancelled"))
		rt.Late = func(err error) any { _, body := problem.StatusOf(err); return view{body.Error} }
		if a := ask(t, rt, nil); a.err != nil || strings.TrimSpace(a.text) != `{"text":"cancelled"}` {
			t.Errorf("%q %v", a.text, a.err)
		}
	})
}

// Responses that cannot be held begin when the handler has returned.
func TestResponsesThatAreNotHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		versioned := slow(time.Minute, Reply{Body: view{"done"}, Version: 3}, nil)
		versioned.Versioned = true
		if a := ask(t, versioned, nil); a.header != time.Minute || a.Response.Header.Get("ETag") != `"3"` {
			t.Errorf("%v %v", a.header, a.Header)
		}
		old := func(_ *Writer, r *http.Request) { r.ProtoMinor, r.Proto = 0, "HTTP/1.0" }
		if a := ask(t, slow(time.Minute, Reply{}, api.Errorf(api.ErrConflict, "no")), old); a.StatusCode != http.StatusConflict {
			t.Errorf("HTTP/1.0: %s", a.Status)
		}
		sending := func(w *Writer, _ *http.Request) { w.Unread = func() bool { return true } }
		if a := ask(t, slow(time.Minute, Reply{}, api.Errorf(api.ErrConflict, "no")), sending); a.StatusCode != http.StatusConflict {
			t.Errorf("while the body arrives: %s", a.Status)
		}
	})
}

// Alive has no beats after stop, nor while there are writes.
func TestAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &Writer{ResponseWriter: httptest.NewRecorder(), Silence: Silence}
		var beats atomic.Int32
		stop := Alive(w, func() bool { beats.Add(1); return true })
		for range 10 {
			time.Sleep(Silence - time.Second)
			_, _ = w.Write([]byte("x"))
		}
		if n := beats.Load(); n != 0 {
			t.Errorf("%d beats of a response that is written", n)
		}
		time.Sleep(10*Silence + time.Second)
		stop()
		if n := beats.Load(); n != 10 {
			t.Errorf("%d beats", n)
		}
		time.Sleep(time.Hour)
		if n := beats.Load(); n != 10 {
			t.Errorf("%d beats after stop", n)
		}
		Alive(httptest.NewRecorder(), func() bool { t.Error("a beat"); return true })()
	})
}

// TestBegunStream: the header of a stream leaves at its beginning, and proxies do not buffer it.
func TestBegunStream(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	BeginPaced(rec, "application/x-ndjson").Close()
	if h := rec.Result().Header; rec.Code != http.StatusOK || h.Get("Content-Type") != "application/x-ndjson" || h.Get("X-Accel-Buffering") != "no" {
		t.Error(rec.Code, h)
	}
}

// A stream with pauses has line feeds in them, and only between writes.
func TestPaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rt := Route{Method: "GET", Path: "/", Handle: func(w http.ResponseWriter, _ *http.Request) (Reply, error) {
			p := BeginPaced(w, "application/x-ndjson")
			defer p.Close()
			for range 2 {
				_, _ = p.Write([]byte("{\"a\":1}\n"))
				time.Sleep(40 * time.Second)
			}
			return Reply{Written: true}, nil
		}}
		if a := ask(t, rt, nil); a.err != nil || a.text != "{\"a\":1}\n\n\n{\"a\":1}\n\n\n" {
			t.Errorf("%q %v", a.text, a.err)
		}
	})
}

// TestAttackSlowBodyOfARevokedKey: a body without a limit on its length ends with the context of its request, although data arrives.
func TestAttackSlowBodyOfARevokedKey(t *testing.T) {
	t.Parallel()
	revoked := errors.New("revoked")
	ctx, revoke := context.WithCancelCause(t.Context())
	r := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader("0123456789"))
	body, b := SteadyBody(httptest.NewRecorder(), r), make([]byte, 1)
	if _, err := body.Read(b); err != nil {
		t.Fatal(err)
	}
	revoke(revoked)
	if n, err := body.Read(b); n != 0 || !errors.Is(err, revoked) {
		t.Errorf("%d bytes, %v", n, err)
	}
}
