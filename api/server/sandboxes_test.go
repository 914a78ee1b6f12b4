package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/e2b/envd"
	"boxgate/api/stream"
	"boxgate/audit/trail"
	"boxgate/policy"
	"boxgate/quota"
)

// TestProcessesOfTheAPI: a process is started, listed, read, fed and ended by calls of several keys, and ends with its own key.
func TestProcessesOfTheAPI(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	at := "/v2/box/" + id + "/processes"
	ci := apitest.With(f.key(t, `{"name":"ci","role":"one-box","box":"`+id+`"}`))
	start := func(body string) (p struct {
		Pid               int
		Tag, Key, RunID   string
		Command           []string
		Input, Terminal   bool
		Folder, StartedAt string
	}) {
		t.Helper()
		got := f.Call(t, "POST", at, body, ci)
		if got.StatusCode != 201 || json.Unmarshal([]byte(got.Text), &p) != nil || p.Pid == 0 {
			t.Fatal(got.Status, got.Text)
		}
		return p
	}
	p := start(`{"command":["sh","-c","read a; echo \"$a $B\"; exit 7"],"input":true,"tag":"t","env":{"B":"secret"}}`)
	list := f.Call(t, "GET", at, "")
	if !strings.Contains(list.Text, `"tag":"t"`) || strings.Contains(list.Text, "secret") {
		t.Error(list.Text)
	}
	pid := at + "/" + json.Number(jsonOf(p.Pid)).String()
	lines := f.stream(t, pid+"/output", "", func(r *http.Request) { r.Method = "GET" })
	if got := f.Call(t, "POST", pid+"/input", `{"data":"aGVsbG8K","end":true}`); got.StatusCode != 200 {
		t.Error(got.Status, got.Text)
	}
	text, code := "", -1
	dec := json.NewDecoder(lines.Body)
	for {
		var frame stream.Frame
		if dec.Decode(&frame) != nil {
			break
		}
		if text += string(frame.Data); frame.ExitCode != nil {
			code = *frame.ExitCode
		}
	}
	if text != "hello secret\n" || code != 7 {
		t.Errorf("%q, exit code %d", text, code)
	}
	for path, body := range map[string]string{"/input": `{"data":"eA=="}`, "/signal": `{"signal":"KILL"}`, "/resize": `{"rows":1,"cols":1}`} {
		if got := f.Call(t, "POST", pid+path, body); got.StatusCode != 404 {
			t.Errorf("%s of a process that has ended: %s %s", path, got.Status, got.Text)
		}
		if got := f.Call(t, "POST", at+"/x"+path, body); got.StatusCode != 404 {
			t.Errorf("%s of no process: %s", path, got.Status)
		}
	}
	for body, want := range map[string]int{
		`{"command":[]}`: 422, `{"command":["a"],"timeout":0}`: 422, `{"command":["a"],"terminal":{"rows":0,"cols":5000}}`: 422, `{"command":["/nowhere"]}`: 503,
		`{"command":["a"],"tag":"` + strings.Repeat("x", 257) + `"}`: 422, `{"command":["a"],"env":{"A=":"b"}}`: 422, `{"command":["a"],"user":"mallory"}`: 422,
	} {
		if got := f.Call(t, "POST", at, body); got.StatusCode != want {
			t.Errorf("%s: %s %s", body, got.Status, got.Text)
		}
	}
	p = start(`{"command":["sleep","1000"],"terminal":{"rows":24,"cols":80}}`)
	pid = at + "/" + jsonOf(p.Pid)
	for path, c := range map[string]struct {
		body string
		want int
	}{"/resize": {`{"rows":30,"cols":100}`, 200}, "/input": {`{"end":true}`, 422}, "/signal": {`{"signal":"STOP"}`, 422}} {
		if got := f.Call(t, "POST", pid+path, c.body); got.StatusCode != c.want {
			t.Errorf("%s %s: %s %s", path, c.body, got.Status, got.Text)
		}
	}
	if got := f.Call(t, "POST", pid+"/input", `{"data":"?"}`); got.StatusCode != 422 {
		t.Error(got.Status, got.Text)
	}
	lines = f.stream(t, pid+"/output", "", func(r *http.Request) { r.Method = "GET" })
	if got := f.Call(t, "DELETE", "/v2/api-keys/ci", ""); got.StatusCode != 200 {
		t.Fatal(got.Status, got.Text)
	}
	var end bytes.Buffer
	_, _ = end.ReadFrom(lines.Body)
	if !strings.Contains(end.String(), "API key") {
		t.Errorf("%q", end.String())
	}
}

func jsonOf(v any) string {
	data, _ := json.Marshal(v)
	return string(data)
}

