package ssh

import (
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/api"
)

// running logs in, starts a command that runs for long, and returns a channel that is closed when the connection has ended.
func (w *world) running(box string, auth gossh.AuthMethod, mark string) (ended chan struct{}) {
	w.T.Helper()
	c, err := w.logIn(box, auth)
	if err != nil {
		w.T.Fatal(err)
	}
	s, err := c.NewSession()
	if err != nil {
		w.T.Fatal(err)
	}
	out, _ := s.StdoutPipe()
	if err := s.Start("echo up; exec sleep " + mark); err != nil {
		w.T.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 3)); err != nil {
		w.T.Fatal(err)
	}
	ended = make(chan struct{})
	go func() {
		_ = c.Wait()
		close(ended)
	}()
	return ended
}

// TestEndOfALoginCuts: a connection ends with its API key, its public key and its box, and its command with it.
func TestEndOfALoginCuts(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box, doomed := w.Create(map[string]any{}), w.Create(map[string]any{})
	_, other := w.apiKey("admin", nil)
	stays := w.running(box, gossh.Password(other), "7001")
	cases := map[string]struct {
		box, mark string
		login     func() (name string, auth gossh.AuthMethod)
		end       func(name string)
	}{
		"an API key that is revoked": {box, "7002", func() (string, gossh.AuthMethod) {
			name, key := w.apiKey("admin", nil)
			return name, gossh.Password(key)
		}, func(name string) { w.Run(0, nil, "", "api-key", "rm", name) }},
		"an API key that is replaced": {box, "7003", func() (string, gossh.AuthMethod) {
			name, key := w.apiKey("admin", nil)
			return name, gossh.Password(key)
		}, func(name string) { w.Run(0, nil, "", "api-key", "rotate", name) }},
		"a public key of an API key that is revoked": {box, "7004", func() (string, gossh.AuthMethod) {
			name, _ := w.apiKey("one-box", map[string]any{"box": box})
			return name, gossh.PublicKeys(w.signerOf(name))
		}, func(name string) { w.Run(0, nil, "", "api-key", "rm", name) }},
		"a public key that is removed": {box, "7005", func() (string, gossh.AuthMethod) {
			name, _ := w.apiKey("admin", nil)
			return name, gossh.PublicKeys(w.signerOf(name))
		}, func(name string) {
			var list struct {
				Keys []struct{ ID string } `json:"ssh_keys"`
			}
			if err := w.Client.Get(t.Context(), "/v2/api-keys/"+name+"/ssh-keys", &list); err != nil || len(list.Keys) != 1 {
				t.Fatal(list, err)
			}
			w.Run(0, nil, "", "api-key", "ssh-key", "rm", name, list.Keys[0].ID)
		}},
		"an API key that expires": {box, "7006", func() (string, gossh.AuthMethod) {
			name, key := w.apiKey("admin", map[string]any{"expires_in": "3s"})
			return name, gossh.Password(key)
		}, func(string) {}},
		"a box that is deleted": {doomed, "7007", func() (string, gossh.AuthMethod) {
			name, key := w.apiKey("admin", nil)
			return name, gossh.Password(key)
		}, func(string) { w.MustDelete(doomed) }},
	}
	for what, c := range cases {
		name, auth := c.login()
		ended := w.running(c.box, auth, c.mark)
		c.end(name)
		began := time.Now()
		select {
		case <-ended:
			t.Logf("%s: cut %v after the call", what, time.Since(began))
		case <-time.After(time.Minute):
			t.Errorf("%s: the connection stays", what)
		}
		if c.box == box {
			w.Until("the command has ended: "+what, func() bool {
				out, _ := w.Sh(box, "pgrep -f 'sleep "+c.mark[:3]+"["+c.mark[3:]+"]' || echo gone")
				return strings.Contains(out, "gone")
			})
		}
		if _, err := w.logIn(c.box, auth); err == nil {
			t.Errorf("%s: another login", what)
		}
	}
	select {
	case <-stays:
		t.Error("the connection of another key was cut")
	default:
	}
}

// TestTrailOfSSH: sessions are in the audit trail and in the history of their box.
func TestTrailOfSSH(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box := w.Create(map[string]any{})
	name, key := w.apiKey("admin", nil)
	if _, err := w.logIn(box, gossh.Password("wrong")); err == nil {
		t.Fatal("logged in with a wrong key")
	}
	w.Until("the refused login is in the trail", func() bool {
		out, _ := w.GatewayCommand("audit")
		return strings.Contains(out, "- ssh, 127.0.0.1 ssh login 403")
	})
	c := w.mustLogIn(box, key)
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run("exit 5 # a-secret-in-it"); exitStatus(err) != 5 {
		t.Fatal(err)
	}
	w.serveInside(box, "127.0.0.1", "8111")
	for range 3 {
		conn, err := c.Dial("tcp", "localhost:8111")
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	_ = c.Close()
	var out string
	w.Until("all has ended", func() bool {
		out, _ = w.GatewayCommand("audit", "--box", box)
		return strings.Contains(out, `"run":"run_`) && strings.Count(out, "ssh port 8111") == 2
	})
	if n := strings.Count(out, " ssh command "); n != 2 || !strings.Contains(out, name+" ssh, 127.0.0.1 ssh command") || strings.Contains(out, "a-secret-in-it") {
		t.Errorf("the trail: %s", out)
	}
	var answer struct {
		Runs []struct{ Prompt, Status string }
	}
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "runs"), &answer); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, r := range answer.Runs {
		found = found || r.Prompt == "exit 5 # a-secret-in-it" && r.Status == "failed"
	}
	if !found {
		t.Errorf("runs: %+v", answer)
	}
}

// TestPausedBoxes: a paused box wakes for a command, and for a connection to its port.
func TestPausedBoxes(t *testing.T) {
	t.Parallel()
	w := shared(t)
	box := w.Create(map[string]any{})
	_, key := w.apiKey("admin", nil)
	w.serveInside(box, "127.0.0.1", "8111")
	c := w.mustLogIn(box, key)
	pause := func() {
		if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "pause"), map[string]any{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	pause()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := s.Output("echo awake"); err != nil || string(out) != "awake\n" {
		t.Errorf("%q, %v", out, err)
	}
	pause()
	conn, err := c.Dial("tcp", "127.0.0.1:8111")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := make([]byte, 6)
	if n, err := conn.Read(b); string(b[:n]) != "hello " || err != nil {
		t.Errorf("%q, %v", b[:n], err)
	}
}
