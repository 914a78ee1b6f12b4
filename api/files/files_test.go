package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/capture"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
)

// oneFile is a Host with a box that has one file, which is shorter than announced if cut is set.
type oneFile struct {
	Files
	content string
	cut     bool
	written map[string]string
	closed  int
	user    string // of the last call
	entries int    // per directory
}

func (h *oneFile) Box(context.Context, string) (api.Box, error) { return api.Box{ID: "b"}, nil }
func (h *oneFile) OpenFiles(_ context.Context, _ policy.BoxID, user string) (Files, error) {
	h.user = user
	return h, nil
}
func (h *oneFile) Close() { h.closed++ }

func (h *oneFile) Stat(string, bool) (Info, error) {
	return Info{Type: "file", Size: int64(len(h.content))}, nil
}

func (h *oneFile) Read(_ string, offset, length int64) (Info, io.Reader, error) {
	content := h.content[min(offset, int64(len(h.content))):]
	var r io.Reader = strings.NewReader(content)
	if h.cut {
		r = io.MultiReader(strings.NewReader(content[:len(content)/2]), failing{})
	}
	return Info{Type: "file", Size: int64(len(h.content))}, io.LimitReader(r, length), nil
}

func (h *oneFile) List(_ string, most int) ([]Info, bool, error) {
	var infos []Info
	for i := range min(h.entries, most) {
		infos = append(infos, Info{Name: fmt.Appendf(nil, "%05d%s", i, strings.Repeat("\x01", 200)), Type: "file"})
	}
	return infos, h.entries > most, nil
}

