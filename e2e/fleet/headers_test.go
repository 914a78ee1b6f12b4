package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/lab"
)

// fleetHeaders is the path of the header rules of the fleet.
const fleetHeaders = "/v2/box/settings/attach-headers?fleet=true"

// headers is an answer about header rules.
type headers struct {
	AttachHeaders map[string][]string `json:"attach_headers"`
	Version       uint64
	Fleet         bool
	Warnings      []struct{ Pointer, Message string }
}

// trySetHeaders sets the rules of the fleet to a header X-Key of api.example.com.
func (h *host) trySetHeaders(value string) (answer headers, err error) {
	rules := map[string]any{"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": value}}}
	err = h.Client.Do(h.T.Context(), "PUT", fleetHeaders, rules, &answer)
	return answer, err
}

func (h *host) setHeaders(value string) headers {
	h.T.Helper()
	answer, err := h.trySetHeaders(value)
	if err != nil {
		h.T.Fatal(err)
	}
	return answer
}

// browser creates a box that may reach two hosts.
func (h *host) browser() string {
	h.T.Helper()
	return h.Create(map[string]any{"network_policy": harness.Custom("api.example.com", "www.example.com")})
}

// key returns the X-Key that api.example.com gets from a box, and the status of the answer.
func (h *host) key(box string) (value string, status string) {
	h.T.Helper()
	out, _ := h.Sh(box, `curl -sS --max-time 20 -w '\n%{http_code}' https://api.example.com/echo`)
	body, status, _ := strings.Cut(strings.TrimSpace(out), "\n")
	if i := strings.LastIndexByte(out, '\n'); i >= 0 {
		body, status = out[:i], strings.TrimSpace(out[i+1:])
	}
	for _, v := range []string{"fleet-1", "fleet-2", "fleet-3", "fleet-4", "own-1"} {
		if strings.Contains(body, v) {
			value += v
		}
	}
	if status == "502" && !strings.Contains(body, "fleet_fenced") {
		h.T.Errorf("502: %s", body)
	}
	return value, status
}

// TestHeadersOfAFleet: rules that are set on one host are in force for the boxes of all others when the answer comes. Rules of a host precede
// rules of the fleet. Neither the answers nor etcd nor the store have a value in clear. A host that was taken out refuses.
func TestHeadersOfAFleet(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	a, b := two(t, etcd)
	box := b.browser()
	if got, status := b.key(box); got != "" || status != "200" {
		t.Fatalf("without rules: %q, %s", got, status)
	}
	if made := a.setHeaders("fleet-1"); !made.Fleet || made.Version != 1 {
		t.Errorf("%+v", made)
	}
	if got, status := b.key(box); got != "fleet-1" || status != "200" {
		t.Errorf("after the answer, the other host sent %q, %s", got, status)
	}
	c := newHost(t, etcd.Endpoint())
	c.become(a.command(0, "", "fleet", "token"), "fleet", "join", "--token-file", "-")
	c.Until("a host that joins gets the key of the rules", func() bool { return c.Metric("boxgate_fleet_fenced") == 0 })
	third := c.browser()
	if got, status := c.key(third); got != "fleet-1" || status != "200" {
		t.Errorf("a host that joined sent %q, %s", got, status)
	}

	own := map[string]any{"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": "own-1"}}}
	if err := b.Client.Do(t.Context(), "PUT", "/v2/box/settings/attach-headers", own, nil); err != nil {
		t.Fatal(err)
	}
	if got, _ := b.key(box); got != "own-1" {
		t.Errorf("a host with a rule of its own sent %q", got)
	}
	var seen headers
	if err := b.Client.Get(t.Context(), fleetHeaders, &seen); err != nil || !seen.Fleet || len(seen.AttachHeaders["api.example.com"]) != 1 || len(seen.Warnings) != 1 {
		t.Errorf("%+v, %v", seen, err)
	}
	if err := b.Client.Do(t.Context(), "PUT", "/v2/box/settings/attach-headers", map[string]any{"attach_headers": map[string]any{}}, nil); err != nil {
		t.Fatal(err)
	}
	if out := b.command(0, "", "headers", "list", "--fleet"); !strings.Contains(out, "api.example.com") || strings.Contains(out, "fleet-1") {
		t.Errorf("the command shows %s", out)
	}

	a.command(0, "", "fleet", "leave", c.id)
	c.Until("a host that was taken out refuses", func() bool { _, status := c.key(third); return status == "502" })
	b.setHeaders("fleet-2")
	for _, h := range []struct {
		*host
		box string
	}{{a, a.browser()}, {b, box}} {
		if got, status := h.key(h.box); got != "fleet-2" || status != "200" {
			t.Errorf("host %s sent %q, %s", h.id, got, status)
		}
	}
	if got, status := c.key(third); got != "" || status != "502" {
		t.Errorf("a host that was taken out sent %q, %s", got, status)
	}
	a.command(0, "", "headers", "rm", "--fleet", "api.example.com")
	if got, status := b.key(box); got != "" || status != "200" {
		t.Errorf("after the removal: %q, %s", got, status)
	}
	a.setHeaders("fleet-3")
	etcd.Kill()
	for _, dir := range []string{etcd.Data(), filepath.Join(a.Dir, "state"), filepath.Join(b.Dir, "state")} {
		for _, value := range []string{"fleet-1", "fleet-2", "fleet-3", "own-1"} {
			if file := contains(t, dir, value); file != "" {
				t.Errorf("%s has the value %s in clear", file, value)
			}
		}
	}
}

