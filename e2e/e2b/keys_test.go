package e2b

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/session/client"
)

// work is long work that a call begins with an API key. begin returns once it runs; the channel is closed when its call has ended, and is
// nil if the call has ended already.
type work struct {
	name  string
	begin func(u *user) (ended <-chan struct{})
}

// user is a caller with an API key, and with the access token of a box that belongs to the key.
type user struct {
	*site
	t          *testing.T
	ctx        context.Context
	api        *api.Client
	box, token string
	sleep      int // seconds that the next command sleeps, which tell it apart
}

// command returns a command that sleeps for a long and unique time.
func (u *user) command() []string {
	u.sleep++
	return []string{"sh", "-c", fmt.Sprintf("echo begun; exec sleep %d", u.sleep)}
}

// follow reads the response to a call of the own API until it ends. It waits for its header, which is sent when the work has begun.
func (u *user) follow(method, path string, body any) <-chan struct{} {
	u.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		u.t.Fatal(err)
	}
	res, err := u.api.Stream(u.ctx, method, api.BoxPath(u.box)+path, "application/json", strings.NewReader(string(data)))
	if err != nil {
		u.t.Fatalf("%s: %v", path, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}()
	return ended
}

// stream begins a streaming procedure of the box's E2B API, and waits until the response has begun.
func (u *user) stream(procedure, message string) <-chan struct{} {
	u.t.Helper()
	v4, _ := u.Net.GatewayAddrs()
	cmd := exec.CommandContext(u.ctx, "curl", "-sSN", "--cacert", u.ca, "--connect-to", "::"+v4.String()+":", "-H", "X-Access-Token: "+u.token,
		"-H", "Content-Type: application/connect+json", "--data-binary", "@"+u.file(frame(message)), "https://49983-"+u.box+"."+domain+procedure)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = u.Net.Internet().Start(cmd)
	}
	if err == nil {
		_, err = io.ReadFull(out, make([]byte, 8))
	}
	if err != nil {
		u.t.Fatalf("%s: %v", procedure, err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	}()
	return ended
}

// start returns the message that starts a command by E2B's API.
func (u *user) start(tag string) string {
	command := u.command()
	args, _ := json.Marshal(command[1:])
	return fmt.Sprintf(`{"process": {"cmd": %q, "args": %s}, "tag": %q, "stdin": false}`, command[0], args, tag)
}

// works is every kind of long work that a key can begin.
var works = []work{
	{"exec-stream", func(u *user) <-chan struct{} {
		return u.follow("POST", "/exec-stream", map[string]any{"command": u.command()})
	}},
	{"exec-detached", func(u *user) <-chan struct{} {
		if err := u.api.Do(u.ctx, "POST", api.BoxPath(u.box, "exec-detached"), map[string]any{"command": u.command()}, nil); err != nil {
			u.t.Fatal(err)
		}
		return nil
	}},
	{"a process and its output", func(u *user) <-chan struct{} {
		var p struct{ Pid int }
		if err := u.api.Do(u.ctx, "POST", api.BoxPath(u.box, "processes"), map[string]any{"command": u.command()}, &p); err != nil {
			u.t.Fatal(err)
		}
		return u.follow("GET", fmt.Sprintf("/processes/%d/output", p.Pid), nil)
	}},
	{"a session", func(u *user) <-chan struct{} {
		s, err := client.Open(u.ctx, u.api, u.box, client.Request{Command: u.command()})
		if err != nil {
			u.t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = s.Wait(io.Discard, io.Discard)
		}()
		return ended
	}},
	{"a watch of files", func(u *user) <-chan struct{} { return u.follow("GET", "/files/watch?path=/tmp", nil) }},
	{"decisions", func(u *user) <-chan struct{} { return u.follow("GET", "/egress?follow=true", nil) }},
	{"E2B: a process and its output", func(u *user) <-chan struct{} { return u.stream("/process.Process/Start", u.start("e2b")) }},
	{"E2B: the output of a process", func(u *user) <-chan struct{} {
		return u.stream("/process.Process/Connect", `{"process": {"tag": "e2b"}}`)
	}},
	{"E2B: a watch of files", func(u *user) <-chan struct{} { return u.stream("/filesystem.Filesystem/WatchDir", `{"path": "/tmp"}`) }},
}

