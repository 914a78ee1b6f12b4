package tour

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// streams returns an application that accepts large bodies, streams events, and answers while it reads.
func streams() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Sum")
		_, _ = fmt.Fprintf(w, "%d %v", n, err)
		w.Header().Set("X-Sum", fmt.Sprint(n))
	})
	mux.HandleFunc("GET /download", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.CopyN(w, zeros{}, much)
	})
	mux.HandleFunc("POST /talk", func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_ = c.EnableFullDuplex()
		_ = c.Flush()
		for lines := bufio.NewReader(r.Body); ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = io.WriteString(w, "you said "+line)
			_ = c.Flush()
		}
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: first\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /refuse", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	return mux
}

// much is the number of bytes sent each way.
var much = nightly.Size[int64](32<<20, 1<<30)

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// TestURLStreams passes large bodies each way (a gibibyte in the nightly tier), events, trailers, expectations, and
// bodies in both directions concurrently, over HTTP/1.1 and HTTP/2. No data is held back until the end.
func TestURLStreams(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	var ln net.Listener
	if err := w.Intrude(box).InNetNS(func() (err error) {
		ln, err = net.Listen("tcp", ":8000")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: streams()}
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(ln) }()
	var made harness.PublicURL
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000}, &made); err != nil {
		t.Fatal(err)
	}
	for _, h2 := range []bool{false, true} {
		c := visitor(w)
		c.Timeout = harness.ExecMost
		c.Transport.(*http.Transport).ForceAttemptHTTP2 = h2
		s := &streamer{t, c, made.URL, map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[h2]}
		s.bulk()
		s.events()
		s.duplex()
		s.expectContinue()
	}
}

// streamer is a visitor of the application.
type streamer struct {
	*testing.T
	client *http.Client
	url    string
	proto  string
}

func (s *streamer) do(ctx context.Context, method, path string, body io.Reader, length int64) *http.Response {
	s.Helper()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, body)
	if err != nil {
		s.Fatal(err)
	}
	req.ContentLength = length
	if path == "/refuse" {
		req.Header.Set("Expect", "100-continue")
	}
	res, err := s.client.Do(req)
	if err != nil {
		s.Fatalf("%s %s: %v", s.proto, path, err)
	}
	s.Cleanup(func() { res.Body.Close() })
	if res.Proto != s.proto {
		s.Errorf("%s: %s", path, res.Proto)
	}
	return res
}

func (s *streamer) bulk() {
	s.Helper()
	length := map[string]int64{"HTTP/1.1": -1, "HTTP/2.0": much}[s.proto]
	res := s.do(s.Context(), "POST", "/upload", io.LimitReader(zeros{}, much), length)
	said, err := io.ReadAll(res.Body)
	if err != nil || string(said) != fmt.Sprint(much, " <nil>") || res.Trailer.Get("X-Sum") != fmt.Sprint(much) {
		s.Errorf("%s: %q, trailers %v, %v", s.proto, said, res.Trailer, err)
	}
	if n, err := io.Copy(io.Discard, s.do(s.Context(), "GET", "/download", nil, 0).Body); n != much || err != nil {
		s.Errorf("%s: %d bytes came, %v", s.proto, n, err)
	}
}

// events reads an event of an endless stream.
func (s *streamer) events() {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	line, err := bufio.NewReader(s.do(ctx, "GET", "/events", nil, 0).Body).ReadString('\n')
	if err != nil || line != "data: first\n" {
		s.Errorf("%s: %q, %v", s.proto, line, err)
	}
}

// duplex sends data after the answer has begun.
func (s *streamer) duplex() {
	s.Helper()
	r, w := io.Pipe()
	defer w.Close()
	lines := bufio.NewReader(s.do(s.Context(), "POST", "/talk", r, -1).Body)
	for _, say := range []string{"one\n", "two\n", "three\n"} {
		if _, err := io.WriteString(w, say); err != nil {
			s.Fatal(err)
		}
		if line, err := lines.ReadString('\n'); err != nil || line != "you said "+say {
			s.Errorf("%s: %q, %v", s.proto, line, err)
		}
	}
	w.Close()
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		s.Errorf("%s: %q, %v", s.proto, rest, err)
	}
}

// expectContinue sends Expect: 100-continue for a body that the application refuses.
func (s *streamer) expectContinue() {
	s.Helper()
	res := s.do(s.Context(), "POST", "/refuse", strings.NewReader("unwanted"), 8)
	if res.StatusCode != http.StatusForbidden {
		s.Errorf("%s: %s", s.proto, res.Status)
	}
}
