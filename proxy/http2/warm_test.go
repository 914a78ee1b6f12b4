package http2_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

// The tests of this file send requests over connections that have already carried some: such requests are forwarded without a
// goroutine each until one of them has to wait.

// answers is a server with a response of each kind.
func answers(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	flush := func() { w.(http.Flusher).Flush() }
	switch r.URL.Path {
	case "/none":
		w.WriteHeader(204)
	case "/large":
		_, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20))
	case "/parts":
		for i := range 5 {
			fmt.Fprintf(w, "part %d ", i)
			flush()
		}
	case "/trailers":
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		_, _ = w.Write(body)
	case "/interim":
		w.WriteHeader(103)
		fmt.Fprint(w, "after")
	case "/fields":
		for i := range 100 {
			w.Header().Set("X-Field-"+strconv.Itoa(i), strings.Repeat("v", 100))
		}
	case "/broken":
		fmt.Fprint(w, "the beginning")
		flush()
		panic(http.ErrAbortHandler)
	default:
		fmt.Fprintf(w, "%s %s %s", r.Method, r.Header.Get("X-Api-Key"), body)
	}
}

// TestWarmConnections: every kind of response arrives as it was sent, one after the other and in parallel, with one event each.
func TestWarmConnections(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(true, answers)
	l.Policy(proxytest.AllowAll, map[string]map[string]string{proxytest.HostPort(port): {"X-Api-Key": "s3cret"}})
	client := l.HTTPClient(port, true)
	ask := func(method, path, body, want string, status int) {
		req, err := http.NewRequest(method, "https://"+proxytest.HostPort(port)+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		res, err := client.Do(req)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		if broken := path == "/broken"; res.StatusCode != status || string(got) != want || (err != nil) != broken {
			t.Errorf("%s %s: %d, %d bytes, %v", method, path, res.StatusCode, len(got), err)
		}
		if path == "/trailers" && res.Trailer.Get("Grpc-Status") != "0" {
			t.Errorf("trailers %v", res.Trailer)
		}
	}
	each := func(run func(func())) {
		run(func() { ask("GET", "/", "", "GET s3cret ", 200) })
		run(func() { ask("POST", "/", "hello", "POST s3cret hello", 200) })
		run(func() {
			ask("POST", "/", strings.Repeat("b", 100<<10), "POST s3cret "+strings.Repeat("b", 100<<10), 200)
		})
		run(func() { ask("HEAD", "/", "", "", 200) })
		run(func() { ask("GET", "/none", "", "", 204) })
		run(func() { ask("GET", "/large", "", strings.Repeat("x", 1<<20), 200) })
		run(func() { ask("GET", "/parts", "", "part 0 part 1 part 2 part 3 part 4 ", 200) })
		run(func() { ask("POST", "/trailers", "message", "message", 200) })
		run(func() { ask("GET", "/interim", "", "after", 200) })
		run(func() { ask("GET", "/fields", "", "", 200) })
		run(func() { ask("GET", "/broken", "", "the beginning", 200) })
	}
	const kinds, rounds = 11, 4
	each(func(f func()) { f() })
	var all sync.WaitGroup
	for range rounds - 1 {
		each(all.Go)
	}
	all.Wait()
	for _, e := range l.Events.Wait(t, kinds*rounds)[:kinds*rounds] {
		if e.Stage == policy.StageHTTP && (e.Verdict != policy.Allow || e.Status == 0 || e.Action != audit.ActionIntercept || len(e.Headers) != 1) {
			t.Errorf("%+v", e)
		}
	}
}

// warm returns a client whose connections have carried a request, and channels of the server's handler of /wait: come receives
// when a request arrives, cancelled when it is cancelled.
func warm(t *testing.T, l *proxytest.Rig) (client *http.Client, url string, come, cancelled chan bool) {
	t.Helper()
	come, cancelled = make(chan bool, 100), make(chan bool, 100)
	_, port := l.HTTPSServer(true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/wait" {
			return
		}
		if r.URL.RawQuery != "" {
			fmt.Fprint(w, r.URL.RawQuery)
			w.(http.Flusher).Flush()
		}
		come <- true
		<-r.Context().Done()
		cancelled <- true
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	client, url = l.HTTPClient(port, true), "https://"+proxytest.HostPort(port)
	proxytest.Get(t, client, url+"/", nil)
	return client, url, come, cancelled
}

// TestClientsThatLeaveCancelTheirRequests covers requests whose response has not begun, and ones whose response is incomplete.
func TestClientsThatLeaveCancelTheirRequests(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	client, url, come, cancelled := warm(t, l)
	for _, begun := range []string{"", "begun"} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "GET", url+"/wait?"+begun, nil)
		if err != nil {
			t.Fatal(err)
		}
		if begun == "" {
			go func() {
				<-come
				cancel()
			}()
		}
		res, err := client.Do(req)
		if err == nil {
			_, _ = io.ReadFull(res.Body, make([]byte, len(begun)))
			cancel()
			_, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%q: %v", begun, err)
		}
		<-cancelled
		l.Want("the request that was cancelled", func(e audit.Event) bool {
			return e.Path == "/wait" && e.Verdict == policy.Allow && e.BytesIn == int64(len(begun)) && e.Error != ""
		})
		cancel()
	}
}

