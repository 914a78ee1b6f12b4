package e2b

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// TestAttackStrangersMakeUpSandboxes: a stranger who makes up names of sandboxes, more than the gateway remembers boxes,
// displaces no decision of a box, and does not learn which sandboxes exist. At one that exists, the stranger's requests are logged by their number.
func TestAttackStrangersMakeUpSandboxes(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *config.Config) { c.Ingress.HTTP = "127.0.0.1:80" })
	box := s.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	s.MustSh(box, "curl -s https://evil.example.net/; true")
	theft := func(e audit.Event) bool { return e.Name == "evil.example.net" && e.Verdict != policy.Allow }
	s.Event(box, theft)
	c, err := s.Net.Gateway().DialContext(t.Context(), "tcp", "127.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	r := bufio.NewReader(c)
	answer := "" // to the latest request, with its ID replaced
	ask := func(id string) (status int) {
		if _, err := fmt.Fprintf(c, "GET /files?path=/etc/passwd HTTP/1.1\r\nHost: 49983-%s.%s\r\n\r\n", id, domain); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Header.Del("Date")
		answer = strings.ReplaceAll(fmt.Sprint(resp.Status, resp.Header, string(body)), id, "ID")
		return resp.StatusCode
	}
	first, shown := ask(box), answer
	if unknown := ask("0123456789abcdef"); first != http.StatusUnauthorized || unknown != first || answer != shown {
		t.Errorf("%d at a sandbox, and %d where there is none: %s\n%s", first, unknown, shown, answer)
	}
	for i := range 5000 {
		ask(fmt.Sprintf("%016x", i))
	}
	for range 1000 {
		ask(box)
	}
	found := false
	events := s.Events(box)
	for _, e := range events {
		found = found || theft(e)
	}
	if !found || len(events) > 100 {
		t.Errorf("%d decisions of the box are there, its own among them: %v", len(events), found)
	}
}