// contains returns a file below a directory that contains a text, or "".
func contains(t *testing.T, dir, text string) (file string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte(text)) {
			file = path
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return file
}

// TestHeadersOfAFencedHost: packets between a host and etcd are dropped. From the fence on, requests to hosts of the fleet's rules are refused with
// 502; other hosts, and rules of the host, go on. A value that was replaced meanwhile is not sent for a moment after the cut, also by a
// gateway that starts without etcd.
func TestHeadersOfAFencedHost(t *testing.T) {
	t.Parallel()
	const address = "192.0.2.79:2379"
	a := &host{World: harness.NewStopped(t, lab.Options{})}
	etcd := etcdtest.StartTLS(t, a.Net.Internet().Start, address)
	access := etcd.Access()
	a.configure(config.Fleet{Name: "test", Endpoints: access.Endpoints, TLS: config.FleetTLS{CAFile: access.CAFile, CertFile: access.CertFile, KeyFile: access.KeyFile}})
	a.become("", "fleet", "init")
	b := newHost(t, etcd.Endpoint())
	b.become(a.command(0, "", "fleet", "token"), "fleet", "join", "--token-file", "-")
	box := a.browser()
	other := a.Create(map[string]any{"network_policy": harness.Custom("api.example.com"), "attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": "own-1"}}})
	a.setHeaders("fleet-1")
	if got, status := a.key(box); got != "fleet-1" || status != "200" {
		t.Fatalf("%q, %s", got, status)
	}
	nft := func(line string) {
		t.Helper()
		if out, err := a.Net.Gateway().Run(t.Context(), "nft", line); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	cut := func() {
		nft("table inet cut { chain out { type filter hook output priority 0; tcp dport 2379 drop; }; chain in { type filter hook input priority 0; tcp sport 2379 drop; }; }")
	}
	cut()
	b.setHeaders("fleet-2") // answers when the lease of the first host is gone
	if got, status := a.key(box); got != "" || status != "502" {
		t.Errorf("past the fence the host sent %q, %s", got, status)
	}
	if got, status := a.key(other); got != "own-1" || status != "200" {
		t.Errorf("past the fence, by a rule of the box: %q, %s", got, status)
	}
	a.MustSh(box, "curl -fsS -o /dev/null https://www.example.com/")
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	a.start()
	if got, status := a.key(box); got != "" || status != "502" {
		t.Errorf("a gateway that started without etcd sent %q, %s", got, status)
	}
	nft("delete table inet cut")
	a.Until("the host sends the newest value", func() bool {
		got, status := a.key(box)
		if got != "fleet-2" && status != "502" {
			t.Fatalf("when the cut ended the host sent %q, %s", got, status)
		}
		return got == "fleet-2"
	})
}

