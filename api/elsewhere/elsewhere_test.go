package elsewhere

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/problem"
)

// TestAnswersOfHosts: the refusal of a host reaches the client with its status; a host that does not answer, or not as expected, is unreachable.
func TestAnswersOfHosts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer   Answer
		status   int
		sentence string
	}{
		"a list":               {Answer{Status: 200, Body: []byte(`[1]`)}, 0, ""},
		"a refusal":            {Answer{Status: 403, Body: []byte(`{"error":"the role is read-only"}`)}, 403, "the role is read-only"},
		"a refusal in no form": {Answer{Status: 404, Body: []byte(`<html>`)}, 404, "Not Found"},
		"another form":         {Answer{Host: "bbbbbb", Status: 200, Body: []byte(`{"boxes":[]}`)}, 503, "host bbbbbb of the fleet does not answer as this version expects"},
		"cut short":            {Answer{Host: "bbbbbb", Status: 200, Body: []byte(`[1`)}, 503, problem.HostUnreachable},
		"no answer":            {Answer{Host: "bbbbbb", Err: errors.New("dial tcp 192.0.2.1:8700: refused")}, 503, "host bbbbbb of the fleet does not answer"},
		"no member":            {Answer{Host: "bbbbbb", Err: problem.Unreachable("bbbbbb", "is no member")}, 503, "is no member"},
	} {
		var list []int
		err := c.answer.Decode(&list)
		if err == nil {
			if c.status != 0 || len(list) != 1 {
				t.Errorf("%s: %v", name, list)
			}
			continue
		}
		if status, body := problem.StatusOf(err); status != c.status || !strings.Contains(body.Error, c.sentence) || strings.Contains(body.Error, "192.0.2.1") {
			t.Errorf("%s: %d %s", name, status, body.Error)
		}
	}
}

// TestCallsThatConcernAllHosts: a call that came from another host, or without a key of the fleet, concerns the objects of this host.
func TestCallsThatConcernAllHosts(t *testing.T) {
	t.Parallel()
	var fleet struct{ Hosts }
	for name, c := range map[string]struct {
		hosts   Hosts
		headers []string
		local   bool // the key is one of this host alone
		want    bool
	}{
		"a client":          {fleet, []string{api.KeyHeader, "key"}, false, true},
		"without a fleet":   {nil, []string{api.KeyHeader, "key"}, false, false},
		"without a key":     {fleet, nil, false, false},
		"a key of the host": {fleet, []string{api.KeyHeader, "key"}, true, false},
		"from another host": {fleet, []string{api.KeyHeader, "key", access.PeerHeader, "bbbbbb"}, false, false},
	} {
		r := httptest.NewRequestWithContext(api.WithCaller(t.Context(), api.Caller{Fleet: !c.local}), http.MethodGet, "/v2/box", http.NoBody)
		for i := 0; i+1 < len(c.headers); i += 2 {
			r.Header.Set(c.headers[i], c.headers[i+1])
		}
		if got := Whole(c.hosts, access.WithShownKey(r)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
