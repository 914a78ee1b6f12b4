package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/api/apitest"
	session "boxgate/api/session/client"
)

// frame is a frame of any type.
type frame struct {
	Type    string `json:"type"`
	Pid     int    `json:"pid"`
	ExecID  string `json:"execId"`
	Data    []byte `json:"data"`
	Code    *int   `json:"code"`
	Message string `json:"message"`
	Offset  int64  `json:"offset"`
}

// talk is one connection of a session.
type talk struct {
	t    *testing.T
	conn *websocket.Conn
	ctx  context.Context
}

// dial opens a connection of a session. It returns the status if the gateway refuses.
func (f *fixture) dial(t *testing.T, box, query string, edit ...func(http.Header)) (*talk, int) {
	t.Helper()
	header := http.Header{"X-Box-Api-Key": {apitest.Key}}
	for _, e := range edit {
		e(header)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	conn, resp, err := websocket.Dial(ctx, f.URL+"/v2/box/"+box+"/exec-session"+query, &websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		if resp == nil {
			t.Fatal(err)
		}
		return nil, resp.StatusCode
	}
	conn.SetReadLimit(1 << 22)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &talk{t, conn, ctx}, 101
}

func (k *talk) send(v any) {
	k.t.Helper()
	data, err := json.Marshal(v)
	if err == nil {
		err = k.conn.Write(k.ctx, websocket.MessageText, data)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

func (k *talk) next() frame {
	k.t.Helper()
	f, err := k.read()
	if err != nil {
		k.t.Fatal(err)
	}
	return f
}

func (k *talk) read() (f frame, err error) {
	_, data, err := k.conn.Read(k.ctx)
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	return f, err
}

// until reads frames up to one of the given type. It returns that frame and all output before it.
func (k *talk) until(kind string) (f frame, stdout, stderr string) {
	k.t.Helper()
	for {
		switch f = k.next(); f.Type {
		case kind:
			return f, stdout, stderr
		case "stdout":
			stdout += string(f.Data)
		case "stderr":
			stderr += string(f.Data)
		case "ack":
		default:
			k.t.Fatalf("%+v instead of %s", f, kind)
		}
	}
}

// session opens a session.
func (f *fixture) session(t *testing.T, box string, start map[string]any) (*talk, frame) {
	t.Helper()
	k, status := f.dial(t, box, "")
	if k == nil {
		t.Fatal(status)
	}
	start["type"] = "start"
	k.send(start)
	started := k.next()
	if started.Type != "started" || started.Pid <= 0 || started.ExecID == "" {
		t.Fatalf("%+v", started)
	}
	return k, started
}

func (k *talk) wantExit(code int) (stdout, stderr string) {
	k.t.Helper()
	f, stdout, stderr := k.until("exit")
	if *f.Code != code {
		k.t.Errorf("exit %d, not %d (%q %q)", *f.Code, code, stdout, stderr)
	}
	return stdout, stderr
}

// waitForExit waits until a process has ended.
func waitForExit(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	n, err := 0, error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Minute.Milliseconds()))
	}
	if n != 1 || err != nil {
		t.Fatalf("process %d goes on (%v)", pid, err)
	}
}

type m = map[string]any

func TestSession(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)

	k, _ := f.session(t, id, m{"argv": []string{"sh", "-c", "echo $A$LD_PRELOAD; echo e >&2; exit 42"}, "env": []string{"A=b=c", "LD_PRELOAD=x"}})
	if out, errs := k.wantExit(42); out != "b=c\n" || errs != "e\n" {
		t.Errorf("%q %q", out, errs)
	}
	k, started := f.session(t, id, m{"argv": []string{"sort"}})
	k.send(m{"type": "stdin", "data": []byte("b\na\n")})
	k.send(m{"type": "stdin_close"})
	if out, _ := k.wantExit(0); out != "a\nb\n" {
		t.Errorf("%q", out)
	}
	run := f.untilRun(t, id, func(r map[string]any) bool { return r["id"] == started.ExecID && r["status"] == "completed" })
	if run["prompt"] != "sort" || run["type"] != "shell" {
		t.Errorf("%v", run)
	}
	k, _ = f.session(t, id, m{"cmd": "echo $((1+1))"})
	if out, _ := k.wantExit(0); out != "2\n" {
		t.Errorf("%q", out)
	}
	k, _ = f.session(t, id, m{"argv": []string{"sleep", "600"}})
	k.send(m{"type": "resize", "rows": 3, "cols": 4})
	k.send(m{"type": "signal", "signal": "INT"})
	k.wantExit(130)
	if sizes := f.host.Sizes; len(sizes) != 1 || sizes[0] != (api.TerminalSize{Rows: 3, Cols: 4}) {
		t.Errorf("%v", sizes)
	}
	k, _ = f.session(t, id, m{"argv": []string{"sh", "-c", "trap '' TERM; echo up; sleep 600 & wait; wait"}})
	if up := k.next(); string(up.Data) != "up\n" {
		t.Fatalf("%+v", up)
	}
	k.send(m{"type": "terminate", "graceMs": 50})
	k.send(m{"type": "terminate", "graceMs": 1})
	k.wantExit(137)
}

