package ingress

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"boxgate/ingress/pages"
)

// poorProvider is an identity provider that refuses every code.
type poorProvider struct {
	*httptest.Server
	discoveries, codes atomic.Int64
	hold               chan struct{} // each answer receives a value from it; nil: answers are immediate
}

func newPoorProvider(t *testing.T, hold chan struct{}) *poorProvider {
	t.Helper()
	p := &poorProvider{hold: hold}
	answer := func(w http.ResponseWriter, r *http.Request, asked *atomic.Int64, status int, body any) {
		asked.Add(1)
		if p.hold != nil {
			select {
			case <-p.hold:
			case <-r.Context().Done():
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, &p.discoveries, 200, map[string]any{
			"issuer": p.URL, "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
		})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)       // without this the server does not notice that the gateway has closed the connection
		if r.Header.Get("Authorization") == "" { // the library repeats the code with the client's secret in the form
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer(w, r, &p.codes, 400, map[string]any{"error": "invalid_grant"})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// stepwise is a visitor with its own address, who follows no redirects.
func (f *fixture) stepwise(t *testing.T, address string) *http.Client {
	t.Helper()
	c := f.from(t, address)
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c
}

// begun is a sign-in that has reached the provider.
type begun struct{ state, cookie string }

// begin takes a browser to the provider.
func (f *fixture) begin(t *testing.T, c *http.Client) begun {
	t.Helper()
	first, _ := get(t, c, "https://one"+domain+pages.StartPath, browser)
	second, page := get(t, c, first.Header.Get("Location"), browser)
	at, err := url.Parse(second.Header.Get("Location"))
	if err != nil || at.Query().Get("state") == "" {
		t.Fatalf("%s to %q\n%s", second.Status, second.Header.Get("Location"), page)
	}
	cookie, _, _ := strings.Cut(second.Header.Get("Set-Cookie"), ";")
	return begun{at.Query().Get("state"), cookie}
}

// back returns from the provider with a code.
func (b begun) back(t *testing.T, c *http.Client, code string) *http.Response {
	t.Helper()
	resp, _ := get(t, c, accountOrigin+pages.ReturnPath+"?state="+b.state+"&code="+code, func(r *http.Request) {
		browser(r)
		r.Header.Set("Cookie", b.cookie)
	})
	return resp
}

// A sign-in sends the provider one code, and an address as many as it may guess credentials.
func TestAttackCodesForTheProvider(t *testing.T) {
	t.Parallel()
	p := newPoorProvider(t, nil)
	f := withAccounts(t, p.URL, record(t))
	f.tallies.mu.Lock()
	f.tallies.failures = 3
	f.tallies.mu.Unlock()
	c := f.client(t, true)
	once := f.begin(t, c)
	for i := range 5 {
		if resp := once.back(t, c, fmt.Sprint(i)); resp.StatusCode != 403 {
			t.Errorf("code %d: %s", i, resp.Status)
		}
	}
	if n := p.codes.Load(); n != 1 {
		t.Errorf("the provider was asked about %d codes of one sign-in", n)
	}
	var more []begun
	for range 5 {
		more = append(more, f.begin(t, c))
	}
	for i, b := range more {
		want := 403
		if i >= 2 {
			want = 429
		}
		if resp := b.back(t, c, "x"); resp.StatusCode != want || want == 429 && resp.Header.Get("Retry-After") == "" {
			t.Errorf("sign-in %d: %s", i, resp.Status)
		}
	}
	if n := p.codes.Load(); n != 3 {
		t.Errorf("the provider was asked about %d codes", n)
	}
	other := f.stepwise(t, "127.0.0.2")
	if resp := f.begin(t, other).back(t, other, "x"); resp.StatusCode != 403 {
		t.Errorf("another visitor: %s", resp.Status)
	}
}

// If many visitors return from a slow provider, it is sent 16 codes at a time. An address gets 4 of them, and the last quarter
// is for addresses without any. The others are asked to come again, and then succeed.
func TestAttackManyComeBackFromASlowProvider(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{}, 1000)
	p := newPoorProvider(t, hold)
	f := withAccounts(t, p.URL, record(t))
	hold <- struct{}{} // for the discovery
	var all []begun
	var clients []*http.Client
	for i := range 5 {
		c := f.stepwise(t, fmt.Sprintf("127.0.0.%d", i+1))
		for range 6 {
			all, clients = append(all, f.begin(t, c)), append(clients, c)
		}
	}
	var later sync.Map
	var done sync.WaitGroup
	for i, b := range all {
		done.Go(func() {
			switch resp := b.back(t, clients[i], "x"); {
			case resp.StatusCode == 503 && resp.Header.Get("Retry-After") != "":
				later.Store(i, true)
			case resp.StatusCode != 403:
				t.Errorf("sign-in %d: %s", i, resp.Status)
			}
		})
	}
	told := func() (list []int) {
		later.Range(func(i, _ any) bool { list = append(list, i.(int)); return true })
		return list
	}
	f.await(t, "the rest", func() bool { return len(told())+int(p.codes.Load()) == len(all) })
	if n := f.held(); n > exchangesMost || n < exchangesMost*3/4 {
		t.Errorf("%d hold a place", n)
	}
	for range len(all) {
		hold <- struct{}{}
	}
	done.Wait()
	asked := p.codes.Load()
	again := told()[0]
	if resp := all[again].back(t, clients[again], "x"); resp.StatusCode != 403 || p.codes.Load() != asked+1 {
		t.Errorf("one that came again: %s", resp.Status)
	}
}

// If many sign-ins begin while the provider is slow, its configuration is requested once. Each sign-in that waits for it holds
// a place.
func TestManyBeginWithASlowProvider(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	p := newPoorProvider(t, hold)
	f := withAccounts(t, p.URL, record(t))
	c := f.client(t, true)
	const many = 20
	var done sync.WaitGroup
	for range many {
		done.Go(func() { f.begin(t, c) })
	}
	f.await(t, "those who begin", func() bool { return f.held() == many })
	hold <- struct{}{}
	done.Wait()
	if n := p.discoveries.Load(); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
}
