package exchange_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// TestAttackSecretOfALaterRequestInAnOpenStream: a box opens a stream of what the server receives, as collectors of requests
// have them, and then sends the secret with another request: for the first time, or after it has changed.
func TestAttackSecretOfALaterRequestInAnOpenStream(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name       string
		client, up bool
	}{{"h1 to h1", false, false}, {"h2 to h2", true, true}, {"h2 to h1", true, false}} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			l.With(func(c *proxy.Config) { c.Secrets = proxytest.Sources{"s": proxytest.Fixed("placeholder-value-987654")} })
			seen, opened := make(chan string, 10), make(chan struct{})
			_, port := l.HTTPSServer(v.up, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/stream" {
					seen <- r.Header.Get("X-Key") + " " + r.Header.Get("X-Token")
					return
				}
				_ = http.NewResponseController(w).Flush()
				close(opened)
				for range 2 {
					select {
					case what := <-seen:
						_, _ = io.WriteString(w, "received "+what+" .\n")
						_ = http.NewResponseController(w).Flush()
					case <-r.Context().Done():
						return
					}
				}
			})
			rule := func(literal string) {
				l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {`+literal+`}, "placeholders": {"KEY": {"secret": "s"}}, "scrub": true}}`)
			}
			rule("")
			client := l.HTTPClientLater(port, v.client)
			res, err := client.Get("https://" + proxytest.HostPort(port) + "/stream")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			<-opened
			lines := bufio.NewReader(res.Body)
			for i, want := range []string{"received  ************************ .\n", "received ****************** ************************ .\n"} {
				if i == 1 {
					rule(`"X-Key": "changed-0123456789"`)
				}
				if res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", http.Header{"X-Token": {proxytest.TokenFor("KEY")}}); res.StatusCode != 200 {
					t.Fatalf("%d %s", res.StatusCode, text)
				}
				line, err := lines.ReadString('\n')
				if err != nil || line != want || strings.Contains(line, "value") {
					t.Errorf("the box reads %q %v", line, err)
				}
			}
		})
	}
}
