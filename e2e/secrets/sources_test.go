package secrets

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// sourced is a world whose box sends one header per kind of source to api.example.com.
type sourced struct {
	*harness.Intruder
	box    string
	files  string // directory of the files that file and command sources read
	values map[string]string
}

// sources are the names of the secrets, which are also names of headers.
var sourceNames = []string{"lit", "file", "env", "cmd"}

func newSourced(t *testing.T) *sourced {
	t.Helper()
	s := &sourced{files: t.TempDir(), values: map[string]string{}}
	for _, n := range sourceNames {
		s.values[n] = "canary-of-" + n + "-" + strings.Repeat("Qz7", 5)
	}
	program := filepath.Join(s.files, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho says-cmd >&2\nexec cat \"$1\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.rotate(t, "file", s.values["file"])
	s.rotate(t, "cmd", s.values["cmd"])
	w := harness.NewStopped(t, lab.Options{})
	w.Env = append(w.Env, "E2E_SECRET_OF_ENV="+s.values["env"])
	addConfig(w, `secrets:
  lit: {value: "`+s.values["lit"]+`"}
  file: {file: `+s.files+`/file, refresh: 200ms}
  env: {env: E2E_SECRET_OF_ENV}
  cmd: {command: [`+program+`, `+s.files+`/cmd], refresh: 200ms, timeout: 5s}
`)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	headers := map[string]any{}
	for _, n := range sourceNames {
		headers["X-"+n] = map[string]string{"secret": n, "prefix": "Bearer "}
	}
	s.box = w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{
			"api.example.com": map[string]any{"headers": headers},
			"www.example.com": map[string]any{"headers": map[string]any{"X-Lit": map[string]string{"secret": "lit"}}},
		},
	})
	s.Intruder = w.Intrude(s.box)
	return s
}

// addConfig appends to the lab's configuration file.
func addConfig(w *harness.World, text string) {
	w.T.Helper()
	data, err := os.ReadFile(w.Config)
	if err == nil {
		err = os.WriteFile(w.Config, append(data, text...), 0o600)
	}
	if err != nil {
		w.T.Fatal(err)
	}
}

