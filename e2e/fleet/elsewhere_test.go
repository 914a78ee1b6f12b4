package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/session/client"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/lab"
	"boxgate/policy/name"
	"boxgate/store"
)

// joined are three members of one fleet whose gateways reach each other over a switch of their own.
type joined struct {
	t        *testing.T
	etcd     *etcdtest.Server
	hosts    []*host
	operator string // a key that each host has for itself
	key      string // of the fleet, with the role admin; a fenced host refuses it
}

// address returns the address of a host on the switch.
func address(i int) string { return new(harness.Switch).Address(i) }

// three returns three members that take admin calls of each other.
func three(t *testing.T) (j joined, a, b, c *host) {
	t.Helper()
	j, _ = switched(t, func(i int, c *config.Config) {
		c.Fleet.Advertise = address(i) + ":8700"
		c.E2B.Enabled = true
	})
	for _, h := range j.hosts {
		h.Until("the host reaches the others", func() bool {
			resp, _ := j.call(h, j.key, "GET", "/v2/box", nil)
			return resp.StatusCode == http.StatusOK && resp.Header.Get("Boxgate-Unreachable-Hosts") == ""
		})
	}
	return j, j.hosts[0], j.hosts[1], j.hosts[2]
}

// switched returns three members, and their switch. change edits the configuration of each.
func switched(t *testing.T, change func(i int, c *config.Config)) (j joined, lan *harness.Switch) {
	t.Helper()
	etcd := etcdtest.Start(t)
	lan = harness.NewSwitch(t)
	j = joined{t: t, etcd: etcd, operator: store.NewKey().Reveal()}
	for i := range 3 {
		h := &host{World: harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
			c.Fleet = config.Fleet{Name: "test", Endpoints: []string{etcd.Endpoint()}}
			change(i, c)
		}})}
		lan.Attach(h.Net.Gateway())
		if j.hosts = append(j.hosts, h); i == 0 {
			j.become(h, "", "fleet", "init")
		} else {
			j.become(h, j.hosts[0].command(0, "", "fleet", "token"), "fleet", "join", "--token-file", "-")
		}
	}
	var made struct{ Key string }
	if resp, text := j.call(j.hosts[0], j.operator, "POST", "/v2/api-keys", map[string]any{"name": "everywhere", "role": "admin"}); json.Unmarshal([]byte(text), &made) != nil || made.Key == "" {
		t.Fatal(resp.Status, text)
	}
	j.key = made.Key
	return j, lan
}

// become is [host.become] with the common key of the operator.
func (j joined) become(h *host, stdin string, args ...string) {
	j.t.Helper()
	var made struct{ Host string }
	if err := json.Unmarshal([]byte(h.command(0, stdin, append(args, "--json")...)), &made); err != nil || made.Host == "" {
		j.t.Fatal(made, err)
	}
	h.id = made.Host
	dir := filepath.Join(h.Dir, "state")
	db, err := store.Open(store.Options{Dir: dir})
	if err == nil {
		err = errors.Join(db.Keys.Add("first", name.NewSecret(j.operator)), db.Close(), os.WriteFile(filepath.Join(dir, "api-key"), []byte(j.operator+"\n"), 0o600))
	}
	if err != nil {
		j.t.Fatal(err)
	}
	h.start()
}

// client returns an HTTP client of the admin socket of a host.
func (h *host) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", h.Socket)
	}}}
}

