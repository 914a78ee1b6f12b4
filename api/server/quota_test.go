package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/api/apitest"
	"boxgate/audit/trail"
	"boxgate/quota"
)

// within configures quotas for each key and in total.
func within(defaults, totals quota.Limits) func(*Config) {
	return func(cfg *Config) { cfg.Quotas = quota.New(quota.Config{Defaults: defaults, Totals: totals}) }
}

func limit(k quota.Kind, n int64) (l quota.Limits) { l[k] = n; return l }

// await waits for a condition.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("in vain: ", what)
		}
	}
}

// refusedFor requires a 429 with the name of the quota and a Retry-After.
func refusedFor(t *testing.T, got apitest.Answer, k quota.Kind) {
	t.Helper()
	if got.StatusCode != 429 || got.Header.Get("Retry-After") == "" || got.JSON(t)["quota"] != k.String() {
		t.Errorf("%s, Retry-After %q, %s; want 429 for %v", got.Status, got.Header.Get("Retry-After"), got.Text, k)
	}
}

// The commands of a key are bounded while they run, whichever call started them, without affecting other keys. The audit
// trail records refused commands, up to its limit for refusals.
func TestCommandsOfAKeyAreBounded(t *testing.T) {
	t.Parallel()
	f, dir := withTrail(t, within(limit(quota.Commands, 2), quota.Limits{}))
	id := f.create(t, `{}`)
	box := "/v2/box/" + id
	ci := apitest.With(f.key(t, `{"name":"ci","role":"one-box","box":"`+id+`"}`))
	other := apitest.With(f.key(t, `{"name":"other","role":"one-box","box":"`+id+`"}`))
	const sleep, short = `{"command":["sleep","600"]}`, `{"command":["true"]}`
	ctx, leave := context.WithCancel(t.Context())
	for range 2 { // their client disconnects
		f.stream(t, box+"/exec-stream", sleep, ci, func(r *http.Request) { *r = *r.WithContext(ctx) })
	}
	leave()
	for _, way := range []struct{ path, body string }{
		{"/exec", short}, {"/exec-stream", short}, {"/exec-detached", short}, {"/processes", short}, {"/code", `{"lang":"js","code":"1"}`}, {"/code-stream", `{"lang":"js","code":"1"}`},
		{"/run", `{"prompt":"x"}`}, {"/run/stream", `{"prompt":"x"}`}, {"/git/exec", `{"args":["status"]}`}, {"/git/clone", `{}`},
	} {
		refusedFor(t, f.Call(t, "POST", box+way.path, way.body, ci), quota.Commands)
	}
	for range 2 * maxRefusals {
		got := f.Call(t, "GET", box+"/exec-session", "", ci)
		if got.StatusCode != 429 || !strings.Contains(got.Text, "API key ci has 2 commands under way, as many as it may (quotas.commands)") {
			t.Fatalf("%s %s", got.Status, got.Text)
		}
	}
	for _, who := range []func(*http.Request){other, apitest.With(apitest.Key)} {
		if got := f.Call(t, "POST", box+"/exec", `{"command":["true"]}`, who); got.StatusCode != 200 {
			t.Errorf("another key: %s %s", got.Status, got.Text)
		}
	}
	calls, refused := 0, 0
	all, _ := entries(t, dir)
	for _, e := range all {
		switch {
		case e.Key == "ci" && e.Kind == trail.Call:
			calls++
		case e.Key == "ci" && e.Kind == trail.Refused && e.Status == 429:
			refused++
		}
	}
	if calls != 2 || refused != maxRefusals {
		t.Errorf("%d calls and %d refusals in the trail", calls, refused)
	}
	var runs struct {
		Runs []struct{ ID, Status string }
	}
	if err := json.Unmarshal([]byte(f.Call(t, "GET", box+"/runs", "").Text), &runs); err != nil {
		t.Fatal(err)
	}
	for _, run := range runs.Runs {
		if run.Status == "running" {
			f.Call(t, "POST", box+"/runs/"+run.ID+"/cancel", "")
		}
	}
	await(t, "a command when the others have ended", func() bool {
		return f.Call(t, "POST", box+"/exec", `{"command":["true"]}`, ci).StatusCode == 200
	})
}

func TestRequestsOfAKeyAreBounded(t *testing.T) {
	t.Parallel()
	f := serve(t, within(limit(quota.Requests, 3), limit(quota.Requests, 8)))
	ci, other := apitest.With(f.key(t, `{"name":"ci","role":"read-only"}`)), apitest.With(f.key(t, `{"name":"other","role":"read-only"}`))
	ctx, end := context.WithCancel(t.Context())
	defer end()
	follow := func(who func(*http.Request)) int {
		resp := f.stream(t, "/v2/egress?follow=true", "", who, func(r *http.Request) { *r = *r.WithContext(ctx) })
		t.Cleanup(func() { resp.Body.Close() })
		return resp.StatusCode
	}
	for range 3 {
		if status := follow(ci); status != 200 {
			t.Fatal(status)
		}
	}
	refusedFor(t, f.Call(t, "GET", "/v2/box", "", ci), quota.Requests)
	for range 6 {
		follow(other)
	}
	for range 2 {
		if status := follow(apitest.With(apitest.Key)); status != 200 {
			t.Errorf("the operator beside keys that have all they may: %d", status)
		}
	}
	end()
	await(t, "a request when the others have ended", func() bool { return f.Call(t, "GET", "/v2/box", "", ci).StatusCode == 200 })
}

// announce sends the header of a request with a body, and the beginning of the body.
func (f *fixture) announce(t *testing.T, key, method, path string, size, sent int) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", f.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nX-Box-Api-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		method, path, key, size, strings.Repeat(" ", sent))
	return c
}