// rotate replaces the file of a source atomically, as a key rotation does.
func (s *sourced) rotate(t *testing.T, name, value string) {
	t.Helper()
	path := filepath.Join(s.files, name)
	if err := errors.Join(os.WriteFile(path+".new", []byte(value+"\n"), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	s.values[name] = value
}

// conns are open connections of the box to api.example.com that are used for consecutive requests.
type conns struct {
	s      *sourced
	h1     net.Conn
	r      *bufio.Reader
	h2     *harness.Frames
	stream uint32
	n      int
}

func (s *sourced) open() *conns {
	c := &conns{s: s, h1: s.TLS(s.DialHost("api.example.com", 443), "api.example.com"), h2: s.Frames("api.example.com"), stream: 1}
	c.r = bufio.NewReader(c.h1)
	return c
}

// ask sends a request on each connection and returns the status and text of the answers, and the requests that the
// server received.
func (c *conns) ask() (status [2]string, text [2]string, received [2][]testnet.Received) {
	t := c.s.T
	t.Helper()
	c.n++
	path := fmt.Sprintf("/%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), c.n)
	res, body := harness.Exchange(t, c.h1, c.r, "GET "+path+"-h1 HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	status[0], text[0] = fmt.Sprint(res.StatusCode), body
	if res.StatusCode == 502 && res.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("the refusal is %v", res.Header)
	}
	if res.Close {
		t.Error("the connection is not kept")
	}
	c.h2.Send(c.stream, true, harness.Head("api.example.com", harness.Field{":path", path + "-h2"})...)
	status[1] = c.h2.Outcome(c.stream)
	text[1] = c.h2.Bodies[c.stream]
	c.stream += 2
	for i, way := range []string{"-h1", "-h2"} {
		received[i] = c.s.Requests("api.example.com", path+way)
	}
	return status, text, received
}

// mismatch makes requests and returns how their answers differ from those with the current values, or "".
func (c *conns) mismatch() string {
	status, _, received := c.ask()
	for i := range status {
		if status[i] != "200" || len(received[i]) != 1 {
			return fmt.Sprintf("status %s, %d requests arrived", status[i], len(received[i]))
		}
		for _, n := range sourceNames {
			if got := received[i][0].Header.Values("X-" + n); len(got) != 1 || got[0] != "Bearer "+c.s.values[n] {
				return fmt.Sprintf("%s is %q", n, got)
			}
		}
	}
	return ""
}

// refused reports whether both requests were refused because a secret is missing. The server must then have received no
// request.
func (c *conns) refused() bool {
	c.s.T.Helper()
	status, text, received := c.ask()
	all := true
	for i := range status {
		refused := status[i] == "502"
		all = all && refused
		if refused && (len(received[i]) != 0 || !strings.Contains(text[i], `"secret_unavailable"`)) {
			c.s.T.Errorf("refused with %s, and the server received %+v", text[i], received[i])
		}
		if !refused && len(received[i]) == 1 && received[i][0].Header.Get("X-File") == "" {
			c.s.T.Errorf("a request went out without its header: %+v", received[i])
		}
	}
	return all
}

// TestSecretsComeFromEverySource: each kind of source sets its header. When its file is replaced, broken and repaired,
// open connections follow, other rules keep working, and no value is shown.
func TestSecretsComeFromEverySource(t *testing.T) {
	t.Parallel()
	s := newSourced(t)
	c := s.open()
	if f := c.mismatch(); f != "" {
		t.Fatal(f)
	}
	old := fmt.Sprint(s.values)
	s.breakAndRepair(c, "file", "no such file or directory")
	s.breakAndRepair(c, "cmd", "it ended with status 1")
	harness.Contains(t, string(s.Metrics()), `boxgate_secret_refreshes_total{secret="file"}`, `boxgate_secret_refresh_failures_total{secret="env"} 0`)
	if strings.Contains(string(s.Metrics()), `boxgate_secret_refresh_failures_total{secret="cmd"} 0`) {
		t.Error("no failure was counted")
	}
	harness.Contains(t, s.LogText(), `"secret":"cmd"`, "says-cmd", "the source of a secret works again")
	s.assertNotShown(t, old)
}

// pace is the interval of the box's requests: the client of these tests never widens the window of its HTTP/2
// connection.
const pace = 50 * time.Millisecond

// breakAndRepair rotates, removes and restores the file of a source, and checks the answers on open connections.
func (s *sourced) breakAndRepair(c *conns, label, cause string) {
	t := s.T
	t.Helper()
	s.rotate(t, label, "canary-rotated-"+label)
	s.UntilEvery(pace, label+": the new value is used on open connections", func() bool { return c.mismatch() == "" })
	if err := os.Remove(filepath.Join(s.files, label)); err != nil {
		t.Fatal(err)
	}
	s.UntilEvery(pace, label+": requests are refused", c.refused)
	for range 3 {
		if !c.refused() {
			t.Errorf("%s: a request was answered while the source gave nothing", label)
		}
	}
	if out := s.MustSh(s.box, "curl -sS https://www.example.com/other-"+label); strings.Contains(out, "secret_unavailable") ||
		len(s.Requests("www.example.com", "/other-"+label)) != 1 {
		t.Errorf("%s: the other rule is held up: %s", label, out)
	}
	s.Event(s.box, func(e audit.Event) bool {
		return e.Reason == name.ReasonSecretUnavailable && e.Verdict == policy.Deny && e.Status == http.StatusBadGateway &&
			strings.Contains(e.Error, `"`+label+`"`) && strings.Contains(e.Error, cause) && len(e.Headers) == 0
	})
	s.rotate(t, label, "canary-repaired-"+label)
	s.UntilEvery(pace, label+": it works again on open connections", func() bool { return c.mismatch() == "" })
}

// assertNotShown fails the test if a value is seen where it should not be.
func (s *sourced) assertNotShown(t *testing.T, old string) {
	t.Helper()
	if !strings.Contains(old, "canary-") {
		t.Fatal("the search would find nothing")
	}
	seen := map[string][]byte{"log": []byte(s.LogText()), "metrics": s.Metrics(), "decisions": fmt.Appendf(nil, "%+v", s.Events(s.box))}
	out, _ := s.GatewayCommand("headers", "list", "--box", s.box, "--json")
	seen["rules"] = []byte(out)
	out, _ = s.GatewayCommand("check", "--json")
	seen["check"] = []byte(out)
	for where, text := range seen {
		if i := bytes.Index(text, []byte("canary-")); i >= 0 {
			t.Errorf("%s: …%.200s", where, text[max(0, i-100):])
		}
	}
	own := fmt.Sprint(s.Process.Process.Pid)
	for pid, what := range processes(t) {
		if pid != own && bytes.Contains(what, []byte(s.values["env"])) {
			t.Errorf("process %s has the variable", pid)
		}
	}
	if found := strings.Fields(harness.Output(s.Sh(s.box, lab.SearchLine("canary-of-env")))); strings.Join(found, " ") != "0 0 0" {
		t.Errorf("matches in the box: %v", found)
	}
}

// TestRulesNameOnlySecretsOfTheConfiguration: an unknown name is refused with its position, and rules cannot name
// anything else on the host.
func TestRulesNameOnlySecretsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	s := newSourced(t)
	rule := func(value map[string]any) map[string]any {
		return map[string]any{"api.example.com": map[string]any{"headers": map[string]any{"X-Key": value}}}
	}
	at := "/attach_headers/api.example.com/headers/X-Key"
	for _, value := range []map[string]any{
		{"secret": "other"}, {"file": "/etc/shadow"}, {"command": []string{"id"}}, {"env": "HOME"},
		{"secret": "file", "file": "/etc/shadow"},
	} {
		for _, call := range []struct {
			method, path string
			body         map[string]any
		}{
			{"PUT", api.BoxPath(s.box, "config/attach-headers"), map[string]any{"attach_headers": rule(value)}},
			{"PUT", "/v2/box/settings/attach-headers", map[string]any{"attach_headers": rule(value)}},
			{"POST", "/v2/box", map[string]any{"attach_headers": rule(value)}},
		} {
			err := s.Client.Do(t.Context(), call.method, call.path, call.body, nil)
			if refused := responseError(err); refused == nil || refused.Status != 422 || !strings.HasPrefix(refused.Pointer, at) ||
				value["secret"] == "other" && refused.Pointer != at+"/secret" {
				t.Errorf("%s %s with %v: %+v", call.method, call.path, value, err)
			}
		}
	}
	if f := s.open().mismatch(); f != "" {
		t.Errorf("after the refusals: %s", f)
	}
}
