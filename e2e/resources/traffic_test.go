package resources

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/policy"
	"boxgate/policy/name"
)

// A box sends and receives no faster than limits.send_bytes_per_second and receive_bytes_per_second, also through the
// proxy: where its TLS is terminated, and where it is spliced.
func TestRatesHoldThroughTheProxy(t *testing.T) {
	t.Parallel()
	const rate = 512 << 10
	w := harness.NewWorld(t, func(c *config.Config) { c.Limits.Send, c.Limits.Receive = rate, rate })
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"Authorization": "Bearer " + harness.TestSecret}},
	})
	for _, host := range []string{"api.example.com", "www.example.com"} {
		down := w.MustSh(box, "curl -sS -f -o /dev/null -w '%{time_total}' https://"+host+"/bytes/"+strconv.Itoa(3*rate))
		if seconds := number(t, down); seconds < 2 {
			t.Errorf("%s: 3 seconds' worth were received in %v s", host, seconds)
		}
		up := w.MustSh(box, "head -c "+strconv.Itoa(4*rate)+" /dev/zero | curl -sS -f -o /dev/null -w '%{time_total}' --data-binary @- https://"+host+"/echo")
		if seconds := number(t, up); seconds < 2 { // a second's worth may be sent in a burst
			t.Errorf("%s: 4 seconds' worth were sent in %v s", host, seconds)
		}
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return f
}

// A launched box trusts the roots of proxy.upstream_ca_files, where TLS is not intercepted, through its bundle. A box
// from its snapshot has them once.
func TestBoxesTrustAddedRoots(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t) // its hosts have certificates of such a root
	policy := map[string]any{"network_policy": harness.Custom("www.example.com")}
	box := w.Create(policy)
	const fetch = `curl -sS -f https://www.example.com/echo >/dev/null &&
		python3 -c 'import urllib.request as u; print(u.urlopen("https://www.example.com/echo").status)'`
	harness.Contains(t, w.MustSh(box, fetch), "200")
	const count = "grep -c BEGIN /etc/ssl/certs/ca-certificates.crt"
	before := w.MustSh(box, count)
	taken, code := w.GatewayCommand("box", "snapshot", box)
	if code != cli.ExitOK {
		t.Fatalf("%d: %s", code, taken)
	}
	policy["snapshot_id"] = strings.TrimSpace(taken)
	var copied struct{ ID string }
	if err := w.Client.Do(t.Context(), "POST", "/v2/box/from-snapshot", policy, &copied); err != nil {
		t.Fatal(err)
	}
	again := copied.ID
	harness.Contains(t, w.MustSh(again, fetch), "200")
	if after := w.MustSh(again, count); after != before {
		t.Errorf("the bundle had %s certificates, and has %s in a box from a snapshot", before, after)
	}
}

// TestQuota: a box that has used up its traffic quota is cut off: traffic of the kernel and the proxy, DNS, open
// connections, and visitors. Another box is not affected. Neither a new policy nor a restart of the gateway helps; a
// larger quota does.
func TestQuota(t *testing.T) {
	t.Parallel()
	const most = 8 << 20
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Limits.Quota, c.Limits.QuotaPeriod, c.Ingress.HTTP = most, 366*24*time.Hour, "127.0.0.1:80"
	})
	open := map[string]any{"network_policy": map[string]any{"mode": "allow-all"}}
	box, neighbour := w.Create(open), w.Create(open)
	visit := serveVisitors(t, w, box)
	if status := visit(); status != 200 {
		t.Fatalf("the public URL answers %d before", status)
	}
	var stream lab.SyncBuffer
	ended := w.Background(box, "curl -sS -N --keepalive-time 1 https://api.example.com/sse", &stream) // receives only
	if err := stream.Await(t.Context(), "data"); err != nil {
		t.Fatal(err)
	}

	w.MustSh(box, "curl -sS -f -o /dev/null https://www.example.com/bytes/"+strconv.Itoa(most))
	w.Event(box, func(e audit.Event) bool {
		return e.Reason == name.ReasonPolicyChanged || e.Reason == name.ReasonQuota
	})
	if code, err := ended(); err != nil || code == 0 {
		t.Errorf("the open stream ended with %d, %v", code, err)
	}
	ways := []string{
		"curl -sS -m 20 -o /dev/null https://www.example.com/", "curl -sS -m 20 -o /dev/null http://" + w.V4("www.example.com").String() + "/",
		"getent ahosts www.example.com | grep -q " + w.V4("www.example.com").String(),
	}
	refused := func(when string) {
		t.Helper()
		for _, ran := range w.ShEach(box, ways...) {
			if ran.Code == 0 {
				t.Errorf("%s: %s: %s", when, ran.Line, ran.Out)
			}
		}
	}
	refused("cut off")
	w.DenialOf(box, policy.StageDNS, "www.example.com", name.ReasonQuota)
	if status := visit(); status != 503 {
		t.Errorf("the public URL answers %d", status)
	}
	w.SetPolicy(box, harness.Custom("www.example.com", "api.example.com"))
	refused("with a new policy")
	w.MustSh(neighbour, "curl -sS -f -o /dev/null https://www.example.com/")

	w.MustSh(box, "setsid sh -c 'until [ -e stop ]; do curl -sS -m 5 -o /dev/null http://"+w.V4("www.example.com").String()+"/ && touch through; done' >/dev/null 2>&1 &")
	w.Kill()
	w.StartIfStopped()
	refused("after a kill of the gateway")
	w.MustSh(neighbour, "curl -sS -f -o /dev/null https://www.example.com/")

	if out, code := w.Sh(box, "touch stop; [ ! -e through ]"); code != 0 {
		t.Errorf("it was connected while the gateway started: %s", out)
	}

	w.Kill()
	text, err := os.ReadFile(w.Config)
	if err != nil || strings.Count(string(text), "quota: 8MiB") != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	if err := os.WriteFile(w.Config, []byte(strings.Replace(string(text), "quota: 8MiB", "quota: 1GiB", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.StartIfStopped()
	w.MustSh(box, ways[0])
	if status := visit(); status != 200 {
		t.Errorf("the public URL answers %d with a larger quota", status)
	}
}

// serveVisitors opens a port of a box to the public. visit makes a request and returns the status.
func serveVisitors(t *testing.T, w *harness.World, box string) (visit func() int) {
	t.Helper()
	w.MustSh(box, "setsid python3 -m http.server 9000 >/dev/null 2>&1 & until curl -s -o /dev/null http://127.0.0.1:9000/; do sleep 0.05; done")
	var made harness.PublicURL
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 9000}, &made); err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(made.URL)
	if err != nil {
		t.Fatal(err)
	}
	at.Scheme, at.Host = "http", at.Hostname() // also served on a loopback address
	c := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return w.Net.Gateway().DialContext(ctx, network, "127.0.0.1:80")
		},
	}}
	return func() int {
		t.Helper()
		resp, err := c.Get(at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
}
