package attack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

const adminAddress = "127.0.0.1:8600"

// makeKey creates an API key and returns it. box is empty except for the role one-box.
func makeKey(w *harness.World, name, role, box string, quotas map[string]int64) string {
	w.T.Helper()
	body := map[string]any{"name": name, "role": role}
	if box != "" {
		body["box"] = box
	}
	if quotas != nil {
		body["quotas"] = quotas
	}
	var made struct{ Key string }
	if err := w.Client.Do(w.T.Context(), "POST", "/v2/api-keys", body, &made); err != nil {
		w.T.Fatal(err)
	}
	return made.Key
}

// apiRequest sends a request on a new connection to the admin API, with only the first sent bytes of the body, and
// returns the connection.
func apiRequest(w *harness.World, key, method, path string, length, sent int) (net.Conn, error) {
	c, err := w.Net.Gateway().DialContext(w.T.Context(), "tcp", adminAddress)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: localhost\r\nX-Box-Api-Key: %s\r\n", method, path, key)
	if length > 0 {
		fmt.Fprintf(c, "Content-Type: application/json\r\nContent-Length: %d\r\n", length)
	}
	_, _ = io.WriteString(c, "\r\n")
	_, _ = c.Write(slices.Repeat([]byte(" "), sent))
	return c, nil
}

// openFiles returns the number of the gateway's open files.
func openFiles(w *harness.World) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.Process.Process.Pid))
	if err != nil {
		w.T.Fatal(err)
	}
	return len(entries)
}

// A read-only key sends many bodies that never end. They use memory only as they arrive, up to the key's limit, and the
// gateway stays within its memory.
func TestAttackBodiesThatDoNotEnd(t *testing.T) {
	t.Parallel()
	const limit = 256
	w := harness.NewWorld(t, func(c *config.Config) { c.Limits.ProcessMemory = limit << 20 })
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	reader := makeKey(w, "grafana", "read-only", "", nil)
	path := api.BoxPath(box, "egress", "explain")
	before := memory(w)
	var conns sync.Map
	var all sync.WaitGroup
	for i := range 178 {
		all.Go(func() {
			if c, err := apiRequest(w, reader, "POST", path, 8<<20, 8<<20-1); err == nil {
				conns.Store(i, c)
			}
		})
	}
	defer conns.Range(func(_, c any) bool { c.(net.Conn).Close(); return true })
	most := 0
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for sent := false; !sent; {
		select {
		case <-done:
			sent = true
		case <-time.After(20 * time.Millisecond):
		}
		most = max(most, memory(w))
	}
	if err := w.Client.Get(t.Context(), api.BoxPath(box), nil); err != nil {
		t.Error(err)
	}
	w.SetPolicy(box, harness.Custom("api.example.com", "www.example.com"))
	t.Logf("%d MiB before, %d MiB at most", before, most)
	if most > before+limit {
		t.Errorf("178 bodies took %d MiB", most-before)
	}
	if refused := w.Metric("boxgate_quota_refused_total"); refused == 0 {
		t.Error("none was refused for its quota")
	}
}

