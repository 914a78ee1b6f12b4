package exec

import (
	"boxgate/api"
	"bytes"
	"net/netip"
	"testing"
	"time"

	"boxgate/api/history"
	"boxgate/api/strict"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// FuzzExec checks that an accepted command has a program and an absolute directory.
func FuzzExec(f *testing.F) {
	for _, body := range []string{`{"command":["true"]}`, `{"command":["true"],"folder":"../x","timeout":1}`, `{"command":[""]}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var in execBody
		if strict.Unmarshal(body, &in) != nil {
			return
		}
		req, err := in.request(api.Box{})
		if err == nil && (len(req.Command) == 0 || req.Command[0] == "" || req.Dir[0] != '/') {
			t.Errorf("%q was accepted as %+v", body, req)
		}
	})
}

func TestLackWatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		chunks []string
		passed string
		lack   string
	}{
		{[]string{"mark: no node"}, "", "no node"},
		{[]string{"ma", "rk: ", "no ", "node"}, "", "no node"},
		{[]string{"ma"}, "ma", ""},
		{[]string{"ma", "ybe", " not"}, "maybe not", ""},
		{[]string{"x", "mark: no node"}, "xmark: no node", ""},
		{nil, "", ""},
	} {
		var passed bytes.Buffer
		l := &markWatch{mark: "mark: ", w: &passed}
		for _, c := range tt.chunks {
			if n, err := l.Write([]byte(c)); n != len(c) || err != nil {
				t.Errorf("%q: %d, %v", tt.chunks, n, err)
			}
		}
		if what, lacking := l.message(); what != tt.lack || lacking != (tt.lack != "") || passed.String() != tt.passed {
			t.Errorf("%q: %q, %v; %q was passed on", tt.chunks, what, lacking, passed.String())
		}
	}
	l := &markWatch{mark: "mark: ", w: nil}
	for range 100 {
		_, _ = l.Write(append([]byte("mark: "), make([]byte, 1000)...))
	}
	if len(l.prefix) > maxMessage {
		t.Errorf("%d bytes are kept", len(l.prefix))
	}
}

func TestRequestsAreInTheLogByTime(t *testing.T) {
	t.Parallel()
	at := func(s int64) time.Time { return time.Unix(s, 5) }
	logs := withRequests([]history.LogEntry{{Timestamp: 10, Message: "first"}, {Timestamp: 20, Message: "third"}}, []audit.Event{
		{Time: at(15), Stage: policy.StageURL, Verdict: policy.Allow, Peer: netip.MustParseAddr("192.0.2.1"), Method: "GET", Port: 8000, Path: "/x", Status: 200,
			BytesIn: 1, BytesOut: 2, Duration: 1234567, Credential: audit.CredentialBearer},
		{Time: at(16), Stage: policy.StageDNS, Verdict: policy.Allow},
		{Time: at(17), Stage: policy.StageURL, Verdict: policy.Allow, Phase: audit.PhaseOpen},
		{Time: at(30), Stage: policy.StageURL, Reason: name.ReasonURLAuth, Method: "POST", Port: 8000, Path: "/y", Status: 401, Count: 3},
		{Time: at(31), Stage: policy.StageURL, Reason: name.ReasonURLUnavailable, Method: "POST", Port: 8000, Path: "/y", Status: 502, Credential: audit.CredentialSession, Error: "why"},
	})
	want := []history.LogEntry{
		{Timestamp: 10, Message: "first"},
		{Timestamp: 15, Level: "info", Source: "system", Message: "192.0.2.1 GET port 8000 /x: 200, 1 bytes in, 2 out, 1.23ms, bearer"},
		{Timestamp: 20, Message: "third"},
		{Timestamp: 30, Level: "warn", Source: "system", Message: "- POST port 8000 /y: 401, 0 bytes in, 0 out, 0s, refused, url_auth, 3 times"},
		{Timestamp: 31, Level: "error", Source: "system", Message: "- POST port 8000 /y: 502, 0 bytes in, 0 out, 0s, session: why"},
	}
	if len(logs) != len(want) {
		t.Fatalf("%v", logs)
	}
	for i := range want {
		if logs[i] != want[i] {
			t.Errorf("%+v, want %+v", logs[i], want[i])
		}
	}
}
