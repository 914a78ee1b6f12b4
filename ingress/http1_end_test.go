package ingress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// The box sees that its client has gone, and is not kept busy by a client that gave up.
func TestDisconnectsReachTheBox(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	gone := make(chan error, 2)
	f.script(t, "one", func(_ net.Conn, in *bufio.Reader) {
		_, _ = http.ReadRequest(in)
		_, err := in.ReadByte()
		gone <- err
	})
	f.script(t, "upload", func(_ net.Conn, in *bufio.Reader) {
		r, _ := http.ReadRequest(in)
		_, err := io.Copy(io.Discard, r.Body)
		gone <- err
	})
	for host, more := range map[string]string{"one": "", "upload": "Content-Length: 100\r\n"} {
		c := f.connectTo(t, host+domain)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+domain+"\r\n"+more+"\r\n")
		if host == "upload" {
			_, _ = io.WriteString(c, "some of it")
		} else {
			f.await(t, "a connection to the box", func() bool { return f.active.count() == 1 })
		}
		c.Close()
		select {
		case err := <-gone:
			if err == nil {
				t.Errorf("%s: the box takes what it has for the whole", host)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: the box was not told", host)
		}
	}
}

// Revocation cuts a request at any stage: connecting to the box, awaiting its response, or receiving the client's body.
func TestRevocationCutsWhateverIsWaitedFor(t *testing.T) {
	t.Parallel()
	for label, tt := range map[string]struct {
		dial func(context.Context, Target) (net.Conn, error)
		head string
		want string
	}{
		"the dial":   {dial: func(ctx context.Context, _ Target) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }, want: "401"},
		"the answer": {want: "401"},
		"the body":   {head: "Content-Length: 100\r\n", want: "401"},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			f := start(t, func(c *Config) { c.Dial = tt.dial })
			f.script(t, "one", func(_ net.Conn, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) })
			c := f.connectTo(t, "one"+domain)
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: one.preview.test\r\n"+tt.head+"\r\n")
			f.await(t, "the request", func() bool { return f.active.count() == 1 })
			f.remove("one" + domain)
			f.CloseURL("one")
			answer, err := io.ReadAll(c)
			if err == nil && len(answer) > 0 && !strings.HasPrefix(string(answer), "HTTP/1.1 "+tt.want) {
				t.Errorf("%q, %v", answer, err)
			}
			e := f.event(t, reason(name.ReasonURLAuth))
			if e.Verdict != policy.Deny || e.Error != errCut.Error() {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A graceful shutdown lets a response end, closes idle connections immediately, and announces to the client that the
// connection ends.
func TestShutdownLetsResponsesEnd(t *testing.T) {
	t.Parallel()
	f := startWith(t, nil, func(g *Ingress) { g.arrival = 50 * time.Millisecond })
	begun, proceed := make(chan struct{}), make(chan struct{})
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		_, _ = http.ReadRequest(in)
		close(begun)
		<-proceed
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		_, _ = in.ReadByte()
	})
	idle := f.connectTo(t, "one"+domain)
	c := f.connectTo(t, "one"+domain)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: one.preview.test\r\n\r\n")
	<-begun
	ended := make(chan error, 1)
	go func() { ended <- f.Shutdown(t.Context()) }()
	if _, err := idle.Read(make([]byte, 1)); err == nil {
		t.Error("an idle connection stays open")
	}
	close(proceed)
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasSuffix(string(answer), "hi") || !strings.Contains(string(answer), "Connection: close") {
		t.Errorf("%q, %v", answer, err)
	}
	c.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Half a head, or a silent client, holds a connection only for ReadHeaderTimeout.
func TestSlowHeadsAreCut(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.ReadHeaderTimeout = 50 * time.Millisecond })
	for _, secure := range []bool{true, false} {
		for _, text := range []string{"", "GET / HTTP/1.1\r\nHost: on"} {
			c, err := net.Dial("tcp", map[bool]string{true: f.https, false: f.plain}[secure])
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, text)
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.ReadAll(c); errors.Is(err, context.DeadlineExceeded) || err != nil && strings.Contains(err.Error(), "timeout") {
				t.Errorf("TLS %v, %q: the connection stays open", secure, text)
			}
			c.Close()
		}
	}
}

// If a box breaks off or sends an invalid response during an upload, the box is blamed, not the client.
func TestBoxFailsDuringAnUpload(t *testing.T) {
	t.Parallel()
	for label, answer := range map[string]string{"it closes": "", "it speaks another protocol": "SMTP ready\r\n"} {
		for _, body := range []string{"Expect: 100-continue\r\n\r\n", "\r\n" + strings.Repeat("HEAD", 1000)} {
			f := start(t, nil)
			f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
				_, _ = http.ReadRequest(in)
				_, _ = io.WriteString(c, answer)
			})
			c := f.connectTo(t, "one"+domain)
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: one.preview.test\r\nContent-Length: 1000000\r\n"+body)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatalf("%s: %v", label, err)
			}
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != http.StatusBadGateway || !strings.Contains(string(text), "does not answer") {
				t.Errorf("%s: %s, %q", label, resp.Status, text)
			}
			f.event(t, func(e audit.Event) bool { return e.Reason == name.ReasonURLUnavailable && e.Status == 502 })
		}
	}
}

// A response that ends just when its request is recorded as open does not disturb the requests behind it.
func TestRequestsThatEndWhenTheyAreRecorded(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const opens = 250 * time.Millisecond // in package audit
	f.script(t, "one", func(c net.Conn, in *bufio.Reader) {
		for i := 0; ; i++ {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			time.Sleep(opens - 2*time.Millisecond + time.Duration(i)*500*time.Microsecond)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		}
	})
	var all sync.WaitGroup
	for range 50 {
		c := f.connectTo(t, "one"+domain)
		all.Go(func() {
			_, _ = io.WriteString(c, strings.Repeat("GET / HTTP/1.1\r\nHost: one.preview.test\r\n\r\n", 8))
			in := bufio.NewReader(c)
			for range 8 {
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
			}
		})
	}
	all.Wait()
	f.CloseURL("one")
}