// call sends a request to the admin API of a host with a key, and returns the response with its body.
func (j joined) call(h *host, key, method, path string, body any, headers ...string) (*http.Response, string) {
	j.t.Helper()
	var in io.Reader = http.NoBody
	switch body := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(body)
	default:
		text, err := json.Marshal(body)
		if err != nil {
			j.t.Fatal(err)
		}
		in = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(j.t.Context(), harness.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, in)
	if err != nil {
		j.t.Fatal(err)
	}
	r.Header.Set(api.KeyHeader, key)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := h.client().Do(r)
	if err != nil {
		j.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		j.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp, string(text)
}

// must is call, whose response must have a status.
func (j joined) must(h *host, want int, method, path string, body any, headers ...string) string {
	j.t.Helper()
	resp, text := j.call(h, j.key, method, path, body, headers...)
	if resp.StatusCode != want {
		j.t.Fatalf("%s %s at host %s: %d %s", method, path, h.id, resp.StatusCode, text)
	}
	return text
}

// list returns the listed boxes by ID with their states, and the hosts that did not answer.
func (j joined) list(h *host) (states map[string]string, silent string) {
	j.t.Helper()
	resp, text := j.call(h, j.key, "GET", "/v2/box", nil)
	var list []struct{ ID, Status string }
	if err := json.Unmarshal([]byte(text), &list); err != nil || resp.StatusCode != http.StatusOK {
		j.t.Fatalf("%d %s: %v", resp.StatusCode, text, err)
	}
	states = map[string]string{}
	for _, b := range list {
		states[b.ID] = b.Status
	}
	return states, resp.Header.Get("Boxgate-Unreachable-Hosts")
}

// make makes a box on the host that is asked.
func (j joined) make(h *host, boxName string) string {
	j.t.Helper()
	var made struct{ ID string }
	text := j.must(h, http.StatusCreated, "POST", "/v2/box", map[string]any{"name": boxName, "labels": []string{"made"}, "network_policy": map[string]any{"mode": "deny-all"}})
	if err := json.Unmarshal([]byte(text), &made); err != nil || !strings.HasPrefix(made.ID, h.id) {
		j.t.Fatal(text, err)
	}
	return made.ID
}

// TestFleetByTheAPI: any member shows the hosts, and cordons another. A host that is cut off shows the hosts as it last knew them, and the
// others show that it does not answer.
func TestFleetByTheAPI(t *testing.T) {
	t.Parallel()
	j, a, b, c := three(t)
	show := func(h *host) (state api.Fleet, by map[string]api.FleetHost) {
		t.Helper()
		resp, text := j.call(h, j.operator, "GET", "/v2/fleet", nil) // a fenced host refuses the keys of the fleet
		if err := json.Unmarshal([]byte(text), &state); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status, text)
		}
		by = map[string]api.FleetHost{}
		for _, h := range state.Hosts {
			by[h.ID] = h
		}
		return state, by
	}
	state, hosts := show(a)
	if state.Name != "test" || state.Problem != "" || state.Own == nil || state.Own.Host != a.id || state.Own.Fenced || state.Own.Revision == 0 || len(hosts) != 3 {
		t.Errorf("%+v", state)
	}
	if h := hosts[b.id]; h.State != api.HostRunning || h.Address != address(1)+":8700" || h.Answered.IsZero() || h.Unreachable {
		t.Errorf("another host: %+v", h)
	}
	var printed api.Fleet
	if err := json.Unmarshal([]byte(a.command(0, "", "fleet", "status", "--json")), &printed); err != nil || printed.ID != state.ID || len(printed.Hosts) != 3 || printed.Own == nil || printed.Own.Host != a.id || printed.Hosts[0].State != api.HostRunning {
		t.Errorf("the command: %+v %v", printed, err)
	}
	j.must(a, 200, "POST", "/v2/fleet/hosts/"+b.id+"/cordon", nil)
	if _, hosts := show(c); !hosts[b.id].Cordoned {
		t.Errorf("after cordoning: %+v", hosts[b.id])
	}
	b.Until("the cordoned host makes no boxes", func() bool {
		resp, _ := j.call(b, j.key, "POST", "/v2/box", map[string]any{})
		return resp.StatusCode == http.StatusServiceUnavailable
	})
	j.must(a, 200, "POST", "/v2/fleet/hosts/"+b.id+"/uncordon", nil)
	if _, hosts := show(a); hosts[b.id].Cordoned {
		t.Errorf("after uncordoning: %+v", hosts[b.id])
	}
	for _, id := range []string{"ffffff", "..", "nothing"} {
		if text := j.must(a, 404, "POST", "/v2/fleet/hosts/"+strings.ReplaceAll(id, ".", "%2e")+"/cordon", nil); !strings.Contains(text, "no host") && !strings.Contains(text, "no such path") {
			t.Errorf("%s: %s", id, text)
		}
	}
	if trail := a.command(0, "", "audit", "--json"); !strings.Contains(trail, `"host_cordoned":"`+b.id+`"`) {
		t.Errorf("the trail: %s", trail)
	}
	if calls := a.Metric(`boxgate_fleet_peer_calls_total{result="answered"}`); calls == 0 || a.Metric("boxgate_fleet_shared_pending") != 0 || a.Metric("boxgate_fleet_unreachable_hosts") != 0 {
		t.Errorf("%v answered calls: %s", calls, a.Metrics())
	}
	b.Kill()
	a.Until("the other hosts show that it does not answer", func() bool {
		j.list(a)
		_, hosts := show(a)
		return hosts[b.id].Unreachable && a.Metric("boxgate_fleet_unreachable_hosts") == 1
	})
	a.Until("its lease ends", func() bool { _, hosts := show(a); return hosts[b.id].State == api.HostAway })
	j.etcd.Kill()
	a.Until("the host is fenced", func() bool {
		state, hosts := show(a)
		return state.Problem != "" && state.Own.Fenced && len(hosts) == 3 && hosts[c.id].State == api.HostUnknown
	})
	if resp, text := j.call(a, j.operator, "POST", "/v2/fleet/hosts/"+c.id+"/cordon", nil); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "etcd does not answer") {
		t.Errorf("without etcd: %s %s", resp.Status, text)
	}
}

