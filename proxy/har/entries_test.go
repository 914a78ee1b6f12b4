package har_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"boxgate/internal/memory"
	"boxgate/policy/match"
	"boxgate/proxy"
	"boxgate/proxy/har"
	"boxgate/proxy/proxytest"
)

// TestEntries: the requests and responses are those of the box, over each version of HTTP.
func TestEntries(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, _ *proxytest.Recorder) {
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		r := record(t, l, har.Options{Bodies: 100})
		if _, _, ok := l.Proxy.Capture(l.Box, har.Options{}); ok {
			t.Error("a second capture has begun")
		}
		url := "https://" + proxytest.HostPort(port) + "/a%20b?x=1&token=t0psecret&x=%C3%A9"
		proxytest.Send(t, client, "POST", url, http.Header{
			"Cookie": {"sid=private; theme=private"}, "Authorization": {"Bearer private"}, "X-Api-Key": {"private"}, "Accept": {"text/html"}, "Content-Type": {"text/plain"},
		}, strings.NewReader("hello"))
		a := r.finish(1)
		e := a.Log.Entries[0]
		version := "HTTP/2"
		if strings.Contains(t.Name(), "/h1_to") {
			version = "HTTP/1.1"
		}
		if e.Request.Method != "POST" || e.Request.URL != strings.Replace(url, "t0psecret", "%5Bredacted%5D", 1) || e.Request.HTTPVersion != version || e.Response.HTTPVersion != version {
			t.Errorf("%+v", e.Request)
		}
		if e.Request.BodySize != 5 || e.Request.PostData.Text != "hello" || e.Response.Status != 200 || e.Time <= 0 || e.Timings["wait"] <= 0 {
			t.Errorf("%+v", e)
		}
		if strings.Contains(r.text.String(), "private") || strings.Contains(r.text.String(), "t0psecret") {
			t.Errorf("credentials are shown: %s", r.text.String())
		}
		for name, want := range map[string]string{"Authorization": "Bearer [redacted]", "Cookie": har.Redacted, "X-Api-Key": har.Redacted, "Accept": "text/html", "X-Rule": har.SetByGateway} {
			if got := field(e.Request.Headers, name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if field(e.Request.QueryString, "x") != "1" || len(e.Request.QueryString) != 3 || field(e.Request.Cookies, "theme") != har.Redacted {
			t.Errorf("%+v %+v", e.Request.QueryString, e.Request.Cookies)
		}
		if a.Log.Version != "1.2" || a.Log.Boxgate.Ended != har.EndTime || e.Boxgate.Verdict != "allow" || e.Boxgate.PolicyVersion == 0 {
			t.Errorf("%+v", a.Log)
		}
	})
}

// TestRefusedRequests: an entry has the response of the gateway, the reason and the rule.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		_, port := l.HTTPSServer(h2, mirror)
		spec := proxytest.AllowAll
		spec.Rules = []match.RequestRule{{Hosts: []string{"*"}, Methods: []string{"DELETE"}, Action: "deny"}}
		l.Policy(spec, proxytest.Intercepted(port))
		r := record(t, l, har.Options{Bodies: 1000})
		if status, _ := proxytest.Send(t, l.HTTPClient(port, h2), "DELETE", "https://"+proxytest.HostPort(port)+"/a", nil, nil); status != http.StatusForbidden {
			t.Fatal(status)
		}
		e := r.finish(1).Log.Entries[0]
		if e.Response.Status != 403 || e.Boxgate.Verdict != "deny" || e.Boxgate.Reason == "" || e.Boxgate.Rule == "" || !strings.Contains(e.Response.Content.Text, e.Boxgate.Reason) {
			t.Errorf("%+v", e)
		}
	}
}