// answerOn reads the response on a connection.
func answerOn(t *testing.T, c net.Conn) apitest.Answer {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	return apitest.Answer{Response: resp, Text: string(text)}
}

// Incomplete bodies are charged to the quota of their key for the bytes that have arrived. The operator's are still read.
func TestAttackUnfinishedBodies(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	f := serve(t, within(limit(quota.Memory, 2*mib), limit(quota.Memory, 16*mib)))
	id := f.create(t, `{}`)
	reader := f.key(t, `{"name":"grafana","role":"read-only"}`)
	held := func() int64 { use, _ := f.api.Quotas.Shared(quota.Memory); return use.Used }
	const path = "/v2/box/%s/egress/explain"
	explain := fmt.Sprintf(path, id)
	for range 20 {
		f.announce(t, reader, "POST", explain, mib, 0)
	}
	var open []net.Conn
	for range 20 {
		open = append(open, f.announce(t, reader, "POST", explain, mib, mib/4))
	}
	await(t, "bodies in memory", func() bool { return held() > mib })
	var refused atomic.Int64
	for _, c := range open {
		go func() {
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || resp.StatusCode != 429 {
				return // the body is read until the server gives up on the client
			}
			text, _ := io.ReadAll(resp.Body)
			refusedFor(t, apitest.Answer{Response: resp, Text: string(text)}, quota.Memory)
			refused.Add(1)
		}()
	}
	await(t, "ten refusals", func() bool { return refused.Load() >= 10 })
	if held() > 2*mib {
		t.Errorf("%d bytes are held", held())
	}
	whole := `{"mode":"custom","allowed_domains":["example.com"]` + strings.Repeat(" ", mib-100) + `}`
	if got := f.Call(t, "PUT", "/v2/box/"+id+"/config/network-policy", whole); got.StatusCode != 200 {
		t.Errorf("the operator: %s %.200s", got.Status, got.Text)
	}
	for _, c := range open {
		c.Close()
	}
	await(t, "the memory to be given back", func() bool { return held() == 0 })
}

// A text of two bytes may decode to a large value: memory is claimed for decoded values.
func TestAttackSmallTextsOfLargeValues(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	f := serve(t, within(limit(quota.Memory, 8*mib), quota.Limits{}))
	id := f.create(t, `{}`)
	ci := apitest.With(f.key(t, `{"name":"ci","role":"one-box","box":"`+id+`"}`))
	for field, value := range map[string]string{"requests": "{}", "allowed_domains": `""`, "denied_cidrs": "[]"} {
		many := `{"mode":"custom","` + field + `":[` + strings.Repeat(value+",", mib/3-100) + value + `]}`
		refusedFor(t, f.Call(t, "PUT", "/v2/box/"+id+"/config/network-policy", many, ci), quota.Memory)
	}
	entries := `{"action":"allow","expires_in":3600,"entries":[` + strings.Repeat(`{"":0},`, 1<<17) + `{}]}`
	refusedFor(t, f.Call(t, "POST", "/v2/box/"+id+"/config/network-policy/leases", entries, ci), quota.Memory)
	text := `{"command":["echo","` + strings.Repeat("a,[{", 1<<10) + `"]}`
	if got := f.Call(t, "POST", "/v2/box/"+id+"/exec", text, ci); got.StatusCode != 200 {
		t.Errorf("a text with commas: %s %s", got.Status, got.Text)
	}
}

// An announced body that does not arrive is cut off, whether a handler waits for it or not.
func TestAttackBodiesThatDoNotCome(t *testing.T) {
	t.Parallel()
	f := serve(t, func(cfg *Config) { cfg.BodySilence = 100 * time.Millisecond })
	id := f.create(t, `{}`)
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"POST", "/v2/box/" + id + "/egress/explain", 408}, {"PUT", "/v2/box/" + id + "/config/network-policy", 408},
		{"GET", "/v2/box", 200}, {"GET", "/v2/nothing", 404},
	} {
		began := time.Now()
		if got := answerOn(t, f.announce(t, apitest.Key, c.method, c.path, 1000, 10)); got.StatusCode != c.status || time.Since(began) > 20*time.Second {
			t.Errorf("%s %s: %s %s, after %v", c.method, c.path, got.Status, got.Text, time.Since(began))
		}
	}
	if got := answerOn(t, f.announce(t, "sk-wrong", "GET", "/v2/box", 1000, 10)); got.StatusCode != 401 {
		t.Errorf("without a key: %s", got.Status)
	}
}

func TestQuotasOfAKeyAreSetAndShown(t *testing.T) {
	t.Parallel()
	f := serve(t)
	f.key(t, `{"name":"ci","role":"box-creator","quotas":{"commands":3,"memory":1048576}}`)
	f.Expect(t, 200, "GET", "/v2/api-keys", "", `"quotas":{"commands":3,"memory":1048576}`)
	f.Expect(t, 200, "PATCH", "/v2/api-keys/ci", `{"quotas":{"commands":0,"boxes":7}}`, `"quotas":{"boxes":7,"memory":1048576}`)
	f.Expect(t, 422, "PATCH", "/v2/api-keys/ci", `{"quotas":{"comands":1}}`, "/quotas/comands", "the quotas are connections, memory, requests, commands")
	f.Expect(t, 422, "PATCH", "/v2/api-keys/ci", `{"quotas":{"commands":-1}}`, "must be 0 to 1000000")
	f.Expect(t, 422, "PATCH", "/v2/api-keys/ci", `{"quotas":{}}`, "at least one")
	f.Expect(t, 422, "POST", "/v2/api-keys", `{"name":"root","role":"admin","quotas":{"commands":3}}`, "an admin key has no quotas")
	f.Expect(t, 404, "PATCH", "/v2/api-keys/none", `{"quotas":{"commands":1}}`)
}