// TestSessionRefusals: an invalid frame ends the session with an error message, and kills its command.
func TestSessionRefusals(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	for _, first := range []string{`{}`, `{"type":"start"}`, `{"type":"start","argv":[""]}`, `{"type":"start","argv":["a\u0000"]}`, `nonsense`, `[]`,
		`{"type":"start","argv":["true"],"surprise":1}`, `{"type":"start","argv":["true"],"tty":true,"rows":0}`, `{"type":"start","argv":["true"],"env":["A"]}`,
		`{"type":"start","argv":["true"],"tty":true,"cols":70000}`, `{"type":"stdin"}`, `{"type":"start","argv":["/nowhere/nothing"]}`} {
		k, _ := f.dial(t, id, "")
		if err := k.conn.Write(k.ctx, websocket.MessageText, []byte(first)); err != nil {
			t.Fatal(err)
		}
		if got := k.next(); got.Type != "error" || got.Message == "" {
			t.Errorf("%s: %+v", first, got)
		}
	}
	for _, later := range []string{`{"type":"signal","signal":"STOP"}`, `{"type":"resize","rows":-1}`, `{"type":"ack","offset":5}`, `{"type":"x"}`, `{`} {
		k, started := f.session(t, id, m{"argv": []string{"sleep", "600"}})
		if err := k.conn.Write(k.ctx, websocket.MessageText, []byte(later)); err != nil {
			t.Fatal(err)
		}
		if got := k.next(); got.Type != "error" || got.Message == "" {
			t.Errorf("%s: %+v", later, got)
		}
		waitForExit(t, started.Pid)
	}
	for name, edit := range map[string]func(http.Header){
		"no key":           func(h http.Header) { h.Del("X-Box-Api-Key") },
		"a foreign origin": func(h http.Header) { h.Set("Origin", "https://evil.example") },
	} {
		if k, status := f.dial(t, id, "", edit); k != nil || status != 401 && status != 403 {
			t.Errorf("%s: %d", name, status)
		}
	}
	if _, status := f.dial(t, "nobody", ""); status != 404 {
		t.Error(status)
	}
	if got := f.Call(t, "GET", "/v2/box/"+id+"/exec-session", ""); got.StatusCode != http.StatusUpgradeRequired {
		t.Error(got.Status)
	}
}

// TestSessionEndsWithItsClient: the session ends when the client hangs up, when its connection breaks, and when its key
// is revoked.
func TestSessionEndsWithItsClient(t *testing.T) {
	t.Parallel()
	var ended atomic.Bool
	f := serve(t, func(cfg *Config) {
		find := cfg.FindKey
		cfg.FindKey = func(key string) (api.Caller, bool) {
			caller, ok := find(key)
			return caller, ok && !ended.Load()
		}
	})
	id := f.create(t, `{}`)
	for name, leave := range map[string]func(*talk){
		"hangs up": func(k *talk) { _ = k.conn.Close(websocket.StatusNoStatusRcvd, "") },
		"is gone":  func(k *talk) { _ = k.conn.CloseNow() },
	} {
		for _, reattach := range []bool{false, true} {
			k, started := f.session(t, id, m{"argv": []string{"sleep", "600"}, "reattach": reattach})
			leave(k)
			if reattach && name == "is gone" {
				again, status := f.dial(t, id, "?session="+started.ExecID)
				if again == nil || again.next().Type != "attached" {
					t.Fatalf("%s: %d", name, status)
				}
				_ = again.conn.Close(websocket.StatusNormalClosure, "")
			}
			waitForExit(t, started.Pid)
		}
	}
	k, started := f.session(t, id, m{"argv": []string{"sleep", "600"}, "reattach": true})
	ended.Store(true)
	if got := k.next(); got.Type != "error" || !strings.Contains(got.Message, "key") {
		t.Errorf("%+v", got)
	}
	waitForExit(t, started.Pid)
}

