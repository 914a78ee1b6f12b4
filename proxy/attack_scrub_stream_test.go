package proxy

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
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
			l := newRig(t, allowAll, patient)
			l.with(func(c *Config) { c.Secrets = sources{"s": is("placeholder-value-987654")} })
			seen, opened := make(chan string, 10), make(chan struct{})
			_, port := l.httpsServer(v.up, func(w http.ResponseWriter, r *http.Request) {
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
				l.rules(allowAll, `{"`+hostPort(port)+`": {"headers": {`+literal+`}, "placeholders": {"KEY": {"secret": "s"}}, "scrub": true}}`)
			}
			rule("")
			client := l.httpClientLater(port, v.client)
			res, err := client.Get("https://" + hostPort(port) + "/stream")
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
				if res, text := get(t, client, "https://"+hostPort(port)+"/", http.Header{"X-Token": {tokenFor("KEY")}}); res.StatusCode != 200 {
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