// TestCallsForABoxElsewhere: every kind of call reaches the host that has the box, by its ID and by its name, in both dialects.
func TestCallsForABoxElsewhere(t *testing.T) {
	t.Parallel()
	j, a, b, c := three(t)
	box := j.make(b, "web-1")
	for _, id := range []string{box, "web-1"} {
		path := "/v2/box/" + id
		if text := j.must(a, 200, "GET", path, nil); !strings.Contains(text, box) {
			t.Errorf("get: %s", text)
		}
		if text := j.must(a, 200, "POST", path+"/exec", map[string]any{"command": []string{"sh", "-c", "echo in-$((40+2))"}}); !strings.Contains(text, "in-42") {
			t.Errorf("exec: %s", text)
		}
		if text := j.must(a, 200, "POST", path+"/exec-stream", map[string]any{"command": []string{"sh", "-c", "echo streamed-$((40+2))"}}); !strings.Contains(text, "streamed-42") {
			t.Errorf("stream: %s", text)
		}
		content := strings.Repeat("0123456789abcdef", 1<<16)
		form, kind := uploadOf(t, "/tmp/up", content)
		j.must(a, 200, "POST", path+"/files/upload", form, "Content-Type", kind)
		if text := j.must(c, 200, "GET", path+"/files/download?folder=/tmp/up", nil); text != content {
			t.Errorf("%d bytes came back of %d", len(text), len(content))
		}
		j.must(c, 200, "PUT", path+"/config/network-policy", map[string]any{"mode": "custom", "allowed_domains": []string{"www.example.com"}})
		if text := j.must(b, 200, "GET", path+"/config/network-policy", nil); !strings.Contains(text, "www.example.com") {
			t.Errorf("policy: %s", text)
		}
		j.session(a, path)
		j.follow(a, path)
	}
	j.e2b(a, box)
	if resp, text := j.call(a, j.key, "GET", "/v2/box/"+box+"/nowhere", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown path: %d %s", resp.StatusCode, text)
	}
	if resp, text := j.call(a, j.key, "GET", "/v2/box/"+b.id+"0123456789", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown box: %d %s", resp.StatusCode, text)
	}
	if resp, text := j.call(a, j.key, "GET", "/v2/box/web-9", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown name: %d %s", resp.StatusCode, text)
	}
	if resp, text := j.call(a, j.key, "GET", "/v2/box/"+box, nil, "Boxgate-Fleet-Host", c.id); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a call that came from another host is sent on: %d %s", resp.StatusCode, text)
	}
	if text := j.must(b, 200, "GET", "/v2/audit", nil); !strings.Contains(text, "host "+a.id) {
		t.Errorf("the audit trail of the owner lacks the way of the calls: %s", text)
	}
	j.must(a, 200, "DELETE", "/v2/box/web-1", nil)
	if text := j.must(c, 404, "GET", "/v2/box/web-1", nil); text == "" {
		t.Error("no reason")
	}
	again := j.make(c, "web-1") // the name is free immediately
	if text := j.must(a, 200, "GET", "/v2/box/web-1/status", nil); text == "" || again == box {
		t.Error(text)
	}
}