// TestWorkEndsWithItsKey: all work that goes on after its call was admitted ends when the key of the call is revoked, replaced or expires, also the
// operator's, whose ID stays the same; the command of each ends too. Work by another key goes on.
func TestWorkEndsWithItsKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	made := func(name string, more map[string]any) string {
		t.Helper()
		body, key := map[string]any{"name": name, "role": "admin"}, struct{ Key string }{}
		for k, v := range more {
			body[k] = v
		}
		if err := s.Client.Do(t.Context(), "POST", "/v2/api-keys", body, &key); err != nil {
			t.Fatal(err)
		}
		return key.Key
	}
	stays := s.user(t, made("stays", nil), 20_000)
	kept := make([]<-chan struct{}, len(works))
	for i, w := range works {
		kept[i] = w.begin(stays)
	}
	for i, c := range []struct {
		what string
		key  func() string
		end  func()
	}{
		{"a key that is revoked", func() string { return made("revoked", nil) }, func() { s.Run(0, nil, "", "api-key", "rm", "revoked") }},
		{"a key that is replaced", func() string { return made("replaced", nil) }, func() { s.Run(0, nil, "", "api-key", "rotate", "replaced") }},
		{"a key that expires", func() string { return made("expires", map[string]any{"expires_in": "20s"}) }, func() {}},
		{"the operator's key", func() string { return s.key }, func() { s.Run(0, nil, "", "api-key", "rotate") }},
	} {
		u := s.user(t, c.key(), 30_000+1000*i)
		running := make([]<-chan struct{}, len(works))
		for i, w := range works {
			running[i] = w.begin(u)
		}
		if list := s.sleeping(stays.api, u); c.what != "a key that expires" && len(list) != u.sleep-30_000-1000*i {
			t.Errorf("%s: running before its end: %v", c.what, list)
		}
		c.end()
		for i, w := range works {
			if running[i] == nil {
				continue
			}
			select {
			case <-running[i]:
			case <-time.After(time.Minute):
				t.Fatalf("%s: %s goes on", c.what, w.name)
			}
		}
		s.Until("the commands have ended: "+c.what, func() bool { return len(s.sleeping(stays.api, u)) == 0 })
	}
	for i, w := range works {
		select {
		case <-kept[i]:
			t.Errorf("another key: %s has ended", w.name)
		default:
		}
	}
	if list := s.sleeping(stays.api, stays); len(list) != stays.sleep-20_000 {
		t.Errorf("commands of another key: %v", list)
	}
}

// user returns a caller with a key and a box that the key has made.
func (s *site) user(t *testing.T, key string, sleep int) *user {
	t.Helper()
	var b struct{ SandboxID, EnvdAccessToken string }
	s.call(&b, http.StatusCreated, "-X", "POST", "-H", "X-API-KEY: "+key, "--json", `{"templateID": "base", "timeout": 600}`, "https://api."+domain+"/sandboxes")
	return &user{site: s, t: t, ctx: t.Context(), api: api.NewClient(s.Socket, key), box: b.SandboxID, token: b.EnvdAccessToken, sleep: sleep}
}

// sleeping returns the commands of a user that still run in its box, by another caller's look into it.
func (s *site) sleeping(by *api.Client, u *user) []string {
	s.T.Helper()
	var out struct{ Output string }
	list := map[string]any{"command": []string{"sh", "-c", `for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' <"$f"; echo; done 2>/dev/null | grep '^sleep ' || true`}}
	if err := by.Do(s.T.Context(), "POST", api.BoxPath(u.box, "exec"), list, &out); err != nil {
		s.T.Fatal(err)
	}
	return strings.FieldsFunc(strings.TrimSpace(out.Output), func(r rune) bool { return r == '\n' })
}
