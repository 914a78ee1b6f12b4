package audit

import (
	"testing"

	"boxgate/policy"
)

// Requests to public URLs are counted once each, at their end, whatever the texts of their events.
func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	l := New(Options{})
	request := func(status int, by Credential, phase Phase) {
		l.Record(Event{Stage: policy.StageURL, Verdict: policy.Allow, Status: status, Credential: by, Phase: phase, Conn: string(phase)})
	}
	request(200, CredentialBearer, "")
	request(0, CredentialBearer, PhaseOpen)
	request(206, CredentialBearer, PhaseEnd)
	request(401, "", "")
	request(0, "", "")
	request(999, "", "")
	request(200, "of a box", "")
	l.Record(Event{Stage: policy.StageHTTP, Status: 200, Credential: CredentialBearer})
	for labels, want := range map[string]float64{
		"credential=bearer,status=2xx": 2, "credential=refused,status=4xx": 1, "credential=refused,status=none": 2, "credential=refused,status=2xx": -1,
		"credential=bearer,status=none": -1, // no such series
	} {
		if got := metric(t, l, "boxgate_url_requests_total", labels); got != want {
			t.Errorf("%s: %v, want %v", labels, got, want)
		}
	}
}
