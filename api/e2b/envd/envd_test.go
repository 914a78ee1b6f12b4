package envd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/apitest"
	"boxgate/api/e2b/token"
	"boxgate/api/files"
	"boxgate/api/history"
	"boxgate/api/process"
	"boxgate/api/session"
	"boxgate/api/strict"
	"boxgate/policy"
	"boxgate/quota"
)

const (
	goodToken  = "the token"
	otherToken = "the token of another key"
)

var (
	owner = api.Caller{Key: "key_1", Role: api.RoleAdmin}
	other = api.Caller{Key: "key_2", Role: api.RoleAdmin}
)

// world is the API of a sandbox whose processes are processes of the test, and whose files are below a directory of the test.
type world struct {
	*httptest.Server
	host     *apitest.Host
	box      policy.BoxID
	root     string
	revoked  atomic.Bool  // the credentials have ended
	fileUser atomic.Value // string: the user of the last call for files
	owned    atomic.Bool  // whether the last written file became the user\'s
	signed   atomic.Int32 // signatures that were checked

	mu     sync.Mutex
	begun  []string // calls, with the endpoint whose permissions they need
	ended  []error
	refuse error // of Begin
	emit   chan []files.Event
	scopes *quota.Book // nil: no quotas
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{host: apitest.NewHost(t), root: t.TempDir(), emit: make(chan []files.Event)}
	box, err := w.host.CreateBox(t.Context(), api.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.box = box.ID
	sessions := session.New(w.host, w.host, history.New(nil), strict.Bodies{Most: 1 << 20})
	e, err := New(Config{
		Gate: w, Tokens: w, Boxes: w.host, Files: w, Watcher: w, Bodies: strict.Bodies{Most: 1 << 20}, Log: zap.NewNop(),
		Processes: process.New(sessions),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Server = httptest.NewServer(e)
	t.Cleanup(w.Close)
	t.Cleanup(sessions.Stop)
	t.Cleanup(w.host.End)
	return w
}

// Begin implements [Gate].
func (w *world) Begin(r *http.Request, c Call) (*http.Request, func(error), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = append(w.begun, c.Name+" as "+c.Route)
	if w.refuse != nil {
		return nil, nil, w.refuse
	}
	ctx, leave := access.WithCredential(api.WithCaller(r.Context(), c.Caller), c.Valid), func() {}
	if w.scopes != nil {
		var scope *quota.Scope
		scope, leave = w.scopes.Open(quota.Holder{Type: quota.APIKey, ID: c.Caller.Key})
		ctx = quota.WithScope(ctx, scope)
	}
	return r.WithContext(ctx), func(err error) {
		leave()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = append(w.ended, err)
	}, nil
}

// Refused implements [Gate].
func (w *world) Refused(_ *http.Request, name string, _ error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = append(w.begun, name+" refused")
}

// Check implements [Tokens].
func (w *world) Check(_ context.Context, box policy.BoxID, text string) (token.Access, bool) {
	caller := map[string]api.Caller{goodToken: owner, otherToken: other}[text]
	return token.Access{Caller: caller, Box: box}, caller.Key != "" && box == w.box && !w.revoked.Load()
}

// CheckSignature implements [Tokens].
func (w *world) CheckSignature(_ context.Context, box policy.BoxID, s token.Signed, now time.Time) (token.Access, bool) {
	w.signed.Add(1)
	return token.Access{Caller: owner, Box: box}, box == w.box && s.Signature == token.Sign(s, goodToken)
}

// Made implements [Tokens].
func (w *world) Made(_ policy.BoxID, text string) bool { return text == goodToken && !w.revoked.Load() }

// Valid implements [Tokens].
func (w *world) Valid(context.Context, token.Access) bool { return !w.revoked.Load() }

// OpenFiles implements [files.Host].
func (w *world) OpenFiles(_ context.Context, _ policy.BoxID, user string) (files.Files, error) {
	w.fileUser.Store(user)
	return folder{w.root, w}, nil
}

// WatchFiles implements [files.Watcher].
func (w *world) WatchFiles(ctx context.Context, _ policy.BoxID, _ string, o files.WatchOptions, emit func([]files.Event) error) error {
	w.fileUser.Store(o.User)
	if err := emit(nil); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case events := <-w.emit:
			if err := emit(events); err != nil {
				return err
			}
		}
	}
}

// folder implements [files.Files] by a directory, which is the root of the box.
type folder struct {
	dir string
	w   *world
}

func (f folder) fail(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return api.Errorf(api.ErrNotFound, "there is no such file")
	case errors.Is(err, syscall.ENOSPC):
		return api.Errorf(api.ErrFull, "no room")
	}
	return api.Errorf(api.ErrConflict, "it failed")
}

