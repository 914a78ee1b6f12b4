package e2b

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTenantsProgram: a program that was written for E2B runs from another machine with E2B_API_KEY and E2B_DOMAIN alone: it makes
// a sandbox of a template, writes files, serves a port, is given a header that it never sees, pauses, is resumed by a visitor, and
// goes on from a snapshot. Its key is one that may create boxes.
func TestTenantsProgram(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.install(t)
	var made struct{ Key string }
	if err := s.Client.Do(t.Context(), "POST", "/v2/api-keys", map[string]any{"name": "acme", "role": "box-creator"}, &made); err != nil {
		t.Fatal(err)
	}
	s.key = made.Key
	cmd := s.tenant(t, "e2b/tenant.mjs")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := s.Net.Internet().Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.HasSuffix(out.String(), "done\n") {
		t.Fatalf("%v\n%s", err, out.String())
	}
	s.NothingReached("evil.example.net")
}

// TestConnectByCurl: clients that are no SDK speak the Connect protocol of a sandbox: JSON, and streams in frames of five bytes. A
// box of the command line is a sandbox, and a sandbox is listed there.
func TestConnectByCurl(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var box struct{ ID string }
	if err := json.Unmarshal([]byte(s.Run(0, nil, "", "box", "create", "--json")), &box); err != nil {
		t.Fatal(err)
	}
	var connected struct{ SandboxID, EnvdAccessToken string }
	s.call(&connected, http.StatusOK, "-X", "POST", "-H", "X-API-KEY: "+s.key, "--json", `{"timeout": 300}`, "https://api."+domain+"/sandboxes/"+box.ID+"/connect")
	if connected.EnvdAccessToken == "" {
		t.Fatalf("%+v", connected)
	}
	token, envd := "X-Access-Token: "+connected.EnvdAccessToken, "https://49983-"+connected.SandboxID+"."+domain

	var stat struct{ Entry struct{ Name, Type string } }
	s.call(&stat, http.StatusOK, "-H", token, "--json", `{"path": "/etc/passwd"}`, envd+"/filesystem.Filesystem/Stat")
	if stat.Entry.Name != "passwd" || stat.Entry.Type != "FILE_TYPE_FILE" {
		t.Errorf("%+v", stat)
	}
	var problem struct{ Code, Message string }
	s.call(&problem, http.StatusNotFound, "-H", token, "--json", `{"path": "/nowhere"}`, envd+"/filesystem.Filesystem/Stat")
	if problem.Code != "not_found" || !strings.Contains(problem.Message, "/nowhere") {
		t.Errorf("%+v", problem)
	}
	s.call(&problem, http.StatusUnauthorized, "--json", `{"path": "/etc/passwd"}`, envd+"/filesystem.Filesystem/Stat")
	if problem.Code != "unauthenticated" {
		t.Errorf("%+v", problem)
	}

	body := frame(`{"process": {"cmd": "/bin/sh", "args": ["-c", "echo one; echo two >&2; exit 5"]}, "stdin": false}`)
	out := s.curl("-H", token, "-H", "Content-Type: application/connect+json", "--data-binary", "@"+s.file(body), envd+"/process.Process/Start")
	all := strings.Join(frames(t, out), "\n")
	for _, want := range []string{`"start"`, `"pid"`, base64.StdEncoding.EncodeToString([]byte("one\n")), base64.StdEncoding.EncodeToString([]byte("two\n")), `"exitCode":5`} {
		if !strings.Contains(all, want) {
			t.Errorf("the stream lacks %s:\n%s", want, all)
		}
	}

	var created struct{ SandboxID string }
	s.call(&created, http.StatusCreated, "-X", "POST", "-H", "X-API-KEY: "+s.key, "--json", `{"templateID": "base", "timeout": 300}`, "https://api."+domain+"/v2/sandboxes")
	if list := s.Run(0, nil, "", "box", "list"); created.SandboxID == "" || !strings.Contains(list, created.SandboxID) {
		t.Errorf("%+v is not in %s", created, list)
	}
	if ran := s.Run(0, nil, "", "box", "exec", created.SandboxID, "--", "id", "-un"); ran != "user\n" {
		t.Errorf("the sandbox's user is %q", ran)
	}
}

// curl asks from the internet.
func (s *site) curl(args ...string) string {
	s.T.Helper()
	v4, _ := s.Net.GatewayAddrs()
	cmd := exec.CommandContext(s.T.Context(), "curl", append([]string{"-sS", "--cacert", s.ca, "--connect-to", "::" + v4.String() + ":"}, args...)...)
	var out, errout strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errout
	if err := s.Net.Internet().Start(cmd); err != nil {
		s.T.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		s.T.Fatalf("curl %v: %v %s", args, err, errout.String())
	}
	return out.String()
}

// call is curl for JSON.
func (s *site) call(into any, status int, args ...string) {
	s.T.Helper()
	out := s.curl(append([]string{"-w", "\n%{http_code}"}, args...)...)
	at := strings.LastIndex(out, "\n")
	if out[at+1:] != fmt.Sprint(status) {
		s.T.Fatalf("%v: %s, not %d: %s", args, out[at+1:], status, out[:at])
	}
	if err := json.Unmarshal([]byte(out[:at]), into); err != nil {
		s.T.Fatalf("%v: %v: %s", args, err, out)
	}
}

func (s *site) file(text string) string {
	s.T.Helper()
	path := filepath.Join(s.T.TempDir(), "request")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.T.Fatal(err)
	}
	return path
}

// frame is a message of a stream: a byte of flags, its length, and JSON (https://connectrpc.com/docs/protocol#streaming-rpcs).
func frame(message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))) + message
}

// frames splits a stream, whose last frame must have the flag of an end without an error.
func frames(t *testing.T, stream string) (all []string) {
	t.Helper()
	for len(stream) > 0 {
		if len(stream) < 5 {
			t.Fatalf("a frame ends early: %q", stream)
		}
		n := int(binary.BigEndian.Uint32([]byte(stream[1:5])))
		if len(stream) < 5+n {
			t.Fatalf("a frame of %d bytes ends early: %q", n, stream)
		}
		message := stream[5 : 5+n]
		if end := stream[0]&2 != 0; end != (len(stream) == 5+n) || end && strings.Contains(message, "error") {
			t.Errorf("the end of the stream: %q", message)
		}
		all, stream = append(all, message), stream[5+n:]
	}
	return all
}