// uploadOf returns the body of an upload of one file, and its type.
func uploadOf(t *testing.T, path, content string) (form, kind string) {
	t.Helper()
	var body strings.Builder
	parts := multipart.NewWriter(&body)
	err := parts.WriteField("paths", path)
	if err == nil {
		var part io.Writer
		if part, err = parts.CreateFormFile("files", "up"); err == nil {
			_, err = io.WriteString(part, content)
		}
	}
	if err := errors.Join(err, parts.Close()); err != nil {
		t.Fatal(err)
	}
	return body.String(), parts.FormDataContentType()
}

// session opens a WebSocket session, and writes to its command.
func (j joined) session(h *host, path string) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), harness.Patience)
	defer cancel()
	s, err := client.Open(ctx, api.NewClient(h.Socket, j.key), strings.TrimPrefix(path, "/v2/box/"), client.Request{Command: []string{"sh", "-c", "read x; echo got-$x"}})
	if err != nil {
		j.t.Fatalf("a session: %v", err)
	}
	var out bytes.Buffer
	go func() {
		_, _ = s.Write([]byte("42\n"))
	}()
	code, err := s.Wait(&out, &out)
	if err != nil || code != 0 || !strings.Contains(out.String(), "got-42") {
		j.t.Errorf("the session: %d, %v, %q", code, err, out.String())
	}
}

// follow reads the decisions about a box as server-sent events, which arrive while the response goes on.
func (j joined) follow(h *host, path string) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), harness.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", "http://localhost"+path+"/egress?follow=true", http.NoBody)
	if err != nil {
		j.t.Fatal(err)
	}
	r.Header.Set(api.KeyHeader, j.key)
	r.Header.Set("Accept", "text/event-stream")
	resp, err := h.client().Do(r)
	if err != nil {
		j.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		text, _ := io.ReadAll(resp.Body)
		j.t.Fatalf("events: %d %s", resp.StatusCode, text)
	}
	j.must(h, 200, "POST", path+"/exec", map[string]any{"command": []string{"sh", "-c", "curl -m 5 -s http://denied.example.net/ || true"}})
	seen, buffer := "", make([]byte, 4096)
	for !strings.Contains(seen, "denied.example.net") {
		n, err := resp.Body.Read(buffer)
		if seen += string(buffer[:n]); err != nil {
			j.t.Fatalf("events: %v after %q", err, seen)
		}
	}
}

