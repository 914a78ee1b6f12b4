package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
)

func TestExec(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	path := "/v2/box/" + id + "/exec"
	tests := []struct {
		body   string
		status int
		want   map[string]any
	}{
		{`{"command":["sh","-c","echo out; echo err >&2"]}`, 200, map[string]any{"exit_code": 0.0, "output": "out\n", "error": "err\n", "cpu_ns": 1500.0}},
		{`{"command":["sh","-c","exit 7"]}`, 200, map[string]any{"exit_code": 7.0, "output": ""}},
		{`{"command":["printf","\\377x"]}`, 200, map[string]any{"output": "\uFFFDx"}},
		{`{"command":["head","-c","100000","/dev/zero"]}`, 200, map[string]any{"truncated": true}},
		{`{"command":["/nowhere/nothing"]}`, 503, map[string]any{"error": "/nowhere/nothing cannot be started"}},
		{`{"command":["sleep","600"],"timeout":50}`, 200, map[string]any{"exit_code": 124.0, "error": "boxgate: the command was killed after its timeout of 50ms\n"}},
		{`{"command":["sh","-c","printf so; printf far >&2; exec sleep 600"],"timeout":50}`, 200, map[string]any{"exit_code": 124.0, "output": "so", "error": "far\nboxgate: the command was killed after its timeout of 50ms\n"}},
	}
	for _, tt := range tests {
		got := f.Call(t, "POST", path, tt.body)
		body := got.JSON(t)
		if got.StatusCode != tt.status {
			t.Errorf("%s: %s %s", tt.body, got.Status, got.Text)
		}
		for field, want := range tt.want {
			if body[field] != want {
				t.Errorf("%s: %s is %q, want %q", tt.body, field, body[field], want)
			}
		}
	}
	for folder, dir := range map[string]string{"": api.Workspace, "src": api.Workspace + "/src", "/tmp": "/tmp", "../..": "/"} {
		f.Call(t, "POST", path, `{"command":["true"],"folder":"`+folder+`"}`)
		if got := f.host.Execs[len(f.host.Execs)-1].Dir; got != dir {
			t.Errorf("folder %q is %q, want %q", folder, got, dir)
		}
	}
}

func TestRunsAndLogs(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	first := f.Call(t, "POST", "/v2/box/"+id+"/exec", `{"command":["sh","-c","echo one"]}`).JSON(t)["run_id"]
	f.Call(t, "POST", "/v2/box/"+id+"/exec", `{"command":["sh","-c","exit 3"]}`)
	runs, _ := f.Call(t, "GET", "/v2/box/"+id+"/runs", "").JSON(t)["runs"].([]any)
	if len(runs) != 2 {
		t.Fatalf("%d runs", len(runs))
	}
	newest, oldest := runs[0].(map[string]any), runs[1].(map[string]any)
	if oldest["id"] != first || oldest["status"] != "completed" || oldest["output"] != nil || oldest["type"] != "shell" || oldest["prompt"] != "sh -c echo one" || oldest["compute_cost_usd"] != 0.0 || oldest["cost_usd"] != 0.0 {
		t.Errorf("%v", oldest)
	}
	if newest["status"] != "failed" || newest["exit_code"] != nil {
		t.Errorf("%v", newest)
	}
	for asked, want := range map[string]any{"boxuser": nil, "root": "root", "1000:4": "1000:4"} {
		as := f.Call(t, "POST", "/v2/box/"+id+"/exec", `{"command":["id"],"user":"`+asked+`"}`).JSON(t)["run_id"].(string)
		if got := f.Call(t, "GET", "/v2/box/"+id+"/runs/"+as, "").JSON(t)["user"]; got != want {
			t.Errorf("a run as %s has the user %v", asked, got)
		}
	}
	if oldest["user"] != nil {
		t.Errorf("the user by default is %v", oldest["user"])
	}
	detail := f.Call(t, "GET", "/v2/box/"+id+"/runs/"+first.(string), "").JSON(t)
	if detail["exit_code"] != 0.0 || detail["output"] != "one\n" {
		t.Errorf("%v", detail)
	}
	if got := f.Call(t, "GET", "/v2/box/"+id+"/runs/none", ""); got.StatusCode != 404 {
		t.Error(got.Status)
	}
	logs, _ := f.Call(t, "GET", "/v2/box/"+id+"/logs?offset=1&limit=1", "").JSON(t)["logs"].([]any)
	if len(logs) != 1 || !strings.Contains(logs[0].(map[string]any)["message"].(string), "echo one") {
		t.Errorf("%v", logs)
	}
	if got := f.Call(t, "GET", "/v2/box/"+id+"/logs?limit=-1", ""); got.StatusCode != 422 {
		t.Error(got.Status)
	}
	f.Call(t, "DELETE", "/v2/box/"+id, "")
	f.create(t, `{}`)
	if got := f.Call(t, "GET", "/v2/box/box2/runs", ""); strings.TrimSpace(got.Text) != `{"runs":[]}` {
		t.Errorf("another box's runs: %s", got.Text)
	}
}