// TestWaitingRequestsAreCut: requests that a new policy denies end immediately, with or without a goroutine that waits for the
// response.
func TestWaitingRequestsAreCut(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	client, url, come, cancelled := warm(t, l)
	const requests = 20
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			if res, err := client.Get(url + "/wait"); err == nil {
				t.Errorf("the response is %d", res.StatusCode)
				_ = res.Body.Close()
			}
		})
		<-come
	}
	l.Policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
	l.Proxy.Recheck(l.Box.ID)
	all.Wait()
	for range requests {
		select {
		case <-cancelled:
		case <-time.After(time.Minute):
			t.Fatal("the server still serves a request")
		}
	}
	cut := 0
	for _, e := range l.Events.Wait(t, requests+1) {
		if e.Stage == policy.StageHTTP && e.Verdict == policy.Deny && e.Reason == name.ReasonPolicyChanged {
			cut++
		}
	}
	if cut < requests {
		t.Errorf("%d events of requests that were cut", cut)
	}
}

// TestPlaceholderInABodyThatArrivesWhole: with its head, in one record.
func TestPlaceholderInABodyThatArrivesWhole(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	up := &proxytest.Recorder{}
	_, port := l.HTTPSServer(true, up.Serve)
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": "the-value"}}}`)
	c := l.DialPair(proxytest.API, port, true, "h2")
	r := newRawH2(t, c)
	head := []string{":method", "POST", ":scheme", "https", ":authority", proxytest.HostPort(port), ":path", "/"}
	if status := r.ask(head...); status != "200" {
		t.Fatal(status)
	}
	up.Take()
	for _, body := range []string{"nothing", "a " + proxytest.TokenFor("KEY"), "nothing"} {
		var out bytes.Buffer
		frames := http2.NewFramer(&out, nil)
		r.buf.Reset()
		for i := 0; i < len(head); i += 2 {
			_ = r.enc.WriteField(hpack.HeaderField{Name: head[i], Value: head[i+1]}) // into memory
		}
		id := r.stream
		r.stream += 2
		if err := errors.Join(frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.buf.Bytes(), EndHeaders: true}),
			frames.WriteData(id, true, []byte(body))); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(out.Bytes()); err != nil {
			t.Fatal(err)
		}
		want, sent := "200", "nothing"
		if body != "nothing" {
			want, sent = "403", ""
		}
		if status := r.status(id); status != want {
			t.Errorf("%q: %s", body, status)
		}
		if _, got := up.Take(); got != sent {
			t.Errorf("%q: the upstream received %q", body, got)
		}
	}
}