// TestSessionComesBack: over a connection that breaks repeatedly, every byte of input and output arrives once and in
// order.
func TestSessionComesBack(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	k, started := f.session(t, id, m{"argv": []string{"sh", "-c", "cat; echo end >&2; exit 3"}, "reattach": true})
	var want, got bytes.Buffer
	for i := range 40_000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	input, sent, acked := want.Bytes(), int64(0), int64(0)
	had := int64(0) // bytes of both streams
	closed := false
	for breaks := 0; ; breaks++ {
		for part := 0; part < 8 && sent < int64(len(input)); part++ {
			n := min(int64(len(input))-sent, 7001)
			if k.conn.Write(k.ctx, websocket.MessageText, fmt.Appendf(nil, `{"type":"stdin","data":%s}`, mustJSON(input[sent:sent+n]))) == nil {
				sent += n
			}
		}
		if sent == int64(len(input)) && !closed {
			k.send(m{"type": "stdin_close"})
			closed = true
		}
		for range 6 {
			if !closed && acked >= sent && had >= sent {
				break // everything has arrived
			}
			fr := k.next()
			had += int64(len(fr.Data))
			switch fr.Type {
			case "ack":
				acked = fr.Offset
			case "stdout":
				got.Write(fr.Data)
				if breaks%2 == 0 {
					k.send(m{"type": "ack", "offset": had})
				}
			case "exit":
				if *fr.Code != 3 || got.Len() != want.Len() {
					t.Errorf("exit %d after %d of %d bytes", *fr.Code, got.Len(), want.Len())
				}
				if !bytes.Equal(got.Bytes(), want.Bytes()) {
					t.Error("the output differs")
				}
				return
			}
		}
		if got.Len() == want.Len() {
			continue // only the result is missing
		}
		_ = k.conn.CloseNow()
		var status int
		if k, status = f.dial(t, id, fmt.Sprintf("?session=%s&offset=%d", started.ExecID, had)); k == nil {
			t.Fatal(status)
		}
		again := k.next()
		if again.Type != "attached" || again.Offset > int64(len(input)) {
			t.Fatalf("%+v", again)
		}
		sent, acked, closed = again.Offset, again.Offset, false // the connection may have lost the end of the input
	}
}

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// TestSessionTakenOver: a client that reconnects ends its previous connection but not the session.
func TestSessionTakenOver(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id, other := f.create(t, `{}`), f.create(t, `{}`)
	k, started := f.session(t, id, m{"argv": []string{"cat"}, "reattach": true})
	again, _ := f.dial(t, id, "?session="+started.ExecID)
	if got := again.next(); got.Type != "attached" || got.Pid != started.Pid {
		t.Fatalf("%+v", got)
	}
	if _, err := k.read(); err == nil {
		t.Error("the first connection goes on")
	}
	again.send(m{"type": "stdin", "data": []byte("still here\n")})
	if _, out, _ := again.until("ack"); out != "" {
		t.Errorf("%q", out)
	}
	if got := again.next(); string(got.Data) != "still here\n" {
		t.Errorf("%+v", got)
	}
	plain, startedPlain := f.session(t, id, m{"argv": []string{"cat"}})
	for _, query := range []string{"?session=" + startedPlain.ExecID, "?session=none", "?session=" + started.ExecID + "&offset=999", "?surprise=1"} {
		if _, status := f.dial(t, id, query); status != 404 && status != 422 {
			t.Errorf("%s: %d", query, status)
		}
	}
	if _, status := f.dial(t, other, "?session="+started.ExecID); status != 404 {
		t.Errorf("by another box: %d", status)
	}
	_ = plain.conn.Close(websocket.StatusNormalClosure, "")
	again.send(m{"type": "stdin_close"})
	again.wantExit(0)
}

// TestSlowSession: a client that does not read blocks the command, and the gateway's buffer for it is bounded. A command
// that does not read its input can still be killed.
func TestSlowSession(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	flag := filepath.Join(f.host.Dir, "flooded")
	k, started := f.session(t, id, m{"argv": []string{"sh", "-c", "head -c 100000000 /dev/zero; touch " + flag + "; sleep 600"}, "reattach": true})
	got := int64(0)
	for got < 500<<10 { // sent without an acknowledgement
		got += int64(len(k.next().Data))
	}
	if run := f.Call(t, "POST", "/v2/box/"+id+"/exec", `{"command":["test","-e","`+flag+`"]}`).JSON(t); run["exit_code"] != 1.0 {
		t.Error("a command that nobody reads wrote 100 MB")
	}
	if got := f.Call(t, "POST", "/v2/box/"+id+"/runs/"+started.ExecID+"/cancel", ""); got.StatusCode != 200 {
		t.Error(got.Status)
	}
	waitForExit(t, started.Pid)

	k, started = f.session(t, id, m{"argv": []string{"sleep", "600"}})
	for range 3 {
		k.send(m{"type": "stdin", "data": bytes.Repeat([]byte("x"), 300<<10)})
	}
	k.send(m{"type": "signal", "signal": "KILL"})
	k.wantExit(137)
	waitForExit(t, started.Pid)
}

