package envd

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"boxgate/api"
	"boxgate/api/e2b/token"
	"boxgate/api/files"
	"boxgate/quota"
)

const home = api.Workspace

// TestFilesystem: the procedures for files, with paths relative to the home directory.
func TestFilesystem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := func(path string) *pathRequest { return &pathRequest{path} }
	made, err := ask[pathRequest, entryResponse](t, w, filesystemService+"MakeDir", "user", at("a/b"))
	if err != nil || made.Entry.Path != home+"/a/b" || made.Entry.Name != "b" || made.Entry.Type != "FILE_TYPE_DIRECTORY" {
		t.Fatalf("%+v %v", made, err)
	}
	if err := errors.Join(os.WriteFile(w.root+home+"/a/f", []byte("four"), 0o640), os.Symlink("f", w.root+home+"/a/link"), os.Symlink("nowhere", w.root+home+"/a/lost")); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		procedure, path, user, code string
	}{
		"a directory that exists": {"MakeDir", "~/a/b", "", "already_exists"}, "a file in its place": {"MakeDir", home + "/a/f", "", "invalid_argument"},
		"a file that does not exist": {"Stat", "none", "", "not_found"}, "the home of another": {"Stat", "~mallory", "", "invalid_argument"},
		"root's home": {"Stat", "~/none", "root", "not_found"}, "another user": {"Stat", "/", "mallory", "unauthenticated"},
		"NUL": {"Stat", "a\x00b", "", "invalid_argument"}, "a long path": {"Stat", strings.Repeat("x", maxPath+1), "", "invalid_argument"},
		"a list of a file": {"ListDir", "a/f", "", "invalid_argument"}, "a list of an absent directory": {"ListDir", "none", "", "not_found"},
		"a file that is not there is removed": {"Remove", "none", "", ""},
	} {
		if _, err := ask[pathRequest, empty](t, w, filesystemService+c.procedure, c.user, at(c.path)); codeFor(err) != c.code {
			t.Errorf("%s: %v", what, err)
		}
	}
	stat := func(path string) entryInfo {
		t.Helper()
		res, err := ask[pathRequest, entryResponse](t, w, filesystemService+"Stat", "", at(path))
		if err != nil {
			t.Fatal(err)
		}
		return *res.Entry
	}
	if f := stat("a/f"); f.Size != 4 || f.Mode != 0o640 || f.Permissions != "-rw-r-----" || f.Owner != "user" || f.Type != "FILE_TYPE_FILE" {
		t.Errorf("%+v", f)
	}
	if f := stat("a/link"); f.Type != "FILE_TYPE_FILE" || f.Mode != 0o640 || f.Target != home+"/a/f" || f.Permissions[0] != 'l' {
		t.Errorf("%+v", f)
	}
	if f := stat("a/lost"); f.Type != "FILE_TYPE_SYMLINK" || f.Target != home+"/a/nowhere" {
		t.Errorf("%+v", f)
	}
	list := func(path string, depth uint32) (names []string) {
		t.Helper()
		res, err := ask[listDirRequest, listDirResponse](t, w, filesystemService+"ListDir", "", &listDirRequest{path, depth})
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range res.Entries {
			names = append(names, strings.TrimPrefix(entry.Path, home+"/"))
		}
		return names
	}
	if got := list("a", 0); !slices.Equal(got, []string{"a/b", "a/f", "a/link", "a/lost"}) {
		t.Error(got)
	}
	if got := list("", 2); !slices.Equal(got, []string{"a", "a/b", "a/f", "a/link", "a/lost"}) {
		t.Error(got)
	}
	moved, err := ask[moveRequest, entryResponse](t, w, filesystemService+"Move", "", &moveRequest{"a/f", "deep/er/g"})
	if err != nil || moved.Entry.Path != home+"/deep/er/g" {
		t.Fatal(moved, err)
	}
	if _, err := ask[moveRequest, entryResponse](t, w, filesystemService+"Move", "", &moveRequest{"a/f", "other/h"}); codeFor(err) != "not_found" {
		t.Error(err)
	}
	if _, err := os.Stat(w.root + home + "/other"); err == nil {
		t.Error("a parent for a file that does not exist")
	}
	if _, err := ask[pathRequest, empty](t, w, filesystemService+"Remove", "", at("deep")); err != nil {
		t.Fatal(err)
	}
	if _, err := ask[pathRequest, entryResponse](t, w, filesystemService+"Stat", "", at("deep/er/g")); codeFor(err) != "not_found" {
		t.Error(err)
	}
}

