package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"boxgate/api"
)

// TestProgressOfASlowGateway: a request whose answer takes long is shown in lines, until it ends; a quick one is not shown.
func TestProgressOfASlowGateway(t *testing.T) {
	t.Parallel()
	answer := make(chan struct{})
	gateway := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-answer
		}
	}))
	t.Cleanup(gateway.Close)
	out, in := io.Pipe()
	p := NewProgress(in, func() string { return "waiting" })
	p.quiet = 20 * time.Millisecond
	client := api.NewClient(gateway.URL, "")
	client.OnWait(p.Begin)
	ended := make(chan error, 1)
	go func() {
		ended <- client.Do(t.Context(), http.MethodGet, "/slow", nil, nil)
		in.Close()
	}()
	var line [4096]byte
	for range 3 {
		n, err := out.Read(line[:])
		if got := string(line[:n]); err != nil || !regexp.MustCompile(`^waiting, \d+ s\n$`).MatchString(got) {
			t.Fatalf("%q %v", got, err)
		}
	}
	close(answer)
	rest, err := io.ReadAll(out)
	if err != nil || strings.Count(string(rest), "\n") > 1 { // the end may cross one line
		t.Errorf("%q %v", rest, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}

	var quick strings.Builder
	p = NewProgress(&quick, func() string { return "waiting" })
	client.OnWait(p.Begin)
	if err := client.Do(t.Context(), http.MethodGet, "/quick", nil, nil); err != nil || quick.Len() > 0 {
		t.Errorf("%q %v", quick.String(), err)
	}
}

// TestProgressOnATerminal: the text is one line that is cleared at the end.
func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	screen, out := io.Pipe()
	p := NewProgress(out, func() string { return "waiting" })
	p.quiet, p.terminal = 20*time.Millisecond, true
	end := p.Begin()
	inner := p.Begin()
	var text [4096]byte
	for range 3 {
		n, err := screen.Read(text[:])
		if got := string(text[:n]); err != nil || !regexp.MustCompile(`^\r\x1b\[Kwaiting, \d+ s$`).MatchString(got) {
			t.Fatalf("%q %v", got, err)
		}
	}
	go func() {
		inner()
		inner() // a second call has no effect
		end()
		out.Close()
	}()
	rest, err := io.ReadAll(screen)
	if err != nil || !strings.HasSuffix(string(rest), "\r\x1b[K") || strings.Contains(string(rest), "\n") {
		t.Errorf("%q %v", rest, err)
	}
}
