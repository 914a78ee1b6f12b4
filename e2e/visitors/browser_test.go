package visitors

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

var (
	//go:embed testdata/page.html
	page string
	//go:embed testdata/worker.js
	worker string
)

// application returns a page with a WebSocket, a stream of events and a service worker.
func application() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cross-Origin-Opener-Policy", "same-origin") // allows it to read windows of its origin with the same policy
		respond("text/html; charset=utf-8", page)(w, r)
	})
	mux.HandleFunc("GET /worker.js", respond("text/javascript", worker))
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n, err)
	})
	mux.HandleFunc("GET /cookies", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Join(r.Header["Cookie"], "; "))
	})
	mux.HandleFunc("GET /socket", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		for {
			kind, said, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, said) != nil {
				return
			}
		}
	})
	return mux
}

// opened is Chromium's view of a page.
type opened struct {
	Status                   int
	Protocol, Title, Address string
	Popup                    string // the gateway's page, as read by the application's script
	Result                   map[string]string
	Failed                   []string // requests, with Chromium's reasons
	Cookies                  []struct {
		Name, SameSite, Domain string
		HTTPOnly, Secure       bool
	}
}

// browse opens an address of the site in Chromium, and types a token into the page if it requests one.
func (s *site) browse(url, token string) opened {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), 3*time.Minute)
	defer cancel()
	home := s.T.TempDir()
	database := "sql:" + filepath.Join(home, ".pki/nssdb")
	for _, argv := range [][]string{
		{"mkdir", "-p", filepath.Join(home, ".pki/nssdb")},
		{"certutil", "-N", "-d", database, "--empty-password"},
		{"certutil", "-A", "-d", database, "-t", "C,,", "-n", "boxgate", "-i", s.roots},
	} {
		if out, err := s.run(ctx, home, argv...); err != nil {
			s.T.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	script, err := filepath.Abs("testdata/visit.js")
	if err != nil {
		s.T.Fatal(err)
	}
	argv := []string{"node", script, filepath.Join(unpacked, "usr/lib/chromium/chromium-headless-shell"), url, s.host, s.gateway}
	if token != "" {
		argv = append(argv, token)
	}
	out, err := s.run(ctx, home, argv...)
	if err != nil {
		s.T.Fatalf("Chromium: %v\n%s", err, out)
	}
	var seen opened
	if err := json.Unmarshal([]byte(out), &seen); err != nil {
		s.T.Fatalf("%v\n%s", err, out)
	}
	return seen
}

// assertWorks checks that everything on the page worked, and that its application received only its own cookies.
func (o opened) assertWorks(t *testing.T) {
	t.Helper()
	for what, want := range map[string]string{
		"socket": "hello", "events": "0 1 2", "worker": "the worker answers", "upload": "1048576 <nil>", "cookie": "theirs=1",
	} {
		if got := o.Result[what]; got != want {
			t.Errorf("%s: %q, want %q; Chromium says: %q", what, got, want, o.Failed)
		}
	}
	if o.Popup != "SecurityError" {
		t.Errorf("the application reads a page of the gateway: %q", o.Popup)
	}
	if o.Protocol != "h2" {
		t.Errorf("opened over %q", o.Protocol)
	}
}

// A page with a WebSocket, events, a service worker, an upload and cookies works on an open public URL.
func TestChromiumOpensAPage(t *testing.T) {
	t.Parallel()
	s := newSite(t, application(), map[string]any{})
	seen := s.browse(s.URL, "")
	if seen.Status != http.StatusOK {
		t.Errorf("status %d", seen.Status)
	}
	seen.assertWorks(t)
}

// A visitor signs in on the gateway's page, or by a token in a shared address. Then the page works like an open one:
// its WebSocket, events and uploads use the browser's sign-in. Its application sees no trace of the sign-in.
func TestChromiumSignsIn(t *testing.T) {
	t.Parallel()
	s := newSite(t, application(), map[string]any{"bearer_token": true})
	for how, seen := range map[string]opened{
		"on the page":    s.browse(s.URL+"/?who=cares", s.Token),
		"by the address": s.browse(s.URL+"/?who=cares&boxgate_token="+s.Token, ""),
	} {
		t.Run(how, func(t *testing.T) {
			seen.assertWorks(t)
			if how == "on the page" && (seen.Status != http.StatusUnauthorized || !strings.Contains(seen.Title, "Sign in")) {
				t.Errorf("the page: %d, %q", seen.Status, seen.Title)
			}
			if want := s.URL + "/?who=cares"; seen.Address != want {
				t.Errorf("ended at %s, not %s", seen.Address, want)
			}
			session := 0
			for _, c := range seen.Cookies {
				if strings.HasPrefix(c.Name, "__Host-boxgate") && c.HTTPOnly && c.Secure && c.SameSite == "Lax" && c.Domain == s.host {
					session++
				}
			}
			if session != 1 {
				t.Errorf("cookies %+v", seen.Cookies)
			}
		})
	}
}