// TestSessionsAreLimited: each box has its own limit of sessions, and closed sessions do not count.
func TestSessionsAreLimited(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id, other := f.create(t, `{}`), f.create(t, `{}`)
	var open []*talk
	for len(open) < 32 {
		k, status := f.dial(t, id, "") // not even started
		if k == nil {
			t.Fatal(status)
		}
		open = append(open, k)
	}
	if k, status := f.dial(t, id, ""); k != nil || status != 429 {
		t.Errorf("%d", status)
	}
	k, _ := f.session(t, other, m{"argv": []string{"true"}})
	k.wantExit(0)
	_ = open[0].conn.CloseNow()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if k, _ := f.dial(t, id, ""); k != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a closed session takes up room")
		}
	}
}

// TestSessionsEndWithTheServer: a server that shuts down ends all sessions, even one whose client is disconnected, and
// waits for their end.
func TestSessionsEndWithTheServer(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	k, started := f.session(t, id, m{"argv": []string{"sleep", "600"}, "reattach": true})
	away, startedAway := f.session(t, id, m{"argv": []string{"sleep", "600"}, "reattach": true})
	_ = away.conn.CloseNow()
	stopped := make(chan error, 1)
	go func() { stopped <- errors.Join(f.Config.Shutdown(t.Context()), f.api.Wait(t.Context())) }()
	if got := k.next(); got.Type != "error" || !strings.Contains(got.Message, "stopping") {
		t.Errorf("%+v", got)
	}
	if _, err := k.read(); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the connection ended with %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	for _, pid := range []int{started.Pid, startedAway.Pid} {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("the server has stopped, and a command goes on: %v", err)
		}
	}
}

// open starts a command with the command line's client.
func (f *fixture) open(t *testing.T, ctx context.Context, box string, argv ...string) *session.Session {
	t.Helper()
	s, err := session.Open(ctx, api.NewClient(f.URL, apitest.Key), box, session.Request{Command: argv, Env: []string{"A=b"}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSessionClient: input, both streams, signals and the exit status pass through the client.
func TestSessionClient(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)

	var stdout, stderr bytes.Buffer
	code, err := f.open(t, ctx, id, "sh", "-c", "echo $A; echo e >&2; exit 42").Wait(&stdout, &stderr)
	if code != 42 || err != nil || stdout.String() != "b\n" || stderr.String() != "e\n" {
		t.Errorf("%d %v %q %q", code, err, &stdout, &stderr)
	}

	s := f.open(t, ctx, id, "cat")
	sent := bytes.Repeat([]byte("\x00\xff\r\n~"), 1<<18)
	go func() {
		_, _ = s.Write(sent)
		_ = s.CloseWrite()
	}()
	stdout.Reset()
	if code, err := s.Wait(&stdout, io.Discard); code != 0 || err != nil || !bytes.Equal(stdout.Bytes(), sent) {
		t.Errorf("cat: %d %v, %d of %d bytes", code, err, stdout.Len(), len(sent))
	}

	s = f.open(t, ctx, id, "sh", "-c", "trap 'exit 7' INT; echo; while :; do sleep 0.05; done")
	ready := writerFunc(func(p []byte) (int, error) { return len(p), s.Signal("INT") })
	if code, err := s.Wait(ready, io.Discard); code != 7 || err != nil {
		t.Errorf("signal: %d %v", code, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestSessionClientRefused: a refusal has the gateway's message, and the end of the context is returned as its cause.
func TestSessionClientRefused(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, `{}`)
	ctx, end := context.WithCancelCause(t.Context())
	client := api.NewClient(f.URL, apitest.Key)
	_, err := session.Open(ctx, client, "nobody", session.Request{Command: []string{"true"}})
	if refused, ok := errors.AsType[*api.ResponseError](err); !ok || refused.Status != http.StatusNotFound {
		t.Errorf("no box: %v", err)
	}
	if _, err := session.Open(ctx, client, id, session.Request{Command: []string{"/no/such"}}); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("no program: %v", err)
	}
	s := f.open(t, ctx, id, "sh", "-c", "echo; exec sleep 1000")
	enough := errors.New("enough")
	if _, err := s.Wait(writerFunc(func(p []byte) (int, error) { end(enough); return len(p), nil }), io.Discard); !errors.Is(err, enough) {
		t.Errorf("ended: %v", err)
	}
}