// TestHeadersUnderFlood: while a box of another host sends requests without a pause, the value is replaced again and again, and a host leaves. A
// request that began after an answer never has an earlier value.
func TestHeadersUnderFlood(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	a, b := two(t, etcd)
	c := newHost(t, etcd.Endpoint())
	c.become(a.command(0, "", "fleet", "token"), "fleet", "join", "--token-file", "-")
	box := b.browser()
	value := func(n int64) string { return fmt.Sprintf("flood-%06d", n) }
	a.setHeaders(value(0))
	var answered atomic.Int64
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			least := answered.Load()
			out, _ := b.Sh(box, `for i in 1 2 3 4 5; do curl -sS --max-time 20 https://api.example.com/echo; done`)
			for _, part := range strings.Split(out, "flood-")[1:] {
				var n int64
				if _, err := fmt.Sscanf(part, "%06d", &n); err != nil || n < least {
					t.Errorf("value %d was sent after the answer to %d, %v", n, least, err)
				}
			}
			if strings.Contains(out, "fleet_fenced") {
				t.Errorf("refused by a host that is not fenced: %s", out)
			}
		}
	}()
	for n := int64(1); n <= 20; n++ {
		if n == 10 {
			a.command(0, "", "fleet", "leave", c.id)
		}
		setter := a
		if n%2 == 0 {
			setter = b
		}
		setter.setHeaders(value(n))
		answered.Store(n)
	}
	close(stop)
	<-done
}

// TestVersionsOfHeadersOfAFleet: a change with another version is refused on any host, and rules from a restored backup of etcd are not used:
// requests are refused until the rules are set again.
func TestVersionsOfHeadersOfAFleet(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	a, b := two(t, etcd)
	box := b.browser()
	a.setHeaders("fleet-1")
	client := etcd.Client()
	old, err := client.Get(t.Context(), "/boxgate/test/watched/headers/rules")
	if err != nil || len(old.Kvs) != 1 {
		t.Fatal(old, err)
	}
	a.setHeaders("fleet-2")
	var record map[string]any
	if err := json.Unmarshal(old.Kvs[0].Value, &record); err != nil || record["version"] != 1.0 {
		t.Fatal(record, err)
	}
	if _, err := client.Put(t.Context(), "/boxgate/test/watched/headers/rules", string(old.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	b.Until("an earlier version is not used", func() bool {
		got, status := b.key(box)
		if got == "fleet-1" {
			t.Fatal("an earlier value was sent")
		}
		return status == "502"
	})
	began := time.Now()
	if made := a.setHeaders("fleet-3"); made.Version != 3 {
		t.Errorf("%+v after %v", made, time.Since(began))
	}
	if got, status := b.key(box); got != "fleet-3" || status != "200" {
		t.Errorf("set again: %q, %s", got, status)
	}
	record["version"], record["host"] = 9.0, a.id // another version of the same sealed text
	forged, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), "/boxgate/test/watched/headers/rules", string(forged)); err != nil {
		t.Fatal(err)
	}
	b.Until("forged rules close the fence", func() bool { got, status := b.key(box); return got == "" && status == "502" })
	if made := a.setHeaders("fleet-4"); made.Version != 4 {
		t.Errorf("%+v", made)
	}
	if got, status := b.key(box); got != "fleet-4" || status != "200" {
		t.Errorf("after the forgery: %q, %s", got, status)
	}
	if err := b.Client.Do(t.Context(), "PUT", fleetHeaders+"&x=1", map[string]any{"attach_headers": map[string]any{}}, nil); !isStatus(err, http.StatusUnprocessableEntity) {
		t.Errorf("an unknown parameter: %v", err)
	}
}