// The size of a list is limited, and memory is reserved before a large directory is read.
func TestListIsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		entries, room int
		folder        string
		want          int // entries
		truncated     bool
	}{
		{entries: 3, room: 1 << 20, folder: "d", want: 3},
		{entries: 501, room: 64 << 20, folder: "d", want: 501},
		{entries: 501, room: 1 << 20, folder: "d"},
		{entries: 400, room: 1 << 20, folder: "d"},
		{entries: 20_001, room: 256 << 20, folder: strings.Repeat("d/", 50), want: 5000, truncated: true},
	} {
		h := &oneFile{entries: c.entries}
		e := &Endpoints{Boxes: h, Host: h, Output: capture.New(c.room)}
		r := httptest.NewRequestWithContext(api.WithCaller(t.Context(), api.Caller{Role: api.RoleAdmin}), "GET", "/?folder="+c.folder, nil)
		r.SetPathValue("id", "b")
		rep, err := e.list(nil, r)
		if c.want == 0 {
			if !errors.Is(err, api.ErrLimit) {
				t.Errorf("%d entries with room for %d bytes: %v", c.entries, c.room, err)
			}
			continue
		}
		view, ok := rep.Body.(listView)
		if n := len(view.Files); err != nil || !ok || view.Truncated != c.truncated || !c.truncated && n != c.want || n < c.want || n > 20_000 {
			t.Errorf("%d entries with room for %d bytes: %d, truncated %v, %v", c.entries, c.room, len(view.Files), view.Truncated, err)
		}
		if text, err := json.Marshal(view); err != nil || len(text) > maxList+1000 {
			t.Errorf("%d entries: %d bytes of JSON, %v", c.entries, len(text), err)
		}
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func (h *oneFile) Write(path string, _ WriteOptions, content io.Reader) error {
	data, err := io.ReadAll(content)
	if err == nil {
		h.written[path] = string(data)
	}
	return err
}

func serve(t *testing.T, h *oneFile) *httptest.Server {
	t.Helper()
	e := &Endpoints{Boxes: h, Host: h, Bodies: strict.Bodies{Most: 1 << 20}, MaxRead: 10, Output: capture.New(1 << 20)}
	mux := http.NewServeMux()
	for _, rt := range e.Routes() {
		answers := rest.Answerer{Log: zap.NewNop()}.Serve(rt)
		mux.HandleFunc(rt.Pattern(), func(w http.ResponseWriter, r *http.Request) {
			answers.ServeHTTP(w, r.WithContext(api.WithCaller(r.Context(), api.Caller{Role: api.RoleAdmin})))
		})
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func answer(t *testing.T, resp *http.Response, err error) (int, string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(data))
}

func TestReadIsBounded(t *testing.T) {
	t.Parallel()
	h := &oneFile{content: "0123456789ab\xff"}
	s := serve(t, h)
	for query, want := range map[string]string{
		"path=f":                                    `413 {"error":"the file has 13 bytes; one call reads at most 10: read ranges with offset and length, or get it from files/download"}`,
		"path=f&offset=5":                           `200 {"content":"56789ab` + "\uFFFD" + `","size":13}`,
		"path=f&offset=1&length=3":                  `200 {"content":"123","size":13}`,
		"path=f&length=0":                           `200 {"content":"","size":13}`,
		"path=f&offset=99&length=3":                 `200 {"content":"","size":13}`,
		"path=f&offset=11&length=2&encoding=base64": `200 {"content":"Yv8=","encoding":"base64","size":13}`,
		"path=f&length=11":                          `422 {"error":"/length: is larger than 10`,
		"path=f&encoding=hex":                       `422 {"error":"/encoding: must be`,
		"path=f&offset=-1":                          `422 `,
		"path=%00":                                  `422 {"error":"/path: must not contain NUL"`,
		"":                                          `422 {"error":"/path: is missing`,
	} {
		resp, err := http.Get(s.URL + "/v2/box/b/files/read?" + query)
		_, body := answer(t, resp, err)
		if got := resp.Status[:3] + " " + body; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// TestDownloadThatBreaksOffIsSeen: a client cannot mistake a truncated download for the complete file.
func TestDownloadThatBreaksOffIsSeen(t *testing.T) {
	t.Parallel()
	s := serve(t, &oneFile{content: strings.Repeat("x", 1000), cut: true})
	resp, err := http.Get(s.URL + "/v2/box/b/files/download?folder=f")
	if err != nil {
		return // the connection broke before the header
	}
	defer resp.Body.Close()
	if data, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

func TestUploadForms(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		parts []string // name=content
		want  string
	}{
		"as the SDK sends it": {[]string{"paths=/a", "files=1", "paths=b", "files=2"}, `200 {"files":[{"path":"/a"},{"path":"/workspace/home/b"}]}`},
		"nothing":             {nil, `422 {"error":"/files: is missing`},
		"a file alone":        {[]string{"files=1"}, `422 {"error":"/paths: each part files needs a part paths before it`},
		"a path alone":        {[]string{"paths=/a"}, `422 {"error":"/files: each part paths needs a part files after it`},
		"two paths":           {[]string{"paths=/a", "paths=/b", "files=1", "files=2"}, `422 {"error":"/files: `},
		"another part":        {[]string{"mode=7"}, `422 {"error":"/paths: `},
		"no path":             {[]string{"paths=", "files=1"}, `422 {"error":"/paths: is missing`},
		"a long path":         {[]string{"paths=" + strings.Repeat("n", 5000), "files=1"}, `422 {"error":"/paths: has `},
	} {
		h := &oneFile{written: map[string]string{}}
		s := serve(t, h)
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		for _, part := range c.parts {
			field, content, _ := strings.Cut(part, "=")
			if err := form.WriteField(field, content); err != nil {
				t.Fatal(err)
			}
		}
		form.Close()
		resp, err := http.Post(s.URL+"/v2/box/b/files/upload", form.FormDataContentType(), &body)
		if _, text := answer(t, resp, err); !strings.HasPrefix(resp.Status[:3]+" "+text, c.want) {
			t.Errorf("%s: %s %s", name, resp.Status, text)
		}
		if h.closed != 1 {
			t.Errorf("%s: closed %d times", name, h.closed)
		}
	}
	resp, err := http.Post(serve(t, &oneFile{}).URL+"/v2/box/b/files/upload", "multipart/form-data; boundary=x", strings.NewReader("--x\r\nContent-Disposition: form-data; name=\"paths\"\r\n\r\n/a"))
	if code, text := answer(t, resp, err); code != http.StatusBadRequest {
		t.Errorf("half a form: %d %s", code, text)
	}
	for what, body := range map[string]string{
		"a part without an end to its header": "--x\r\nContent-Disposition: form-data; name=\"paths\"\r\n--x--\r\n",
		"a part with a line that is no field": "--x\r\nContent-Disposition form-data\r\n\r\n/a\r\n--x--\r\n",
		"a second part that is malformed":     "--x\r\nContent-Disposition: form-data; name=\"paths\"\r\n\r\n/a\r\n--x\r\n: none\r\n\r\nb\r\n--x--\r\n",
		"a field that is too long":            "--x\r\nX: " + strings.Repeat("v", 11<<20) + "\r\n\r\n/a\r\n--x--\r\n",
		"a file whose encoding is malformed":  "--x\r\nContent-Disposition: form-data; name=\"paths\"\r\n\r\n/a\r\n--x\r\nContent-Disposition: form-data; name=\"files\"\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\x01\r\n--x--\r\n",
	} {
		resp, err := http.Post(serve(t, &oneFile{written: map[string]string{}}).URL+"/v2/box/b/files/upload", "multipart/form-data; boundary=x", strings.NewReader(body))
		if code, text := answer(t, resp, err); code != http.StatusBadRequest || !strings.Contains(text, "form") && !strings.Contains(text, "incomplete") {
			t.Errorf("%s: %d %s", what, code, text)
		}
	}
	if err := bodyError(problem.Refuse(409, "x")); err.Error() != "x" {
		t.Error(err)
	}
}

// FuzzResolve checks that an accepted path is absolute, ends with the given text, and is short enough for the kernel.
func FuzzResolve(f *testing.F) {
	for _, path := range []string{"", "a", "/etc/passwd", "../../etc", "a//b/./c/", "\xff\x00", strings.Repeat("n/", 3000), "/"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := resolve(api.Workspace, "path", text, false)
		if err != nil {
			return
		}
		if !strings.HasPrefix(got, "/") || !strings.HasSuffix(got, text) || len(got) > maxPath || strings.ContainsRune(got, 0) {
			t.Errorf("%q became %q", text, got)
		}
		if !strings.HasPrefix(text, "/") && !strings.HasPrefix(got, api.Workspace+"/") {
			t.Errorf("%q became %q", text, got)
		}
		if !utf8.ValidString(displayPath(got)) {
			t.Errorf("%q is shown as %q", got, displayPath(got))
		}
	})
}

func (h *oneFile) SetAttributes(path string, set map[string]string, remove []string) error {
	h.written[path] = fmt.Sprint(set, remove)
	return nil
}

// TestAttributeChanges: names and values that no file can have, or too many of them, are refused before anything is changed.
func TestAttributeChanges(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range maxAttributes {
		many[fmt.Sprint(i)] = ""
	}
	for want, c := range map[string]struct {
		set    map[string]string
		remove []string
	}{
		"map[a:v b:] [c d]": {map[string]string{"a": "v", "b": ""}, []string{"c", "d"}}, "map[] [x]": {nil, []string{"x"}},
		"none": {}, "too many": {many, []string{"x"}}, "no name": {nil, []string{""}}, "long name": {map[string]string{strings.Repeat("n", 251): ""}, nil},
		"NUL": {map[string]string{"a\x00b": ""}, nil}, "long value": {map[string]string{"a": strings.Repeat("v", maxAttributeValue+1)}, nil},
	} {
		h := &oneFile{written: map[string]string{}}
		body, err := json.Marshal(attributesBody{"f", c.set, c.remove, ""})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(api.WithCaller(t.Context(), api.Caller{Role: api.RoleAdmin}), "POST", "/", bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.SetPathValue("id", "b")
		e := &Endpoints{Boxes: h, Host: h, Bodies: strict.Bodies{Most: 1 << 20}}
		_, err = e.setAttributes(httptest.NewRecorder(), r)
		if got := h.written["/workspace/home/f"]; strings.HasPrefix(want, "map") && (err != nil || got != want) || !strings.HasPrefix(want, "map") && (err == nil || got != "") {
			t.Errorf("%s: %q, %v", want, got, err)
		}
	}
}

// TestUserOfFiles: every call takes a user of the box, in the form of commands, and resolves paths from its home directory.
func TestUserOfFiles(t *testing.T) {
	t.Parallel()
	h := &oneFile{content: "short", written: map[string]string{}}
	s := serve(t, h)
	for _, c := range []struct {
		user   string
		status int
	}{{"root", 200}, {"0:0", 200}, {"boxuser", 200}, {"mallory", 422}, {"70000", 422}, {"root\x00", 422}} {
		h.user = "none"
		res, err := http.Get(s.URL + "/v2/box/b/files/read?path=f&user=" + url.QueryEscape(c.user))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.status || (h.user == c.user) != (c.status == 200) {
			t.Errorf("%q: %d, opened as %q", c.user, res.StatusCode, h.user)
		}
	}
	res, err := http.Post(s.URL+"/v2/box/b/files/write", "application/json", strings.NewReader(`{"path":"f","content":"x","user":"root"}`))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if h.written["/root/f"] != "x" || h.user != "root" {
		t.Errorf("written: %v, as %q", h.written, h.user)
	}
}
