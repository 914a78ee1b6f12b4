package exec

import (
	"net/netip"
	"testing"
	"time"

	"boxgate/api/history"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

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
