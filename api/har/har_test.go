package har_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	endpoints "boxgate/api/har"
	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy/har"
)

// fixture serves the endpoint for one box.
type fixture struct {
	*apitest.Served
	host     *apitest.Host
	path     string
	stopping chan struct{}
}

func serve(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{host: apitest.NewHost(t), stopping: make(chan struct{})}
	f.host.Captures = make(chan *har.Capture, 1)
	f.Served = apitest.Serve(t, f.host, (&endpoints.Endpoints{Boxes: f.host, Host: f.host, Bodies: apitest.Bodies, Stopping: f.stopping}).Routes())
	f.path = "/v2/box/" + f.host.Add(t, api.CreateRequest{Name: "web"}) + "/har"
	return f
}

// begin begins a capture, and returns it with its response after the beginning of the archive has arrived.
func (f *fixture) begin(t *testing.T, body string) (*har.Capture, *bufio.Reader) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", f.URL+f.path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(api.KeyHeader, apitest.Key)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	in := bufio.NewReader(res.Body)
	if head, err := in.Peek(len(`{"log":`)); err != nil || string(head) != `{"log":` || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %q, %v", res.Status, head, err)
	}
	return <-f.host.Captures, in
}

// exchange adds an entry to a capture.
func exchange(c *har.Capture, path string) {
	e := c.Begin(memory.New(64<<20, 64<<20).Account("box"), time.Now())
	e.Request(har.Request{Version: "HTTP/1.1", Method: "GET", Scheme: "https", Host: "a.example", Path: path, Size: -1})
	e.Response(time.Now(), "HTTP/1.1", 200, nil)
	e.Finish(&audit.Event{Verdict: policy.Allow})
}

// ended reads the rest of an archive, and returns the number of its entries and the reason of its end.
func ended(t *testing.T, in *bufio.Reader) (entries int, why har.Reason) {
	t.Helper()
	var archive struct {
		Log struct {
			Entries []json.RawMessage
			Boxgate har.Ending `json:"_boxgate"`
		}
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(in); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text.Bytes(), &archive); err != nil {
		t.Fatalf("%v: %s", err, text.String())
	}
	if bytes.ContainsAny(text.Bytes(), "\x1b\x7f\u202e") {
		t.Errorf("characters for a terminal: %q", text.String())
	}
	return len(archive.Log.Entries), archive.Log.Boxgate.Ended
}

// turns has a place for each entry that the test has not read yet, so that none is dropped.
type turns chan struct{}

// Write frees the places of the entries in a part of the archive.
func (t turns) Write(part []byte) (int, error) {
	for range bytes.Count(part, []byte("\n")) {
		select {
		case <-t:
		default: // the newline is not of an entry that waited
		}
	}
	return len(part), nil
}

// TestCapture: entries are written as they end, the archive is a whole document whatever ends it, and then another may begin.
func TestCapture(t *testing.T) {
	t.Parallel()
	f := serve(t)
	places := make(turns, 500)
	for why, end := range map[har.Reason]func(*har.Capture){
		har.EndTime: func(*har.Capture) {}, har.EndBox: func(c *har.Capture) { c.End(har.EndBox) },
		har.EndEntries: func(c *har.Capture) {
			for range har.MaxEntries + 100 {
				places <- struct{}{}
				exchange(c, "/more")
			}
		},
	} {
		seconds := "3600"
		if why == har.EndTime {
			seconds = "1"
		}
		c, in := f.begin(t, `{"seconds":`+seconds+`}`)
		if got := f.Call(t, "POST", f.path, `{}`); got.StatusCode != http.StatusConflict {
			t.Errorf("a second capture: %s %s", got.Status, got.Text)
		}
		exchange(c, "/a\u202e\x1b[2J")
		if _, err := in.ReadBytes('\n'); err != nil {
			t.Fatal(err)
		}
		if first, err := in.Peek(20); err != nil || !bytes.HasPrefix(first, []byte(`{"startedDateTime"`)) {
			t.Fatalf("%q, %v", first, err)
		}
		go end(c)
		entries, got := ended(t, bufio.NewReader(io.MultiReader(strings.NewReader(`{"log":{"entries":[`), io.TeeReader(in, places))))
		if want := map[bool]int{true: har.MaxEntries, false: 1}[why == har.EndEntries]; entries != want || got != why {
			t.Errorf("%s: %d entries, ended by %q", why, entries, got)
		}
	}
	c, in := f.begin(t, `{}`)
	close(f.stopping)
	if _, why := ended(t, in); why != har.EndStopping || c.Reason() != har.EndStopping {
		t.Errorf("ended by %q", why)
	}
}

// TestMistakes: out of range, unknown, and of no box.
func TestMistakes(t *testing.T) {
	t.Parallel()
	f := serve(t)
	for body, pointer := range map[string]string{
		`{"seconds":0}`: "/seconds", `{"seconds":3601}`: "/seconds", `{"body_bytes":-1}`: "/body_bytes", `{"body_bytes":1048577}`: "/body_bytes", `{"bodies":1}`: "/bodies",
	} {
		if got := f.Call(t, "POST", f.path, body); got.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(got.Text, pointer) {
			t.Errorf("%s: %s %s", body, got.Status, got.Text)
		}
	}
	if got := f.Call(t, "POST", "/v2/box/none/har", `{}`); got.StatusCode != http.StatusNotFound {
		t.Errorf("of no box: %s", got.Status)
	}
}
