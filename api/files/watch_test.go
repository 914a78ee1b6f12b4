package files_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/files"
	"boxgate/policy"
)

// watching is a Watcher whose watches report the events of the test, until it ends them.
type watching struct {
	events chan []files.Event
	end    chan error
	ended  chan error // why each watch has ended
	asked  chan string
}

func (w *watching) WatchFiles(ctx context.Context, _ policy.BoxID, path string, o files.WatchOptions, emit func([]files.Event) error) (err error) {
	defer func() { w.ended <- err }()
	w.asked <- path
	if strings.HasSuffix(path, "/missing") {
		return api.Errorf(api.ErrNotFound, "%s: no such directory", path)
	}
	if !o.Recursive || !o.Entries {
		return errors.New("the options are lost")
	}
	if err := emit(nil); err != nil {
		return err
	}
	for {
		select {
		case events := <-w.events:
			if err := emit(events); err != nil {
				return err
			}
		case err := <-w.end:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

type watchFixture struct {
	*apitest.Served
	*watching
	path     string
	stopping chan struct{}
}

func serveWatch(t *testing.T) *watchFixture {
	t.Helper()
	host := apitest.NewHost(t)
	f := &watchFixture{watching: &watching{make(chan []files.Event), make(chan error), make(chan error, 10), make(chan string, 10)}, stopping: make(chan struct{})}
	f.Served = apitest.Serve(t, host, (&files.Endpoints{Boxes: host, Host: host, Watcher: f.watching, Stopping: f.stopping}).Routes())
	f.path = "/v2/box/" + host.Add(t, api.CreateRequest{Name: "web"}) + "/files/watch"
	return f
}

// open starts a watch. Its response has begun, so it is in place.
func (f *watchFixture) open(t *testing.T, ctx context.Context) *bufio.Scanner {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", f.URL+f.path+"?path=src&recursive=true&entries=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(api.KeyHeader, apitest.Key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Fatal(res.Status, res.Header)
	}
	if got := <-f.asked; got != "/workspace/home/src" {
		t.Errorf("%s is watched", got)
	}
	return bufio.NewScanner(res.Body)
}

// TestWatchStream: each event is a line, safe for a terminal whatever the box has named its files, and the last line has the reason of the
// end.
func TestWatchStream(t *testing.T) {
	t.Parallel()
	f := serveWatch(t)
	lines := f.open(t, t.Context())
	f.events <- []files.Event{
		{Kind: files.EventCreate, Name: []byte("a/new\nline\x1b[31m\xff\u202e"), Entry: &files.Info{Type: "symlink", Size: 3, Mode: 0o755, Owner: "boxuser", UID: 1000, Target: []byte("f\xff")}},
		{Kind: files.EventOverflow},
	}
	if !lines.Scan() || strings.ContainsAny(lines.Text(), "\x1b\u202e") {
		t.Fatalf("%q, %v", lines.Text(), lines.Err())
	}
	var event struct {
		Type, Path string
		Entry      struct {
			Name, Type, Mode, Permissions, Owner string
			Target                               string `json:"symlink_target"`
			UID                                  int
		}
	}
	if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
		t.Fatal(err)
	}
	if e := event.Entry; event.Type != "create" || event.Path != "a/new\nline\x1b[31m\uFFFD\u202e" || e.Name != "new\nline\x1b[31m\uFFFD\u202e" || e.Type != "symlink" ||
		e.Mode != "0755" || e.Permissions != "lrwxr-xr-x" || e.Owner != "boxuser" || e.UID != 1000 || e.Target != "f\uFFFD" {
		t.Errorf("%+v", event)
	}
	if !lines.Scan() || lines.Text() != `{"type":"overflow"}` {
		t.Errorf("%q, %v", lines.Text(), lines.Err())
	}
	f.end <- api.Errorf(api.ErrNotFound, "/workspace/home/src: the directory was removed")
	if !lines.Scan() || lines.Text() != `{"type":"end","error":"/workspace/home/src: the directory was removed"}` || lines.Scan() {
		t.Errorf("%q, %v", lines.Text(), lines.Err())
	}
}

// TestWatchEnds: a watch that cannot begin has a status of its own, one ends when its client leaves, and all do when the gateway stops.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	f := serveWatch(t)
	for query, status := range map[string]int{"?path=missing": 404, "?path=a%00b": 422, "?recursive=perhaps": 422} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", f.URL+f.path+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(api.KeyHeader, apitest.Key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != status {
			t.Errorf("%s: %s", query, res.Status)
		}
	}
	<-f.asked
	<-f.ended
	ctx, leave := context.WithCancel(t.Context())
	f.open(t, ctx)
	leave()
	if err := <-f.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("after its client has left, a watch ends with %v", err)
	}
	lines := f.open(t, t.Context())
	close(f.stopping)
	if !lines.Scan() || lines.Text() != `{"type":"end","error":"the gateway is stopping"}` || lines.Scan() {
		t.Errorf("%q, %v", lines.Text(), lines.Err())
	}
}

// TestPermissionsInWords: the form of ls.
func TestPermissionsInWords(t *testing.T) {
	t.Parallel()
	for want, info := range map[string]files.Info{
		"drwxr-xr-x": {Type: "directory", Mode: 0o755}, "-rw-r-----": {Type: "file", Mode: 0o640}, "lrwxrwxrwx": {Type: "symlink", Mode: 0o777}, "---------x": {Type: "other", Mode: 0o1},
	} {
		if got := info.Permissions(); got != want {
			t.Errorf("%+v: %s, want %s", info, got, want)
		}
	}
}