// e2b makes calls of E2B's dialect: of its control API, and of the API of the sandbox.
func (j joined) e2b(h *host, box string) {
	j.t.Helper()
	text := j.must(h, 200, "POST", "/sandboxes/"+box+"/connect", map[string]any{"timeout": 600}, "X-Api-Key", j.key)
	var made struct{ SandboxID, EnvdAccessToken string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.SandboxID != box || made.EnvdAccessToken == "" {
		j.t.Fatal(text, err)
	}
	if text := j.must(h, 200, "GET", "/v2/sandboxes", nil, "X-Api-Key", j.key); !strings.Contains(text, box) {
		j.t.Errorf("the list of sandboxes: %s", text)
	}
	inside := []string{"E2b-Sandbox-Id", box, "X-Access-Token", made.EnvdAccessToken, "Authorization", "Basic dXNlcjo="}
	if text := j.must(h, 200, "POST", "/filesystem.Filesystem/ListDir", map[string]any{"path": "/", "depth": 1}, inside...); !strings.Contains(text, "etc") {
		j.t.Errorf("the directory: %s", text)
	}
	inside[3] += "x"
	if resp, text := j.call(h, j.key, "POST", "/filesystem.Filesystem/ListDir", map[string]any{"path": "/", "depth": 1}, inside...); resp.StatusCode != http.StatusUnauthorized {
		j.t.Errorf("a wrong token: %d %s", resp.StatusCode, text)
	}
}

// TestAttackKeyOfAnotherHost: the owner checks the key of a call itself. Keys of the fleet whose role or box does not allow the call do not reach
// the box, in either dialect. The operator's key of a host is not even sent to the owner, and lists the boxes of its own host.
func TestAttackKeyOfAnotherHost(t *testing.T) {
	t.Parallel()
	j, a, b, _ := three(t)
	box := j.make(b, "")
	key := func(role string) string {
		t.Helper()
		var made struct{ Key string }
		if text := j.must(a, 201, "POST", "/v2/api-keys", map[string]any{"name": role, "role": role}); json.Unmarshal([]byte(text), &made) != nil || made.Key == "" {
			t.Fatal(text)
		}
		return made.Key
	}
	attack := func(want int, key string, calls ...[2]string) {
		t.Helper()
		for _, call := range calls {
			var body any
			if call[0] == "POST" {
				body = map[string]any{"command": []string{"true"}}
			}
			if resp, text := j.call(a, key, call[0], call[1], body); resp.StatusCode != want {
				t.Errorf("%v: %d %s, want %d", call, resp.StatusCode, text, want)
			}
		}
	}
	at, exec, dialect := [2]string{"GET", "/v2/box/" + box}, [2]string{"POST", "/v2/box/" + box + "/exec"}, [2]string{"GET", "/sandboxes/" + box}
	attack(http.StatusForbidden, key("read-only"), exec, [2]string{"POST", "/v2/box?placement=spread"})
	if text := j.must(a, 200, "GET", "/v2/audit", nil); !strings.Contains(text, `"route":"POST /v2/box","status":403`) {
		t.Errorf("the audit trail lacks the refused creation: %s", text)
	}
	attack(http.StatusNotFound, key("box-creator"), at, exec, dialect)
	attack(http.StatusUnauthorized, "wrong", at, exec, dialect)
	attack(http.StatusOK, key("admin"), at, exec, dialect) // the control
	attack(http.StatusForbidden, j.operator, at, exec, [2]string{"DELETE", "/v2/box/" + box}, dialect)
	if resp, text := j.call(a, j.operator, "GET", "/v2/box", nil); strings.Contains(text, box) || resp.Header.Get("Boxgate-Unreachable-Hosts") != "" {
		t.Errorf("the list with a key of one host: %v %s", resp.Header, text)
	}
	j.must(b, 200, "GET", "/v2/box/"+box, nil)
}

// TestAttackHostThatLeft: a host that was removed reaches no box of the others, although its certificate is valid, over new and over open
// connections.
func TestAttackHostThatLeft(t *testing.T) {
	t.Parallel()
	j, a, b, c := three(t)
	box := j.make(b, "")
	j.must(c, 200, "GET", "/v2/box/"+box, nil) // opens a connection
	stream := make(chan int, 1)
	go func() {
		resp, _ := j.call(c, j.key, "POST", "/v2/box/"+box+"/exec", map[string]any{"command": []string{"sleep", "300"}})
		stream <- resp.StatusCode
	}()
	b.Until("the command runs", func() bool {
		out, _ := b.Sh(box, "pgrep -f 'sleep 300'")
		return strings.TrimSpace(out) != ""
	})
	a.command(0, "", "fleet", "leave", c.id)
	refused := func() bool {
		resp, text := j.call(c, j.operator, "GET", "/v2/box/"+box, nil)
		return resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(text, "host_unreachable")
	}
	c.Until("the host is refused", refused)
	select {
	case status := <-stream:
		if status == http.StatusOK {
			t.Error("the call went on")
		}
	case <-time.After(harness.Patience):
		t.Error("the open call is not cut")
	}
	j.must(a, 200, "GET", "/v2/box/"+box, nil)
	if resp, text := j.call(a, j.key, "GET", "/v2/box/"+c.id+"0123456789", nil); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, `"code":"host_unreachable"`) {
		t.Errorf("a box of a host that left: %d %s", resp.StatusCode, text)
	}
	if resp, text := j.call(a, j.key, "GET", "/sandboxes/"+c.id+"0123456789", nil); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, `"code":503`) || !strings.Contains(text, "host_unreachable") {
		t.Errorf("in E2B's dialect: %d %s", resp.StatusCode, text)
	}
}

