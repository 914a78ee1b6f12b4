package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/fleet/etcdtest"
)

// reload gives a host another configuration, for which another process takes its place. Connections go on under it.
func (h *host) reload(from, to string) {
	h.T.Helper()
	text, err := os.ReadFile(h.Config)
	if err == nil {
		err = os.WriteFile(h.Config, []byte(strings.Replace(string(text), "idle_timeout: "+from, "idle_timeout: "+to, 1)), 0o600)
	}
	if err != nil {
		h.T.Fatal(err)
	}
	var done struct{ Replaced bool }
	if text := h.command(0, "", "reload", "--json"); json.Unmarshal([]byte(text), &done) != nil || !done.Replaced {
		h.T.Fatalf("the gateway was not replaced: %s", text)
	}
}

// stream runs a command of a box of another host, whose output arrives at the end of the test.
func (j joined) stream(h *host, box, command string) (output <-chan string) {
	j.t.Helper()
	r, err := http.NewRequestWithContext(j.t.Context(), "POST", "http://localhost"+api.BoxPath(box, "exec-stream"), strings.NewReader(fmt.Sprintf(`{"command":["sh","-c",%q]}`, command)))
	if err != nil {
		j.t.Fatal(err)
	}
	r.Header.Set(api.KeyHeader, j.key)
	r.Header.Set("Content-Type", "application/json")
	resp, err := h.client().Do(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		j.t.Fatal(resp, err)
	}
	all := make(chan string, 1)
	go func() {
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		all <- fmt.Sprint(string(text), err)
	}()
	return all
}

// TestHandoverBetweenHosts: while the gateways of two hosts are replaced one after the other, each call and each visit from one to the other is
// answered, by the listeners that a successor takes over; and calls and connections in progress come to their own end.
func TestHandoverBetweenHosts(t *testing.T) {
	t.Parallel()
	a, b := linked(t, etcdtest.Start(t))
	app := &http.Server{Handler: seen()}
	t.Cleanup(func() { _ = app.Close() })
	s := b.serve(8000, func(ln net.Listener) { _ = app.Serve(ln) }, map[string]any{})
	var made struct{ Key string }
	if err := a.Client.Do(t.Context(), "POST", "/v2/api-keys", map[string]any{"name": "fleet", "role": "admin"}, &made); err != nil {
		t.Fatal(err)
	}
	j := joined{t: t, hosts: []*host{a, b}, key: made.Key}
	work := b.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	path := api.BoxPath(work, "status")
	a.Until("the host reaches the other", func() bool {
		resp, _ := j.call(a, j.key, "GET", path, nil)
		_, err := a.visit(s)
		return resp.StatusCode == http.StatusOK && err == nil
	})

	ctx, cancel := context.WithTimeout(t.Context(), 4*harness.Patience)
	defer cancel()
	socket, _, err := websocket.Dial(ctx, strings.Replace(s.URL, "https", "wss", 1)+"/socket", &websocket.DialOptions{HTTPClient: a.visitor(s)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.CloseNow() }()
	echo := func(when string) {
		t.Helper()
		err := socket.Write(ctx, websocket.MessageText, []byte(when))
		if _, said, rerr := socket.Read(ctx); err != nil || rerr != nil || string(said) != when {
			t.Fatalf("the connection of a visitor, %s: %q, %v, %v", when, said, err, rerr)
		}
	}
	echo("before")
	output := j.stream(a, work, "touch /tmp/begun; until test -e /tmp/go; do sleep 0.05; done; echo done-$((40+2))")
	b.Until("the command runs", func() bool { _, code := b.Sh(work, "test -e /tmp/begun"); return code == 0 })

	over := make(chan struct{})
	var load sync.WaitGroup
	for what, once := range map[string]func() error{
		"visit": func() error { _, err := a.visit(s); return err },
		"call": func() error {
			r, err := http.NewRequestWithContext(ctx, "GET", "http://localhost"+path, http.NoBody)
			if err != nil {
				return err
			}
			r.Header.Set(api.KeyHeader, j.key)
			resp, err := a.client().Do(r)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%d %s", resp.StatusCode, text)
			}
			return err
		},
	} {
		load.Go(func() {
			for n := 1; ; n++ {
				if err := once(); err != nil {
					t.Errorf("%s %d: %v", what, n, err)
					return
				}
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	b.reload("30m0s", "31m0s") // of the launcher
	echo("after the owner was replaced")
	a.reload("30m0s", "31m0s")
	echo("after both were replaced")
	close(over)
	load.Wait()
	b.MustSh(work, "touch /tmp/go")
	select {
	case text := <-output:
		if !strings.Contains(text, "done-42") || !strings.HasSuffix(text, "<nil>") {
			t.Errorf("the call in progress: %q", text)
		}
	case <-ctx.Done():
		t.Error("the call in progress has no end")
	}
	echo("after the call")
}