// UnmarshalJSON implements [json.Unmarshaler], for clients in tests.
func (t *text) UnmarshalJSON(data []byte) error {
	n := json.Number("")
	if err := json.Unmarshal(data, &n); err != nil {
		return err
	}
	value, err := n.Int64()
	*t = text(value)
	return err
}

func packed(t *testing.T, content string) io.Reader {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := io.WriteString(z, content); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	return &out
}

// form returns an upload of files by their names.
func form(t *testing.T, parts ...string) (io.Reader, map[string]string) {
	t.Helper()
	var out bytes.Buffer
	m := multipart.NewWriter(&out)
	for i := 0; i < len(parts); i += 2 {
		part, err := m.CreateFormFile("file", parts[i])
		if err == nil {
			_, err = io.WriteString(part, parts[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = m.Close()
	return &out, map[string]string{"Content-Type": m.FormDataContentType()}
}

// TestTransfers: files are written from a body or a form, and read, with their errors.
func TestTransfers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	raw := map[string]string{"Content-Type": rawMedia}
	want := func(what string, status int, body string, wantStatus int, contains string) {
		t.Helper()
		if status != wantStatus || !strings.Contains(body, contains) {
			t.Errorf("%s: %d %s", what, status, body)
		}
	}
	status, body := w.rest(t, "POST", "/files?path=d/raw.txt", goodToken, raw, strings.NewReader("raw"))
	want("a body", status, body, 200, `[{"name":"raw.txt","path":"`+home+`/d/raw.txt","type":"file"}]`)
	status, body = w.rest(t, "POST", "/files?path=zip", goodToken, map[string]string{"Content-Type": rawMedia, "Content-Encoding": "gzip"}, packed(t, "packed"))
	want("a packed body", status, body, 200, "zip")
	parts, header := form(t, "one", "1", "sub/two", "2", "/abs", "3")
	status, body = w.rest(t, "POST", "/files", goodToken, header, parts)
	want("a form", status, body, 200, `"path":"`+home+`/sub/two"`)
	parts, header = form(t, "name", "by path")
	status, body = w.rest(t, "POST", "/files?path=other", goodToken, header, parts)
	want("a form with a path", status, body, 200, `"path":"`+home+`/other"`)
	for path, content := range map[string]string{"d/raw.txt": "raw", "zip": "packed", "one": "1", "sub/two": "2", "/abs": "3", "other": "by path"} {
		status, body := w.rest(t, "GET", "/files?username=user&path="+path, goodToken, nil, nil)
		want(path, status, body, 200, content)
	}
	status, body = w.rest(t, "GET", "/files?path=d/raw.txt", goodToken, map[string]string{"Accept-Encoding": "gzip"}, nil)
	z, err := gzip.NewReader(strings.NewReader(body))
	if err != nil || status != 200 {
		t.Fatal(status, err)
	}
	if data, err := io.ReadAll(z); string(data) != "raw" || err != nil {
		t.Errorf("%q %v", data, err)
	}
	twice, twiceHeader := form(t, "same", "1", "same", "2")
	none, noneHeader := form(t)
	for what, c := range map[string]struct {
		method, query string
		header        map[string]string
		body          io.Reader
		status        int
		text          string
	}{
		"nothing there": {"GET", "?path=none", nil, nil, 404, "no such file"}, "a directory": {"GET", "?path=d", nil, nil, 400, "directory"},
		"to a directory": {"POST", "?path=d", raw, strings.NewReader("x"), 400, "directory"}, "no room": {"POST", "?path=full", raw, strings.NewReader("x"), 507, "no room"},
		"no path": {"POST", "", raw, strings.NewReader("x"), 400, "path"}, "another type": {"POST", "?path=x", map[string]string{"Content-Type": "text/plain"}, strings.NewReader("x"), 400, "multipart"},
		"not packed":  {"POST", "?path=x", map[string]string{"Content-Type": rawMedia, "Content-Encoding": "gzip"}, strings.NewReader("x"), 400, "gzip"},
		"br":          {"POST", "?path=x", map[string]string{"Content-Type": rawMedia, "Content-Encoding": "br"}, strings.NewReader("x"), 400, "gzip"},
		"a cut form":  {"POST", "", map[string]string{"Content-Type": "multipart/form-data; boundary=x"}, strings.NewReader("--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"cut\"\r\n\r\nab"), 400, "body"},
		"no filename": {"POST", "", map[string]string{"Content-Type": "multipart/form-data; boundary=x"}, strings.NewReader("--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nab\r\n--x--\r\n"), 400, "filename"},
		"twice":       {"POST", "", twiceHeader, twice, 400, "two files"}, "an empty form": {"POST", "", noneHeader, none, 200, "[]"},
		"another user":  {"GET", "?path=/abs&username=mallory", nil, nil, 401, "mallory"},
		"long metadata": {"POST", "?path=x", map[string]string{"Content-Type": rawMedia, "X-Metadata-A": strings.Repeat("b", 5000)}, strings.NewReader("x"), 400, "limit"},
	} {
		status, body := w.rest(t, c.method, "/files"+c.query, goodToken, c.header, c.body)
		want(what, status, body, c.status, c.text)
	}
	labelled := map[string]string{"Content-Type": rawMedia, "X-Metadata-Origin": "a test", "X-Metadata-B": "2"}
	status, body = w.rest(t, "POST", "/files?path=labelled", goodToken, labelled, strings.NewReader("x"))
	want("with metadata", status, body, 200, `"metadata":{"b":"2","origin":"a test"}`)
	stat := func() map[string]string {
		t.Helper()
		res, err := ask[pathRequest, entryResponse](t, w, filesystemService+"Stat", "", &pathRequest{"labelled"})
		if err != nil {
			t.Fatal(err)
		}
		return res.Entry.Metadata
	}
	if got := stat(); len(got) != 2 || got["origin"] != "a test" {
		t.Error(got)
	}
	status, body = w.rest(t, "POST", "/files?path=labelled", goodToken, map[string]string{"Content-Type": rawMedia, "X-Metadata-B": "3"}, strings.NewReader("y"))
	want("with other metadata", status, body, 200, `"metadata":{"b":"3"}`)
	if got := stat(); len(got) != 1 || got["b"] != "3" {
		t.Error(got)
	}
}

// TestSignedURLs: a signature permits one operation on one file, where the host name has the box.
func TestSignedURLs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.Config.Handler.(*Endpoints)
	ask := func(method, path string, query url.Values, byName bool, header http.Header) (int, string) {
		var body io.Reader
		if method == "POST" {
			body = strings.NewReader("signed")
		}
		r := httptest.NewRequest(method, path+"?"+query.Encode(), body)
		r.Header = header
		rec := httptest.NewRecorder()
		if byName {
			e.ServeBox(rec, r, string(w.box))
		} else {
			e.ServeHTTP(rec, r)
		}
		return rec.Code, rec.Body.String()
	}
	raw := http.Header{"Content-Type": {rawMedia}}
	write := url.Values{"path": {"f"}, "signature": {token.Sign(token.Signed{Path: "f", Operation: token.Write}, goodToken)}}
	read := url.Values{"path": {"f"}, "signature": {token.Sign(token.Signed{Path: "f", Operation: token.Read}, goodToken)}}
	if status, body := ask("POST", "/files", write, true, raw); status != 200 {
		t.Fatal(status, body)
	}
	if status, body := ask("GET", "/files", read, true, http.Header{}); status != 200 || body != "signed" {
		t.Fatal(status, body)
	}
	other := url.Values{"path": {"g"}, "signature": read["signature"]}
	named := url.Values{"path": {"f"}, "username": {"user"}, "signature": read["signature"]}
	for what, c := range map[string]struct {
		method, path string
		query        url.Values
		byName       bool
		header       http.Header
		status       int
	}{
		"to write, a signature to read": {"POST", "/files", read, true, raw, 401}, "to read, one to write": {"GET", "/files", write, true, http.Header{}, 401},
		"another file": {"GET", "/files", other, true, http.Header{}, 401}, "another user": {"GET", "/files", named, true, http.Header{}, 401},
		"another path": {"GET", "/envs", read, true, http.Header{}, 401}, "without a box": {"GET", "/files", read, false, http.Header{}, 401},
		"with a box": {"GET", "/files", read, false, http.Header{SandboxHeader: {string(w.box)}}, 200}, "with another box": {"GET", "/files", read, false, http.Header{SandboxHeader: {"b0"}}, 401},
		"with a wrong token": {"GET", "/files", read, true, http.Header{tokenHeader: {"wrong"}}, 401}, "with two tokens": {"GET", "/files", read, true, http.Header{tokenHeader: {goodToken, "x"}}, 401},
	} {
		if status, body := ask(c.method, c.path, c.query, c.byName, c.header); status != c.status {
			t.Errorf("%s: %d %s", what, status, body)
		}
	}
	w.signed.Store(0)
	for _, box := range []string{string(w.box), "b0"} {
		if status, body := ask("GET", "/files", other, false, http.Header{SandboxHeader: {box}}); status != 401 {
			t.Errorf("%s: %d %s", box, status, body)
		}
	}
	if n := w.signed.Load(); n != 2 {
		t.Errorf("%d of 2 wrong signatures were checked: the time of the answer tells whether there is a box", n)
	}
}

// TestWatches: changes are streamed, or collected for a client that polls, until they are lost or the credential has ended.
func TestWatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := errors.Join(os.MkdirAll(w.root+home+"/d", 0o755), os.WriteFile(w.root+home+"/f", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for path, code := range map[string]string{"f": "invalid_argument", "none": "not_found"} {
		if s := stream[watchRequest, watchResponse](t, t.Context(), w, filesystemService+"WatchDir", goodToken, &watchRequest{Path: path}); s.Receive() || codeFor(s.Err()) != code {
			t.Errorf("%s: %v", path, s.Err())
		}
	}
	s := stream[watchRequest, watchResponse](t, t.Context(), w, filesystemService+"WatchDir", goodToken, &watchRequest{Path: "d", Entries: true})
	if !s.Receive() || s.Msg().Start == nil {
		t.Fatal(s.Err())
	}
	entry := &files.Info{Name: []byte("a"), Type: "file", Size: 3}
	w.emit <- []files.Event{{Kind: files.EventCreate, Name: []byte("x/a"), Entry: entry}, {Kind: files.EventRemove, Name: []byte("b"), Entry: entry}}
	if !s.Receive() || s.Msg().Filesystem.Name != "x/a" || s.Msg().Filesystem.Type != "EVENT_TYPE_CREATE" || s.Msg().Filesystem.Entry.Path != home+"/d/x/a" || s.Msg().Filesystem.Entry.Size != 3 {
		t.Errorf("%+v %v", s.Msg().Filesystem, s.Err())
	}
	if !s.Receive() || s.Msg().Filesystem.Type != "EVENT_TYPE_REMOVE" || s.Msg().Filesystem.Entry != nil {
		t.Errorf("%+v %v", s.Msg().Filesystem, s.Err())
	}
	w.emit <- []files.Event{{Kind: files.EventOverflow, Name: []byte("unreadable")}, {Kind: files.EventWrite, Name: []byte("c")}}
	if !s.Receive() || s.Msg().Filesystem.Name != "c" {
		t.Errorf("a directory that cannot be watched ends the watch of the others: %+v %v", s.Msg(), s.Err())
	}
	w.emit <- []files.Event{{Kind: files.EventOverflow}}
	if s.Receive() || codeFor(s.Err()) != "failed_precondition" || !strings.Contains(s.Err().Error(), "lost") {
		t.Error(s.Msg(), s.Err())
	}

	poll := func(id string) (*watcherEvents, error) {
		t.Helper()
		return ask[watcherName, watcherEvents](t, w, filesystemService+"GetWatcherEvents", "", &watcherName{id})
	}
	made, err := ask[watchRequest, watcherName](t, w, filesystemService+"CreateWatcher", "", &watchRequest{Path: "d"})
	if err != nil {
		t.Fatal(err)
	}
	w.emit <- []files.Event{{Kind: files.EventWrite, Name: []byte("a")}}
	w.emit <- nil // the events before it were collected
	if got, err := poll(made.ID); err != nil || len(got.Events) != 1 || got.Events[0].Name != "a" {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := poll(made.ID); err != nil || len(got.Events) != 0 {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := ask[watcherName, empty](t, w, filesystemService+"RemoveWatcher", "", made); err != nil {
		t.Fatal(err)
	}
	gone := func(id string) func() bool {
		return func() bool { _, err := poll(id); return codeFor(err) == "not_found" }
	}
	until(t, "the watcher is removed", gone(made.ID))

	var last *watcherName
	for range maxWatchers {
		if last, err = ask[watchRequest, watcherName](t, w, filesystemService+"CreateWatcher", "", &watchRequest{Path: "d"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ask[watchRequest, watcherName](t, w, filesystemService+"CreateWatcher", "", &watchRequest{Path: "d"}); codeFor(err) != "resource_exhausted" {
		t.Error("any number of watchers", err)
	}
	if _, err := poll(last.ID); err != nil {
		t.Error(err)
	}
	w.revoked.Store(true)
	e := w.Config.Handler.(*Endpoints)
	until(t, "the watchers end with their credential", func() bool {
		e.watchers.mu.Lock()
		defer e.watchers.mu.Unlock()
		return len(e.watchers.boxes) == 0
	})
	w.revoked.Store(false)
	if err := os.MkdirAll(w.root+"/root/d", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := ask[watchRequest, watcherName](t, w, filesystemService+"CreateWatcher", "root", &watchRequest{Path: "d"}); err != nil || w.fileUser.Load() != "root" {
		t.Errorf("%v, as %v", err, w.fileUser.Load())
	}
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// TestAttackWatcher: a watcher that is not polled keeps a bounded number of changes, and ends with an error when some were lost.
func TestAttackWatcher(t *testing.T) {
	t.Parallel()
	w, long := &watcher{}, strings.Repeat("x", 4000)
	kept := 0
	for range 2 * maxWatcherEvents {
		if err := w.add([]*fileEvent{{Name: long}}); err != nil {
			if !errors.Is(err, errLost) || len(w.events) != 0 {
				t.Error(err, len(w.events))
			}
			return
		}
		if kept += len(long); kept > maxWatcherBytes {
			break
		}
	}
	t.Errorf("%d bytes are kept", kept)
}

// TestAttackManyFiles: the paths of an upload, which its response has, are charged to its API key.
func TestAttackManyFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var limits quota.Limits
	limits[quota.Memory] = 1 << 20
	w.scopes = quota.New(quota.Config{Defaults: limits})
	var text strings.Builder
	form := multipart.NewWriter(&text)
	const files = 1000
	for i := range files {
		part, err := form.CreateFormFile("file", fmt.Sprintf("/%0200d", i))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(part, "x")
	}
	if err := form.Close(); err != nil {
		t.Fatal(err)
	}
	header := map[string]string{"Content-Type": form.FormDataContentType()}
	if status, body := w.rest(t, "POST", "/files", goodToken, header, strings.NewReader(text.String())); status != http.StatusTooManyRequests {
		t.Errorf("%d %.200s", status, body)
	}
	limits[quota.Memory] = 4 << 20
	w.scopes = quota.New(quota.Config{Defaults: limits})
	if status, body := w.rest(t, "POST", "/files", goodToken, header, strings.NewReader(text.String())); status != http.StatusOK || strings.Count(body, `"path"`) != files {
		t.Errorf("%d %.200s", status, body)
	}
}

// TestAttackManyWatchers: the changes that a watcher may collect are charged to its API key until it ends, beyond the call that made it.
func TestAttackManyWatchers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var limits quota.Limits
	limits[quota.Memory] = 2*watcherCost + 1<<20 // and the body of a request
	w.scopes = quota.New(quota.Config{Defaults: limits})
	make := func() (*watcherName, error) {
		return ask[watchRequest, watcherName](t, w, filesystemService+"CreateWatcher", "", &watchRequest{Path: "/"})
	}
	first, err := make()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := make(); err != nil {
		t.Fatal(err)
	}
	if _, err := make(); codeFor(err) != "resource_exhausted" {
		t.Error("watchers beyond the quota of their key", err)
	}
	if _, err := ask[watcherName, empty](t, w, filesystemService+"RemoveWatcher", "", first); err != nil {
		t.Fatal(err)
	}
	until(t, "a watcher that ends makes room", func() bool { _, err := make(); return err == nil })
}

// TestStreams: input by a stream, signs of life, and malformed frames.
func TestStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	req := connect.NewRequest(&startRequest{Process: &processConfig{Cmd: "cat", Envs: map[string]string{"PATH": os.Getenv("PATH")}}})
	w.with(req.Header(), goodToken, "")
	req.Header().Set("Keepalive-Ping-Interval", "1")
	s, err := clientOf[startRequest, eventResponse](w, processService+"Start").CallServerStream(t.Context(), req)
	if err != nil || !s.Receive() {
		t.Fatal(err, s.Err())
	}
	defer s.Close()
	pid := uint32(s.Msg().Event.Start.Pid)
	if !s.Receive() || s.Msg().Event.KeepAlive == nil {
		t.Errorf("%+v %v", s.Msg(), s.Err())
	}
	in := clientOf[streamInputRequest, empty](w, processService+"StreamInput").CallClientStream(t.Context())
	w.with(in.RequestHeader(), goodToken, "")
	line := []byte("line\n")
	for _, m := range []*streamInputRequest{{Start: &selected{&selector{Pid: &pid}}}, {Data: &inputData{&input{Stdin: &line}}}, {KeepAlive: &struct{}{}}} {
		if err := in.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	for s.Receive() && s.Msg().Event.Data == nil {
	}
	if s.Msg().Event.Data == nil || string(s.Msg().Event.Data.Stdout) != "line\n" {
		t.Errorf("%+v %v", s.Msg(), s.Err())
	}
	if _, err := ask[selected, empty](t, w, processService+"CloseStdin", "", &selected{&selector{Pid: &pid}}); err != nil {
		t.Fatal(err)
	}
	for s.Receive() && s.Msg().Event.End == nil {
	}
	if s.Msg().Event.End == nil || s.Msg().Event.End.ExitCode != 0 {
		t.Errorf("%+v %v", s.Msg(), s.Err())
	}
	for what, frame := range map[string][]byte{
		"no frame": nil, "half a head": {0, 0}, "a cut message": frameOf(0, "{}")[:6], "no JSON": frameOf(0, "{"), "an empty message": frameOf(0, ""),
		"a length beyond the limit": binary.BigEndian.AppendUint32([]byte{0}, 1<<31), "packed by nobody": frameOf(1, "{}"), "an end of stream": frameOf(2, "{}"),
	} {
		status, body := w.rest(t, "POST", processService+"Start", goodToken, map[string]string{"Content-Type": "application/connect+json"}, bytes.NewReader(frame))
		if strings.Contains(body, `"pid"`) || !strings.Contains(body, `"error"`) {
			t.Errorf("%s: %d %q", what, status, body)
		}
	}
}

// TestAttackManyInputStreams: a stream of input is charged to its API key as long as it lasts, and its messages have a limit.
func TestAttackManyInputStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var limits quota.Limits
	limits[quota.Memory] = streamCost
	w.scopes = quota.New(quota.Config{Defaults: limits})
	header := map[string]string{"Content-Type": "application/connect+json"}
	send := func(body io.Reader) string {
		_, text := w.rest(t, "POST", processService+"StreamInput", goodToken, header, body)
		return text
	}
	read, write := io.Pipe()
	first := make(chan string)
	go func() { first <- send(read) }()
	if _, err := write.Write(frameOf(0, `{"keepalive":{}}`)); err != nil {
		t.Fatal(err)
	}
	until(t, "a second stream is refused", func() bool { return strings.Contains(send(strings.NewReader("")), "memory") })
	_ = write.Close()
	if text := <-first; strings.Contains(text, "error") {
		t.Error(text)
	}
	huge := frameOf(0, `{"keepalive":{}`+strings.Repeat(" ", maxStreamed)+"}")
	if text := send(bytes.NewReader(huge)); !strings.Contains(text, "resource_exhausted") || !strings.Contains(text, "larger") {
		t.Error(text)
	}
}

// TestAttackPackedMessage: a message has its limit after decompression.
func TestAttackPackedMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	huge, err := io.ReadAll(packed(t, `{"process":{"cmd":"true"}`+strings.Repeat(" ", 8<<20)+"}"))
	if err != nil {
		t.Fatal(err)
	}
	header := map[string]string{"Content-Type": "application/connect+json", "Connect-Content-Encoding": "gzip"}
	if _, body := w.rest(t, "POST", processService+"Start", goodToken, header, bytes.NewReader(frameOf(1, string(huge)))); !strings.Contains(body, "resource_exhausted") {
		t.Errorf("%q", body)
	}
	header = map[string]string{"Content-Type": "application/json", "Content-Encoding": "gzip"}
	if status, body := w.rest(t, "POST", filesystemService+"Stat", goodToken, header, bytes.NewReader(huge)); status != http.StatusTooManyRequests {
		t.Errorf("%d %q", status, body)
	}
}

// frameOf returns a message of a stream.
func frameOf(flags byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text))), text...)
}

// FuzzRequests sends any body to any procedure: it is answered, and never with an internal error.
func FuzzRequests(f *testing.F) {
	w := newWorld(f)
	e := w.Config.Handler.(*Endpoints)
	var procedures []string
	for path := range e.rpcs {
		procedures = append(procedures, path)
	}
	slices.Sort(procedures)
	for i := range procedures {
		for _, text := range []string{`{}`, `{"process":{"pid":1}}`, `{"process":{"tag":"a"},"signal":"SIGNAL_SIGKILL"}`, `{"process":{"pid":1},"input":{"stdin":"eA=="}}`, `{"path":"a","depth":2}`, `{"watcherId":"w"}`, `{"source":"a","destination":"b"}`, `{"process":{"pid":1},"pty":{"size":{"rows":1,"cols":1}}}`} {
			f.Add(byte(i), false, []byte(text))
			f.Add(byte(i), true, frameOf(0, text))
		}
	}
	f.Fuzz(func(t *testing.T, procedure byte, streams bool, data []byte) {
		path := procedures[int(procedure)%len(procedures)]
		if strings.HasSuffix(path, "/Start") && bytes.Contains(data, []byte("cmd")) || strings.Contains(path, "Watch") && strings.HasSuffix(path, "r") {
			return // it would run commands on this host, or wait
		}
		ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
		defer end()
		r := httptest.NewRequestWithContext(ctx, "POST", path, bytes.NewReader(data))
		r.Header.Set("Content-Type", map[bool]string{false: "application/json", true: "application/connect+json"}[streams])
		w.with(r.Header, goodToken, "")
		rec := httptest.NewRecorder()
		if strings.HasSuffix(path, "WatchDir") || strings.HasSuffix(path, "CreateWatcher") {
			end()
		}
		e.ServeHTTP(rec, r)
		if rec.Code == http.StatusInternalServerError {
			t.Errorf("%s: %d %s", path, rec.Code, rec.Body)
		}
	})
}

// TestFilesOfRoot: procedures and transfers as root open the files as root, with paths relative to its home, and root owns the files that they write.
func TestFilesOfRoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	raw := map[string]string{"Content-Type": rawMedia}
	if status, body := w.rest(t, "POST", "/files?path=~/f&username=root", goodToken, raw, strings.NewReader("x")); status != 200 || !strings.Contains(body, `"path":"/root/f"`) || !w.owned.Load() {
		t.Errorf("%d %s, becomes root's: %v", status, body, w.owned.Load())
	}
	if status, body := w.rest(t, "GET", "/files?path=f&username=root", goodToken, nil, nil); status != 200 || body != "x" || w.fileUser.Load() != "root" {
		t.Errorf("%d %s, as %v", status, body, w.fileUser.Load())
	}
	for _, procedure := range []string{"Stat", "MakeDir", "ListDir", "Remove"} {
		w.fileUser.Store("")
		path := map[string]string{"Stat": "f", "MakeDir": "d"}[procedure]
		if _, err := ask[pathRequest, empty](t, w, filesystemService+procedure, "root", &pathRequest{path}); err != nil || w.fileUser.Load() != "root" {
			t.Errorf("%s: %v, as %v", procedure, err, w.fileUser.Load())
		}
	}
	if status, _ := w.rest(t, "POST", "/files?path=f", goodToken, raw, strings.NewReader("x")); status != 200 || w.fileUser.Load() != "" || w.owned.Load() {
		t.Errorf("without a user: %d, as %v, becomes the user's: %v", status, w.fileUser.Load(), w.owned.Load())
	}
}