// TestHostileExchanges: whatever box and server send, each exchange is one entry of a valid archive.
func TestHostileExchanges(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	port := l.RawServer(true, func(c net.Conn, in *bufio.Reader) {
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			switch req.URL.Path {
			case "/cut":
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
				return
			case "/silent":
				return
			case "/coded":
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Encoding: unheard-of\r\nContent-Length: 3\r\n\r\nabc")
			case "/events":
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\ndata: x\n\n")
			case "/bomb":
				bomb := packed(strings.Repeat("\x00", 1<<20))
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
				cw := chunks{c}
				_, _ = cw.Write(bomb)
				_, _ = io.WriteString(c, "0\r\nX-End: trailer\r\n\r\n")
			default:
				_, _ = io.WriteString(c, "HTTP/1.1 200 O\xffK\r\nX-Bytes: \xff\xfe</script>\r\nContent-Length: 4\r\n\r\n\x00\xff\"\\")
			}
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	r := record(t, l, har.Options{Bodies: 64})
	n := 0
	ask := func(request string) {
		n++
		c := l.DialPair(proxytest.API, port, true)
		_, _ = io.WriteString(c, strings.ReplaceAll(request, "HOST", proxytest.HostPort(port)))
		_, _ = io.Copy(io.Discard, c)
	}
	const tail = "Host: HOST\r\nConnection: close\r\n\r\n"
	ask("GET /text?\"</script>\x01 HTTP/1.1\r\n" + tail)
	ask("GET /huge?" + strings.Repeat("a", 30_000) + " HTTP/1.1\r\nX-Huge: " + strings.Repeat("b", 30_000) + "\r\n" + tail)
	for _, path := range []string{"/cut", "/silent", "/coded", "/events", "/bomb", "/bytes"} {
		ask("GET " + path + " HTTP/1.1\r\n" + tail)
	}
	ask("POST /trailers HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + strings.Replace(tail, "\r\n\r\n", "\r\n\r\n3\r\nabc\r\n0\r\nX-End: 1\r\n\r\n", 1))
	a := r.finish(n)
	entries := map[string]entry{}
	for _, e := range a.Log.Entries {
		path, _, _ := strings.Cut(e.Request.URL[len("https://"+proxytest.HostPort(port)):], "?")
		entries[path] = e
	}
	if e := entries["/cut"]; e.Response.Status != 200 || e.Response.Content.Text != "only this" || e.Response.Content.Comment == "" || e.Boxgate.Error == "" {
		t.Errorf("%+v", e)
	}
	if e := entries["/silent"]; e.Response.Status != 502 || e.Boxgate.Error == "" {
		t.Errorf("%+v", e)
	}
	if e := entries["/coded"]; e.Response.Content.Text != "" || e.Response.Content.Comment == "" {
		t.Errorf("%+v", e)
	}
	if e := entries["/events"]; e.Response.Content.Text != "" || e.Response.Content.Comment == "" || e.Response.Content.Size != 9 {
		t.Errorf("%+v", e)
	}
	if e := entries["/bomb"]; len(e.Response.Content.Text) > 100 || field(e.Response.Trailers, "X-End") != "trailer" {
		t.Errorf("%+v", e)
	}
	if e := entries["/bytes"]; e.Response.Content.Encoding != "base64" || e.Response.Content.Text != "AP8iXA==" {
		t.Errorf("%+v", e)
	}
	if e := entries["/trailers"]; e.Request.BodySize != 3 || e.Response.Status != 200 {
		t.Errorf("%+v", e)
	}
}

type chunks struct{ io.Writer }

func (c chunks) Write(b []byte) (int, error) {
	head := []byte{}
	const digits = "0123456789abcdef"
	for n := len(b); n > 0; n /= 16 {
		head = append([]byte{digits[n%16]}, head...)
	}
	return c.Writer.Write(append(append(append(head, "\r\n"...), b...), "\r\n"...))
}

// TestCaptureEndsInABody: an exchange that has not ended is not in the archive, and passes.
func TestCaptureEndsInABody(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		more := make(chan struct{})
		_, port := l.HTTPSServer(h2, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "begin ")
			_ = http.NewResponseController(w).Flush()
			<-more
			_, _ = io.WriteString(w, "end")
		})
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		r := record(t, l, har.Options{Bodies: 1000})
		res, err := l.HTTPClient(port, h2).Get("https://" + proxytest.HostPort(port) + "/")
		if err != nil {
			t.Fatal(err)
		}
		held := l.Usages.Of(l.Box).Memory.InUse()
		a := r.finish(0)
		r.release()
		close(more)
		if text := proxytest.ReadAll(t, res.Body); text != "begin end" || len(a.Log.Entries) != 0 {
			t.Errorf("%q, %+v", text, a)
		}
		l.Events.Wait(t, 1)
		proxytest.Await(t, "the release of memory", func() bool { return l.Usages.Of(l.Box).Memory.InUse() < held })
		next := record(t, l, har.Options{})
		if res, _ := proxytest.Get(t, l.HTTPClient(port, h2), "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 {
			t.Error(res.Status)
		}
		if got := next.finish(1).Log.Entries; len(got) != 1 {
			t.Errorf("%+v", got)
		}
	}
}

// TestMemoryOfTheBox: a box without memory is served, and its archive says that parts are missing.
func TestMemoryOfTheBox(t *testing.T) {
	t.Parallel()
	const budget = 8 << 20
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) { c.Memory = memory.New(budget, budget) })
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20)) })
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	r := record(t, l, har.Options{Bodies: har.MaxBodies})
	client := l.HTTPClient(port, false)
	const requests = 20
	for range requests {
		if res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil); res.StatusCode != 200 || len(text) != 1<<20 {
			t.Fatal(res.Status, len(text))
		}
	}
	l.Events.Wait(t, requests)
	if l.Usages.Of(l.Box).Memory.InUse() > budget {
		t.Error("the capture takes more than the box has")
	}
	waiting := len(r.capture.Entries())
	a := r.finish(waiting)
	incomplete := 0
	for _, e := range a.Log.Entries {
		if e.Boxgate.Incomplete {
			incomplete++
		}
	}
	if incomplete == 0 || uint64(waiting)+a.Log.Boxgate.Dropped != requests {
		t.Errorf("%d entries, %d of them incomplete, %+v", waiting, incomplete, a.Log.Boxgate)
	}
}

// TestBoxDeleted: the capture ends with its box.
func TestBoxDeleted(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll)
	r := record(t, l, har.Options{})
	l.Proxy.CloseBox(l.Box.ID)
	if r.capture.Reason() != har.EndBox {
		t.Error(r.capture.Reason())
	}
}
