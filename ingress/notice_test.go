package ingress

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"boxgate/policy"
)

// A browser gets a page, a program gets problem details, with the same status and fields, over both versions of HTTP.
func TestBrowsersGetPagesProgramsGetProblems(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	gone := record(t)
	f.expose("bearer", box.Server, Auth{Bearer: digest(BearerDigest("tok"))})
	f.expose("down", gone.Server, Auth{Open: true})
	gone.Close()
	asleep := start(t, func(c *Config) {
		c.Boxes = &sleepers{wake: func(context.Context, policy.BoxID, uint16) error { return errors.New("not yet") }}
	})
	asleep.expose("asleep", box.Server, Auth{Open: true})
	browser := func(r *http.Request) {
		r.Header.Set("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
	}
	for _, h2 := range []bool{false, true} {
		for host, c := range map[string]struct {
			f    *fixture
			want int
		}{"bearer": {f, 401}, "nothing": {f, 404}, "down": {f, 502}, "asleep": {asleep, 503}} {
			client := c.f.client(t, h2)
			url := "https://" + host + domain + "/<script>alert(1)</script>"
			page, text := get(t, client, url, browser)
			if page.StatusCode != c.want || page.Header.Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(text, "<h1>") ||
				strings.Contains(text, "alert") || !strings.Contains(page.Header.Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("h2 %v, %s: %s %v\n%s", h2, host, page.Status, page.Header, text)
			}
			problem, text := get(t, client, url, nil)
			if problem.StatusCode != c.want || problem.Header.Get("Content-Type") != "application/problem+json" || !strings.Contains(text, `"remedy":`) {
				t.Errorf("h2 %v, %s: %s %v\n%s", h2, host, problem.Status, problem.Header, text)
			}
			for _, name := range []string{"Retry-After", "Cache-Control", "Strict-Transport-Security"} {
				if page.Header.Get(name) != problem.Header.Get(name) {
					t.Errorf("%s: %s %q and %q", host, name, page.Header.Get(name), problem.Header.Get(name))
				}
			}
		}
	}
}