// TestHostCutOffFromTheOthers: packets between two hosts are dropped. Calls for boxes there are answered with host_unreachable within a bounded
// time, lists name the host and show its boxes from the directory, and everything works again after the cut.
func TestHostCutOffFromTheOthers(t *testing.T) {
	t.Parallel()
	j, a, b, c := three(t)
	box, other := j.make(b, "far"), j.make(c, "")
	own := j.make(a, "near")
	if states, silent := j.list(a); len(states) != 3 || silent != "" {
		t.Errorf("%v, silent: %q", states, silent)
	}
	nft := func(line string) {
		t.Helper()
		if out, err := b.Net.Gateway().Run(t.Context(), "nft", line); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	nft("table inet apart { chain in { type filter hook input priority 0; iifname lan0 drop; }; chain out { type filter hook output priority 0; oifname lan0 drop; }; }")
	for _, id := range []string{box, "far"} { // over an open connection, and over a new one
		began := time.Now()
		resp, text := j.call(a, j.key, "GET", "/v2/box/"+id, nil)
		if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, `"code":"host_unreachable"`) || !strings.Contains(text, b.id) {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("answered after %v", took)
		}
	}
	states, silent := j.list(a)
	if silent != b.id || states[box] != "unreachable" || states[other] == "" || states[own] == "" || states[other] == "unreachable" {
		t.Errorf("%v, silent: %q", states, silent)
	}
	j.must(a, 200, "POST", "/v2/box/near/exec", map[string]any{"command": []string{"true"}})
	j.must(a, 200, "GET", "/v2/box/"+other, nil)
	nft("delete table inet apart")
	a.Until("the host answers again", func() bool {
		states, silent := j.list(a)
		return silent == "" && states[box] != "unreachable" && states[box] != ""
	})
	j.must(a, 200, "GET", "/v2/box/far", nil)
	b.Kill()
	if resp, text := j.call(a, j.key, "GET", "/v2/box/"+box, nil); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "host_unreachable") {
		t.Errorf("a host whose gateway was killed: %d %s", resp.StatusCode, text)
	}
}

// TestNamesOfAFleet: of several hosts that make a box with one name at the same time, one does; the others answer with 409. A box is placed on
// a host that is chosen.
func TestNamesOfAFleet(t *testing.T) {
	t.Parallel()
	j, a, b, c := three(t)
	statuses := make([]int, len(j.hosts))
	var all sync.WaitGroup
	for i, h := range j.hosts {
		all.Go(func() {
			resp, _ := j.call(h, j.key, "POST", "/v2/box", map[string]any{"name": "only-one", "network_policy": map[string]any{"mode": "deny-all"}})
			statuses[i] = resp.StatusCode
		})
	}
	all.Wait()
	made := 0
	for _, status := range statuses {
		if status == http.StatusCreated {
			made++
		} else if status != http.StatusConflict {
			t.Errorf("status %d", status)
		}
	}
	if made != 1 {
		t.Fatalf("%d boxes have the name: %v", made, statuses)
	}
	j.must(a, 200, "DELETE", "/v2/box/only-one", nil)
	j.make(c, "only-one")
	if resp, text := j.call(b, j.key, "POST", "/v2/box", map[string]any{"name": "only-one"}); resp.StatusCode != http.StatusConflict {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	a.command(0, "", "fleet", "cordon", a.id)
	a.command(0, "", "fleet", "cordon", b.id)
	a.Until("the box is made on the only host that takes boxes", func() bool {
		resp, text := j.call(a, j.key, "POST", "/v2/box?placement=spread", map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
		var made struct{ ID string }
		_ = json.Unmarshal([]byte(text), &made)
		return resp.StatusCode == http.StatusCreated && strings.HasPrefix(made.ID, c.id)
	})
}