// A read-only key opens thousands of connections, uses each once, and keeps it open. It gets no more than it may, idle
// ones are closed, and the operator, commands and public URLs keep working.
func TestAttackIdleConnectionsOfAKey(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	reader := makeKey(w, "grafana", "read-only", "", nil)
	before := openFiles(w)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	answered := 0
	for range nightly.Size(1500, 15_000) {
		c, err := apiRequest(w, reader, "GET", "/v2/box", 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && resp.StatusCode == 200 {
			answered++
		}
		conns = append(conns, c)
	}
	held := openFiles(w) - before
	t.Logf("%d of %d connections were answered; they hold %d descriptors", answered, len(conns), held)
	if held > 600 || answered < len(conns)*9/10 {
		t.Errorf("the connections of a key hold %d descriptors; %d of %d were answered", held, answered, len(conns))
	}
	if err := w.Client.Get(t.Context(), "/v2/box", nil); err != nil {
		t.Error(err)
	}
	w.MustSh(box, "true")
}

// took returns the median of five tries.
func took(t *testing.T, what string, do func() error) time.Duration {
	t.Helper()
	var all []time.Duration
	for range 5 {
		began := time.Now()
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[2]
}

// operatorCalls returns how long the operator's list, exec and PUT take.
func operatorCalls(w *harness.World, box string) map[string]time.Duration {
	ctx := w.T.Context()
	return map[string]time.Duration{
		"list": took(w.T, "list", func() error { return w.Client.Get(ctx, "/v2/box", nil) }),
		"exec": took(w.T, "exec", func() error {
			return w.Client.Do(ctx, "POST", api.BoxPath(box, "exec"), map[string]any{"command": []string{"true"}}, nil)
		}),
		"put": took(w.T, "put", func() error {
			return w.Client.Do(ctx, "PUT", api.BoxPath(box, "config", "network-policy"), harness.Custom("api.example.com"), nil)
		}),
	}
}

// commandsCounted matches the number of running commands of all keys that count against quotas.
var commandsCounted = regexp.MustCompile(`boxgate_quota_used\{key="",quota="commands"\} ([0-9]+)`)

// Many keys use all the connections, requests, commands and bodies they may. The operator's list, exec and PUT take no
// longer than before.
func TestAttackKeysAtTheirBounds(t *testing.T) {
	t.Parallel()
	keys := nightly.Size(12, 100)
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Quotas.Connections, c.Quotas.Requests, c.Quotas.Commands, c.Quotas.Memory = 12, 8, 2, 2<<20
	})
	box, hostile := w.Create(map[string]any{}), w.Create(map[string]any{})
	before := operatorCalls(w, box)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	hold := func(key, method, path string, length, sent int) {
		if c, err := apiRequest(w, key, method, path, length, sent); err == nil {
			conns = append(conns, c)
		}
	}
	for i := range keys {
		key := makeKey(w, fmt.Sprint("hostile-", i), "one-box", hostile, nil)
		for range 3 {
			body := `{"command":["sleep","3600"]}`
			c, err := apiRequest(w, key, "POST", api.BoxPath(hostile, "exec-stream"), len(body), 0)
			if err == nil {
				_, _ = io.WriteString(c, body)
				conns = append(conns, c)
			}
		}
		for range 4 {
			hold(key, "PUT", api.BoxPath(hostile, "config", "network-policy"), 8<<20, 256<<10)
			hold(key, "GET", api.BoxPath(hostile)+"/egress?follow=true", 0, 0)
			hold(key, "GET", "/v2/box", 0, 0)
		}
	}
	w.Until("keys are refused for quotas", func() bool { return w.Metric("boxgate_quota_refused_total") > float64(keys) })
	w.UntilEvery(100*time.Millisecond, "the commands of all keys run", func() bool {
		out, _ := w.Sh(hostile, "grep -lx sleep /proc/[0-9]*/comm | wc -l")
		counted := commandsCounted.FindSubmatch(w.Metrics())
		return counted != nil && strings.TrimSpace(out) == string(counted[1]) && len(out) > len("1\n")
	})
	for call, after := range operatorCalls(w, box) {
		t.Logf("%s: %v before, %v beside %d keys at their bounds", call, before[call], after, keys)
		// Tests of other packages may be running, so the time before measures the free capacity of the machine.
		if most := 100*time.Millisecond + 3*before[call]; after > most {
			t.Errorf("%s took %v beside keys at their bounds, and %v before", call, after, before[call])
		}
	}
}

// A key of one box repeatedly starts hundreds of concurrent commands. Only as many run as it may have, the others are
// refused with 429, and another key can change a policy during the attack.
func TestAttackCommandsAtOnce(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box, other := w.Create(map[string]any{}), w.Create(map[string]any{})
	hostile := makeKey(w, "hostile", "one-box", box, map[string]int64{"commands": 32})
	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	var ran, refused, odd atomic.Int64
	body := `{"command":["true"]}`
	for range nightly.Size(100, 400) {
		all.Go(func() {
			for ctx.Err() == nil {
				c, err := apiRequest(w, hostile, "POST", api.BoxPath(box, "exec"), len(body), 0)
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, body)
				stop := context.AfterFunc(ctx, func() { c.Close() })
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err == nil {
					var answer struct{ Error, Quota string }
					text, _ := io.ReadAll(resp.Body)
					_ = json.Unmarshal(text, &answer)
					switch {
					case resp.StatusCode == 200:
						ran.Add(1)
					case resp.StatusCode == 429 && resp.Header.Get("Retry-After") != "" && answer.Quota != "":
						refused.Add(1)
					case !strings.Contains(answer.Error, "output"):
						odd.Add(1)
					}
				}
				stop()
				c.Close()
			}
		})
	}
	w.Until("commands run and are refused", func() bool { return ran.Load() > 10 && refused.Load() > 10 })
	var slow []time.Duration
	for range 5 {
		began := time.Now()
		err := w.Client.Do(t.Context(), "PUT", api.BoxPath(other, "config", "network-policy"), harness.Custom("api.example.com"), nil)
		if refusal := (*api.ResponseError)(nil); err != nil && !errors.As(err, &refusal) {
			t.Fatal(err)
		} else if err != nil {
			t.Error(err)
		}
		slow = append(slow, time.Since(began))
	}
	slices.Sort(slow)
	t.Logf("%d ran, %d were refused; policy changes took %v", ran.Load(), refused.Load(), slow)
	if slow[2] > 2*time.Second || odd.Load() > 0 {
		t.Errorf("a policy change took %v; %d answers were neither 200 nor 429", slow[2], odd.Load())
	}
}