func infoOf(i fs.FileInfo) files.Info {
	kind := "file"
	switch {
	case i.IsDir():
		kind = "directory"
	case i.Mode()&fs.ModeSymlink != 0:
		kind = "symlink"
	}
	return files.Info{Name: []byte(i.Name()), Type: kind, IsDir: i.IsDir(), Size: i.Size(), Mode: uint32(i.Mode().Perm()), Time: i.ModTime().UnixNano(), Owner: "user", Group: "user"}
}

func (f folder) Stat(path string, follow bool) (files.Info, error) {
	stat := os.Lstat
	if follow {
		stat = os.Stat
	}
	i, err := stat(f.dir + path)
	if err != nil {
		return files.Info{}, f.fail(err)
	}
	info := infoOf(i)
	info.Attributes = f.attributes(path)
	if info.Type == "symlink" {
		target, _ := os.Readlink(f.dir + path)
		info.Target = []byte(target)
	}
	return info, nil
}

func (f folder) List(path string, most int) (list []files.Info, more bool, err error) {
	entries, err := os.ReadDir(f.dir + path)
	for _, entry := range entries {
		if i, err := entry.Info(); err == nil {
			list = append(list, infoOf(i))
		}
	}
	return list[:min(most, len(list))], len(list) > most, f.fail(err)
}

func (f folder) Read(path string, offset, length int64) (files.Info, io.Reader, error) {
	data, err := os.ReadFile(f.dir + path)
	if err != nil {
		return files.Info{}, nil, f.fail(err)
	}
	return files.Info{Type: "file", Size: int64(len(data))}, bytes.NewReader(data), nil
}

func (f folder) Write(path string, o files.WriteOptions, content io.Reader) error {
	f.w.owned.Store(o.Own)
	if strings.HasSuffix(path, "full") {
		return f.fail(syscall.ENOSPC)
	}
	data, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	return f.fail(errors.Join(os.MkdirAll(filepath.Dir(f.dir+path), 0o755), os.WriteFile(f.dir+path, data, 0o644)))
}

func (f folder) SetAttributes(path string, set map[string]string, remove []string) error {
	for _, name := range remove {
		if err := unix.Removexattr(f.dir+path, "user."+name); err != nil && !errors.Is(err, unix.ENODATA) {
			return f.fail(err)
		}
	}
	for name, value := range set {
		if err := unix.Setxattr(f.dir+path, "user."+name, []byte(value), 0); err != nil {
			return f.fail(err)
		}
	}
	return nil
}

// attributes returns the attributes of a file.
func (f folder) attributes(path string) map[string]string {
	names, value := make([]byte, 4096), make([]byte, 4096)
	n, err := unix.Listxattr(f.dir+path, names)
	if err != nil {
		return nil
	}
	found := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		if key, ok := strings.CutPrefix(name, "user."); ok {
			if n, err := unix.Getxattr(f.dir+path, name, value); err == nil {
				found[key] = string(value[:n])
			}
		}
	}
	return found
}

func (f folder) MakeDir(path string, _ bool) error { return f.fail(os.MkdirAll(f.dir+path, 0o755)) }
func (f folder) Rename(from, to string) error      { return f.fail(os.Rename(f.dir+from, f.dir+to)) }
func (f folder) Remove(path string, _ bool) error  { return f.fail(os.RemoveAll(f.dir + path)) }
func (f folder) Pack(string) (io.Reader, func() (int, error), error) {
	return nil, nil, api.ErrNotSupported
}
func (f folder) Unpack(string, io.Reader) error { return api.ErrNotSupported }
func (f folder) Close()                         {}