// TestCallsOfSandboxes: a call with the credential of a box has the permissions, quotas and records of the endpoint that does the same,
// and ends with its credential.
func TestCallsOfSandboxes(t *testing.T) {
	t.Parallel()
	var limits quota.Limits
	limits[quota.Commands] = 1
	f, dir := withTrail(t, func(c *Config) { c.Quotas = quota.New(quota.Config{Defaults: limits}) })
	box := policy.BoxID(f.create(t, `{}`))
	own := api.Caller{Key: "key_1", Name: "own", Role: api.RoleBox, Box: box}
	begin := func(c api.Caller, to policy.BoxID, route string, valid func() bool) (context.Context, func(error), error) {
		r := httptest.NewRequest("POST", "/x", nil)
		r, end, err := gate{f.api}.Begin(r, envd.Call{Caller: c, Box: to, Route: route, Name: "POST /" + route, Valid: valid})
		if err != nil {
			return nil, nil, err
		}
		return r.Context(), end, nil
	}
	var ended atomic.Bool
	ctx, end, err := begin(own, box, "startProcess", func() bool { return !ended.Load() })
	if err != nil || api.CallerOf(ctx) != own || quota.ScopeOf(ctx) == nil {
		t.Fatal(err)
	}
	if _, _, err := begin(own, box, "startProcess", func() bool { return true }); err == nil || !strings.Contains(err.Error(), "commands") {
		t.Errorf("a second command: %v", err)
	}
	_, other, err := begin(own, box, "signalProcess", func() bool { return true })
	if err != nil {
		t.Fatal("a signal needs no place for a command: ", err)
	}
	other(nil)
	ended.Store(true)
	<-ctx.Done()
	if context.Cause(ctx) == nil || errors.Is(context.Cause(ctx), context.Canceled) {
		t.Error(context.Cause(ctx))
	}
	end(api.ErrNotFound)
	if _, end, err = begin(own, box, "startProcess", func() bool { return true }); err != nil {
		t.Fatal("the place of a command that has ended: ", err)
	}
	end(nil)
	for what, c := range map[string]api.Caller{
		"another box": {Key: "key_2", Role: api.RoleBox, Box: "other"}, "a reader": {Key: "key_3", Role: api.RoleReader}, "an auditor": {Key: "key_4", Role: api.RoleAuditor},
		"a creator of other boxes": {Key: "key_6", Role: api.RoleCreator}, "no role": {Key: "key_7"},
	} {
		for _, route := range []string{"startProcess", "readProcess", "statFile", "no endpoint"} {
			if _, _, err := begin(c, box, route, func() bool { return true }); err == nil {
				t.Errorf("%s: %s", what, route)
			}
		}
	}
	list, _ := entries(t, dir)
	counts := map[trail.Kind]int{}
	for _, e := range list {
		if e.Route == "POST /startProcess" && e.KeyID == "key_1" {
			counts[e.Kind]++
		}
	}
	if counts[trail.Call] != 2 || counts[trail.Answer] != 2 || counts[trail.Refused] != 1 {
		t.Errorf("%v in the trail", counts)
	}
	full := serve(t, func(c *Config) { c.Trail = fullTrail{} })
	r := httptest.NewRequest("POST", "/x", nil)
	admin := api.Caller{Key: api.OperatorKey, Role: api.RoleAdmin}
	if _, _, err := (gate{full.api}).Begin(r, envd.Call{Caller: admin, Box: "b", Route: "startProcess", Name: "x", Valid: func() bool { return true }}); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("without a trail: %v", err)
	}
}

// TestAttackBusyTerminal: input does not fill the audit trail: it has one entry a minute for each key, box and process. Other calls have
// an entry each.
func TestAttackBusyTerminal(t *testing.T) {
	t.Parallel()
	f, dir := withTrail(t)
	box, other := policy.BoxID(f.create(t, `{}`)), policy.BoxID(f.create(t, `{}`))
	count := func(route string) (n int) {
		t.Helper()
		list, _ := entries(t, dir)
		for _, e := range list {
			if e.Route == route {
				n++
			}
		}
		return n
	}
	admin := api.Caller{Key: "key_1", Name: "one", Role: api.RoleAdmin}
	call := func(c api.Caller, to policy.BoxID, route string) {
		t.Helper()
		_, end, err := gate{f.api}.Begin(httptest.NewRequest("POST", "/x", nil), envd.Call{Caller: c, Box: to, Route: route, Name: route, Valid: func() bool { return true }})
		if err != nil {
			t.Fatal(err)
		}
		end(nil)
	}
	for range 50 {
		call(admin, box, "writeProcess")
		call(admin, box, "signalProcess")
	}
	if n := count("writeProcess"); n != 2 {
		t.Errorf("%d entries of input", n)
	}
	if n := count("signalProcess"); n != 100 {
		t.Errorf("%d entries of signals", n)
	}
	call(admin, other, "writeProcess")
	call(api.Caller{Key: "key_2", Name: "two", Role: api.RoleAdmin}, box, "writeProcess")
	if n := count("writeProcess"); n != 6 {
		t.Errorf("%d entries of input by two keys, in two boxes", n)
	}
	at := "/v2/box/" + string(box) + "/processes"
	for _, pid := range []string{"1", "1", "2", "1"} {
		if got := f.Call(t, "POST", at+"/"+pid+"/input", `{"data":"eA=="}`); got.StatusCode != 404 {
			t.Error(got.Status, got.Text)
		}
	}
	if n := count("POST /v2/box/{id}/processes/{pid}/input"); n != 4 {
		t.Errorf("%d entries of input of two processes", n)
	}

	var s repeats
	now := time.Now()
	if s.add(repeat{key: "a"}, now); !s.has(repeat{key: "a"}, now) || s.has(repeat{key: "b"}, now) || s.has(repeat{key: "a"}, now.Add(repeatTime)) {
		t.Error("a call is taken for another one, or for one long ago")
	}
	for i := range 2 * maxRepeats {
		s.add(repeat{key: jsonOf(i)}, now)
	}
	if len(s.last) != maxRepeats || s.has(repeat{key: jsonOf(2*maxRepeats - 1)}, now) {
		t.Errorf("%d calls are kept", len(s.last))
	}
	if s.add(repeat{key: "later"}, now.Add(repeatTime)); len(s.last) != 1 {
		t.Errorf("%d calls are kept after their time", len(s.last))
	}
}