// stream starts an exec-stream and returns the response without reading its body.
func (f *fixture) stream(t *testing.T, path, body string, edit ...func(*http.Request)) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", f.URL+path, strings.NewReader(body))
	if body == "" {
		req, err = http.NewRequestWithContext(t.Context(), "GET", f.URL+path, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Box-Api-Key", apitest.Key)
	for _, e := range edit {
		e(req)
	}
	resp, err := f.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// read reads until the text has arrived.
func read(t *testing.T, r io.Reader, until string) string {
	t.Helper()
	var got []byte
	buf := make([]byte, 4096)
	for !strings.Contains(string(got), until) {
		n, err := r.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			t.Fatalf("%v before %q came: %q", err, until, got)
		}
	}
	return string(got)
}

// Output arrives while the command runs: the command waits for a file that is only created after its first word has
// arrived.
func TestExecStreamIsLive(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	flag := filepath.Join(f.host.Dir, "go")
	script := `echo first; while [ ! -e ` + flag + ` ]; do sleep 0.01; done; echo second >&2; exit 4`
	resp := f.stream(t, "/v2/box/"+id+"/exec-stream", `{"command":["sh","-c","`+script+`"]}`)
	if got := read(t, resp.Body, "first\n"); got != "first\n" {
		t.Fatalf("%q", got)
	}
	f.Call(t, "POST", "/v2/box/"+id+"/exec", `{"command":["touch","`+flag+`"]}`)
	rest, err := io.ReadAll(resp.Body)
	if want := "second\nevent: exit\ndata: {\"exit_code\":4,\"cpu_ns\":1500}\n\n"; err != nil || string(rest) != want {
		t.Errorf("%q, want %q (%v)", rest, want, err)
	}
}

// Even a silent command is reported as started immediately; one that cannot start is answered with a status instead of a
// stream.
func TestExecStreamHead(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	resp := f.stream(t, "/v2/box/"+id+"/exec-stream", `{"command":["sleep","600"]}`)
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	runs, _ := f.Call(t, "GET", "/v2/box/"+id+"/runs", "").JSON(t)["runs"].([]any)
	run := runs[0].(map[string]any)
	if run["status"] != "running" {
		t.Errorf("%v", run)
	}
	if got := f.Call(t, "POST", "/v2/box/"+id+"/runs/"+run["id"].(string)+"/cancel", ""); got.StatusCode != 200 || got.JSON(t)["status"] != "cancelled" {
		t.Errorf("%s %s", got.Status, got.Text)
	}
	if rest, _ := io.ReadAll(resp.Body); !strings.HasPrefix(string(rest), "event: error\ndata: {\"error\":\"the run was cancelled\"") {
		t.Errorf("%q", rest)
	}
	if got := f.Call(t, "POST", "/v2/box/"+id+"/runs/none/cancel", ""); got.StatusCode != 404 {
		t.Error(got.Status)
	}
	if resp := f.stream(t, "/v2/box/"+id+"/exec-stream", `{"command":["/nowhere/nothing"]}`); resp.StatusCode != 503 {
		t.Error(resp.Status)
	}
	if resp := f.stream(t, "/v2/box/nobody/exec-stream", `{"command":["true"]}`); resp.StatusCode != 404 {
		t.Error(resp.Status)
	}
}

// TestClientGoes: a run survives its disconnected client, whichever call started it, and can then be cancelled.
func TestClientGoes(t *testing.T) {
	t.Parallel()
	f := serve(t)
	for _, call := range []string{"exec", "exec-stream", "exec-detached"} {
		id := f.create(t, `{}`)
		flag := filepath.Join(f.host.Dir, call)
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "POST", f.URL+"/v2/box/"+id+"/"+call, strings.NewReader(
			`{"command":["sh","-c","while [ ! -e `+flag+` ]; do echo x; sleep 0.01; done; echo went on"]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Box-Api-Key", apitest.Key)
		go func() {
			if resp, err := f.Client().Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		run := f.untilRun(t, id, func(run map[string]any) bool { return run["status"] == "running" })
		leave()
		f.Call(t, "POST", "/v2/box/"+id+"/exec", `{"command":["touch","`+flag+`"]}`)
		f.untilRun(t, id, func(r map[string]any) bool { return r["id"] == run["id"] && r["status"] == "completed" })
	}
}

// untilRun waits for a run of a box.
func (f *fixture) untilRun(t *testing.T, box string, is func(map[string]any) bool) map[string]any {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		runs, _ := f.Call(t, "GET", "/v2/box/"+box+"/runs", "").JSON(t)["runs"].([]any)
		for _, r := range runs {
			if run := r.(map[string]any); is(run) {
				return run
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the run does not come: %v", runs)
		}
	}
}

// TestCode: a missing interpreter is a 422, however the script's message is split into writes. Output that only begins
// similarly is not.
func TestCode(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	for body, status := range map[string]int{
		`{"code":"print(1+2)","language":"python"}`:                                            200,
		`{"code":"import sys; sys.stderr.write('boxgate-'); sys.exit(3)","language":"python"}`: 200,
		`{"code":"x","language":"ruby"}`:                                                       422,
		`{"code":"","language":"js"}`:                                                          422,
		`{"code":"1"}`:                                                                         422,
	} {
		if got := f.Call(t, "POST", "/v2/box/"+id+"/code", body); got.StatusCode != status {
			t.Errorf("%s: %s %s", body, got.Status, got.Text)
		}
	}
	got := f.Call(t, "POST", "/v2/box/"+id+"/code", `{"code":"import sys; print(sys.argv, sys.stdin.read()); sys.stderr.write('boxgate-'); sys.exit(3)","language":"python"}`).JSON(t)
	if got["exit_code"] != 3.0 || got["output"] != "['-'] \n" || got["error"] != "boxgate-" {
		t.Errorf("%v", got)
	}
	resp := f.stream(t, "/v2/box/"+id+"/code-stream", `{"code":"print('hi')","language":"python"}`)
	if all, err := io.ReadAll(resp.Body); err != nil || string(all) != "hi\nevent: exit\ndata: {\"exit_code\":0,\"cpu_ns\":1500}\n\n" {
		t.Errorf("%q %v", all, err)
	}
}

// The command line's client keeps the two streams apart and passes arbitrary bytes, also over a unix socket.
func TestClient(t *testing.T) {
	t.Parallel()
	f := serve(t)
	socket := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := f.secondServer(t)
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
	for _, target := range []string{f.URL, f.URL + "/", socket} {
		c := api.NewClient(target, apitest.Key)
		var box struct{ ID string }
		if err := c.Do(t.Context(), "POST", "/v2/box", map[string]any{"size": "large"}, &box); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		code, err := c.Exec(t.Context(), box.ID, api.ExecRequest{Command: []string{"sh", "-c", `printf 'a\377b'; echo e >&2; exit 5`}}, &stdout, &stderr)
		if err != nil || code != 5 || stdout.String() != "a\xffb" || stderr.String() != "e\n" {
			t.Errorf("%d %v %q %q", code, err, &stdout, &stderr)
		}
		_, err = c.Exec(t.Context(), box.ID, api.ExecRequest{Command: []string{"/nowhere"}}, io.Discard, io.Discard)
		if refusal, ok := errors.AsType[*api.ResponseError](err); !ok || refusal.Status != 503 {
			t.Errorf("%v", err)
		}
		err = c.Do(t.Context(), "POST", "/v2/box", map[string]any{"size": "vast"}, nil)
		if refusal, ok := errors.AsType[*api.ResponseError](err); !ok || refusal.Status != 422 || refusal.Pointer != "/size" {
			t.Errorf("%v", err)
		}
		var pem []byte
		if err := c.Get(t.Context(), "/v2/box/"+box.ID+"/ca", &pem); err != nil || !bytes.Contains(pem, []byte("CERTIFICATE")) {
			t.Errorf("%q %v", pem, err)
		}
	}
	err = api.NewClient(filepath.Join(t.TempDir(), "none.sock"), apitest.Key).Get(context.Background(), "/v2/box", nil)
	if err == nil || strings.Contains(err.Error(), apitest.Key) || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("%v", err)
	}
	if err := api.NewClient(f.URL, "wrong").Get(t.Context(), "/v2/box", nil); err == nil || !strings.Contains(err.Error(), "API key") {
		t.Errorf("%v", err)
	}
}

// TestDetachedCommand: exec-detached answers with the run while the command continues, with its variables and timeout. What cannot start
// is refused like any command.
func TestDetachedCommand(t *testing.T) {
	t.Parallel()
	f := serve(t)
	path := "/v2/box/" + f.create(t, `{}`)
	flag := filepath.Join(f.host.Dir, "flag")
	got := f.Call(t, "POST", path+"/exec-detached", `{"command":["sh","-c","echo $GREETING; while [ ! -e `+flag+` ]; do sleep 0.01; done"],"env":{"GREETING":"hello"}}`)
	run, _ := got.JSON(t)["id"].(string)
	if got.StatusCode != 202 || got.JSON(t)["status"] != "running" || run == "" {
		t.Fatalf("%s %s", got.Status, got.Text)
	}
	if strings.Contains(got.Text, "GREETING=") {
		t.Errorf("the run shows a variable: %s", got.Text)
	}
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "the command has ended", func() bool {
		now := f.Call(t, "GET", path+"/runs/"+run, "").JSON(t)
		return now["status"] == "completed" && now["output"] == "hello\n"
	})
	late := f.Call(t, "POST", path+"/exec-detached", `{"command":["sleep","600"],"timeout":300}`).JSON(t)["id"].(string)
	await(t, "the timeout ends the command", func() bool {
		now := f.Call(t, "GET", path+"/runs/"+late, "")
		return now.JSON(t)["status"] == "failed" && strings.Contains(now.Text, "timeout of 300ms")
	})
	for body, status := range map[string]int{
		`{"command":["/nowhere/nothing"]}`:            503,
		`{"command":[]}`:                              422,
		`{"command":["true"],"env":{"1X":"y"}}`:       422,
		`{"command":["true"],"env":{"X":"a\u0000b"}}`: 422,
		`{"command":["true"],"timeout":0}`:            422,
	} {
		if got := f.Call(t, "POST", path+"/exec-detached", body); got.StatusCode != status {
			t.Errorf("%s: %s %s", body, got.Status, got.Text)
		}
	}
	if got := f.Call(t, "POST", "/v2/box/nobody/exec-detached", `{"command":["true"]}`); got.StatusCode != 404 {
		t.Errorf("%s %s", got.Status, got.Text)
	}
}