// with adds the headers of a client.
func (w *world) with(h http.Header, token, user string) {
	h.Set(SandboxHeader, string(w.box))
	if token != "" {
		h.Set(tokenHeader, token)
	}
	if user != "" {
		r := http.Request{Header: h}
		r.SetBasicAuth(user, "")
	}
}

func clientOf[Req, Res any](w *world, procedure string) *connect.Client[Req, Res] {
	return connect.NewClient[Req, Res](w.Client(), w.URL+procedure, connect.WithCodec(codec{}))
}

// ask calls a unary procedure.
func ask[Req, Res any](t *testing.T, w *world, procedure, user string, msg *Req) (*Res, error) {
	t.Helper()
	req := connect.NewRequest(msg)
	w.with(req.Header(), goodToken, user)
	res, err := clientOf[Req, Res](w, procedure).CallUnary(t.Context(), req)
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// codeFor returns the code of an error, or "" for none.
func codeFor(err error) string {
	if err == nil {
		return ""
	}
	return connect.CodeOf(err).String()
}

// stream calls a procedure with a stream of responses.
func stream[Req, Res any](t *testing.T, ctx context.Context, w *world, procedure, token string, msg *Req) *connect.ServerStreamForClient[Res] {
	t.Helper()
	req := connect.NewRequest(msg)
	w.with(req.Header(), token, "")
	s, err := clientOf[Req, Res](w, procedure).CallServerStream(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// rest makes a request to a path that is no procedure.
func (w *world) rest(t *testing.T, method, path, token string, header map[string]string, body io.Reader) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	w.with(req.Header, token, "")
	for name, value := range header {
		req.Header.Set(name, value)
	}
	res, err := w.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// TestCredentials: every path needs the token of its box, and is admitted as the endpoint of boxgate's own API that does the same.
func TestCredentials(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.Config.Handler.(*Endpoints)
	var all []string
	for path := range e.rpcs {
		all = append(all, "POST "+path)
	}
	for name := range paths {
		all = append(all, name)
	}
	if len(all) != len(e.rpcs)+len(paths) || len(e.rpcs) != 17 {
		t.Fatalf("%d procedures", len(e.rpcs))
	}
	for _, name := range all {
		method, path, _ := strings.Cut(name, " ")
		header := map[string]string{"Content-Type": "application/json"}
		for _, token := range []string{"", "wrong"} {
			if status, body := w.rest(t, method, path, token, header, strings.NewReader("{}")); status != http.StatusUnauthorized || !strings.Contains(body, "access token") {
				t.Errorf("%s with the token %q: %d %s", name, token, status, body)
			}
		}
		w.mu.Lock()
		w.refuse = api.Errorf(api.ErrForbidden, "not this role")
		w.begun = nil
		w.mu.Unlock()
		if status, body := w.rest(t, method, path, goodToken, header, strings.NewReader("{}")); status != http.StatusForbidden || !strings.Contains(body, "not this role") {
			t.Errorf("%s without permission: %d %s", name, status, body)
		}
		w.mu.Lock()
		if w.refuse = nil; len(w.begun) != 1 || !strings.HasPrefix(w.begun[0], name+" as ") {
			t.Errorf("%s was admitted as %v", name, w.begun)
		}
		w.mu.Unlock()
	}
	for _, shown := range []string{"", "wrong"} {
		known, text := w.rest(t, "GET", "/health", shown, nil, nil)
		if unknown, other := w.rest(t, "GET", "/health", shown, map[string]string{SandboxHeader: "other"}, nil); known != 401 || unknown != known || other != text {
			t.Errorf("a stranger with the token %q tells boxes apart: %d %s, %d %s", shown, known, text, unknown, other)
		}
	}
	if status, _ := w.rest(t, "GET", "/health", goodToken, map[string]string{SandboxHeader: "other"}, nil); status != http.StatusBadGateway {
		t.Errorf("a box that does not exist: %d", status)
	}
	if status, _ := w.rest(t, "GET", "/health", goodToken, nil, nil); status != http.StatusNoContent {
		t.Errorf("health: %d", status)
	}
	if _, err := w.host.PauseBox(t.Context(), w.box); err != nil {
		t.Fatal(err)
	}
	if status, _ := w.rest(t, "GET", "/health", goodToken, nil, nil); status != http.StatusBadGateway {
		t.Errorf("health of a paused box: %d", status)
	}
	for path, want := range map[string]int{"/nowhere": 404, "/process.Process/Nothing": 404, "/init": 403} {
		if status, body := w.rest(t, "POST", path, goodToken, map[string]string{"Content-Type": "application/json"}, strings.NewReader("{}")); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for _, media := range []string{"text/plain", "application/proto", "application/grpc-web", ""} {
		if _, body := w.rest(t, "POST", processService+"List", goodToken, map[string]string{"Content-Type": media}, strings.NewReader("{}")); strings.Contains(body, "processes\"") {
			t.Errorf("%q is served: %s", media, body)
		}
	}
	if status, body := w.rest(t, "GET", "/envs", goodToken, nil, nil); status != 200 || body != "{}" {
		t.Errorf("envs: %d %s", status, body)
	}
}

// TestProcesses: the procedures for processes, as a client of the Connect protocol calls them.
func TestProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	cmd := &startRequest{Process: &processConfig{Cmd: "sh", Args: []string{"-c", `read a; echo "$a $B"; echo why >&2; exit 3`}, Envs: map[string]string{"B": "b", "PATH": os.Getenv("PATH")}}, Tag: "mine"}
	first := stream[startRequest, eventResponse](t, ctx, w, processService+"Start", goodToken, cmd)
	if !first.Receive() || first.Msg().Event.Start == nil || first.Msg().Event.Start.Pid == 0 {
		t.Fatal(first.Msg(), first.Err())
	}
	pid := uint32(first.Msg().Event.Start.Pid)
	tag := "mine"
	leave() // the process goes on
	list, err := ask[empty, listResponse](t, w, processService+"List", "", &empty{})
	if err != nil || len(list.Processes) != 1 || list.Processes[0].Pid != int(pid) || list.Processes[0].Tag != "mine" || list.Processes[0].Config.Envs["B"] != "b" {
		t.Fatalf("%+v %v", list, err)
	}
	again := stream[selected, eventResponse](t, t.Context(), w, processService+"Connect", otherToken, &selected{&selector{Tag: &tag}})
	if !again.Receive() || again.Msg().Event.Start == nil {
		t.Fatal(again.Err())
	}
	line := []byte("hello\n")
	for want, in := range map[string]*input{"": {Stdin: &line}, "failed_precondition": {Pty: &line}, "invalid_argument": {}} {
		if _, err := ask[sendInputRequest, empty](t, w, processService+"SendInput", "", &sendInputRequest{selected{&selector{Pid: &pid}}, in}); codeFor(err) != want && codeFor(err) != "not_found" {
			t.Errorf("input %+v: %v", in, err)
		}
	}
	var out, errs string
	var end *endEvent
	for again.Receive() {
		if d := again.Msg().Event.Data; d != nil {
			out, errs = out+string(d.Stdout), errs+string(d.Stderr)
		}
		if again.Msg().Event.End != nil {
			end = again.Msg().Event.End
		}
	}
	if out != "hello b\n" || errs != "why\n" || end == nil || *end != (endEvent{3, true, "exit status 3", "exit status 3"}) || again.Err() != nil {
		t.Errorf("%q %q %+v %v", out, errs, end, again.Err())
	}
	for procedure, call := range map[string]func() error{
		"SendSignal": func() error {
			_, err := ask[sendSignalRequest, empty](t, w, processService+"SendSignal", "", &sendSignalRequest{selected{&selector{Pid: &pid}}, enum{number: 9}})
			return err
		},
		"CloseStdin": func() error {
			_, err := ask[selected, empty](t, w, processService+"CloseStdin", "", &selected{&selector{Pid: &pid}})
			return err
		},
	} {
		if err := call(); codeFor(err) != "not_found" {
			t.Errorf("%s of a process that has ended: %v", procedure, err)
		}
	}
	late := stream[selected, eventResponse](t, t.Context(), w, processService+"Connect", goodToken, &selected{&selector{Pid: &pid}})
	for late.Receive() {
		end = late.Msg().Event.End
	}
	if end == nil || end.ExitCode != 3 {
		t.Errorf("the result of a process that has just ended: %+v %v", end, late.Err())
	}
}

// MarshalJSON implements [json.Marshaler], for clients in tests.
func (v enum) MarshalJSON() ([]byte, error) {
	if v.name != "" {
		return json.Marshal(v.name)
	}
	return json.Marshal(v.number)
}

// TestEndsOfProcesses: a process ends by a signal, by the time limit of its call, and with the API key that started it.
func TestEndsOfProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	forever := &startRequest{Process: &processConfig{Cmd: "sleep", Args: []string{"1000"}, Envs: map[string]string{"PATH": os.Getenv("PATH")}}}
	begin := func(ctx context.Context) (*connect.ServerStreamForClient[eventResponse], uint32) {
		t.Helper()
		s := stream[startRequest, eventResponse](t, ctx, w, processService+"Start", goodToken, forever)
		if !s.Receive() || s.Msg().Event.Start == nil {
			t.Fatal(s.Err())
		}
		return s, uint32(s.Msg().Event.Start.Pid)
	}
	s, pid := begin(t.Context())
	if _, err := ask[sendSignalRequest, empty](t, w, processService+"SendSignal", "", &sendSignalRequest{selected{&selector{Pid: &pid}}, enum{name: "SIGNAL_SIGKILL"}}); err != nil {
		t.Fatal(err)
	}
	if !s.Receive() || s.Msg().Event.End == nil || *s.Msg().Event.End != (endEvent{-1, false, "signal: killed", "signal: killed"}) {
		t.Errorf("%+v %v", s.Msg().Event.End, s.Err())
	}
	if _, err := ask[sendSignalRequest, empty](t, w, processService+"SendSignal", "", &sendSignalRequest{selected{&selector{Pid: &pid}}, enum{name: "SIGNAL_SIGSTOP"}}); err == nil {
		t.Error("any signal")
	}
	limited, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if s, _ = begin(limited); s.Receive() || codeFor(s.Err()) != "deadline_exceeded" {
		t.Errorf("%+v %v", s.Msg(), s.Err())
	}
	s, _ = begin(t.Context())
	w.revoked.Store(true)
	if s.Receive() || codeFor(s.Err()) != "unauthenticated" {
		t.Errorf("%+v %v", s.Msg(), s.Err())
	}
	w.revoked.Store(false)
	list, err := ask[empty, listResponse](t, w, processService+"List", "", &empty{})
	if err != nil || len(list.Processes) != 0 {
		t.Errorf("%+v %v", list, err)
	}
	for what, m := range map[string]*startRequest{
		"no command": {}, "no program": {Process: &processConfig{Cmd: "/nowhere"}}, "an odd variable": {Process: &processConfig{Cmd: "true", Envs: map[string]string{"A=B": ""}}},
		"NUL":        {Process: &processConfig{Cmd: "true", Args: []string{"\x00"}}},
		"a terminal": {Process: &processConfig{Cmd: "true"}, Pty: &pty{&ptySize{Rows: 1 << 20, Cols: 80}}},
	} {
		if s := stream[startRequest, eventResponse](t, t.Context(), w, processService+"Start", goodToken, m); s.Receive() || codeFor(s.Err()) != "invalid_argument" {
			t.Errorf("%s: %+v %v", what, s.Msg(), s.Err())
		}
	}
}
