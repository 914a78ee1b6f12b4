package egress_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/policy"
)

// TestActivity: each key gets the activity of the boxes that it sees, without the boxes that have been deleted and traffic of no box.
func TestActivity(t *testing.T) {
	t.Parallel()
	f, own := serve(t)
	other := policy.BoxID(f.host.Add(t, api.CreateRequest{Name: "other", CreatedBy: "key_creator"}))
	f.host.AddDecision(apitest.Decision(own, 100, "first.example", policy.Deny))
	f.host.AddDecision(apitest.Decision(own, 200, "second.example", policy.Allow))
	f.host.AddDecision(apitest.Decision(other, 300, "third.example", policy.Deny))
	f.host.AddDecision(apitest.Decision("", 400, "fourth.example", policy.Deny))
	f.host.Mu.Lock()
	f.host.Keys = map[string]api.Key{
		"of-box":     {Caller: api.Caller{Key: "key_box", Role: api.RoleBox, Box: own}},
		"of-creator": {Caller: api.Caller{Key: "key_creator", Role: api.RoleCreator}},
		"of-auditor": {Caller: api.Caller{Key: "key_auditor", Role: api.RoleAuditor}},
	}
	f.host.Mu.Unlock()
	ownText, otherText := fmt.Sprintf("%s 1 second.example", own), fmt.Sprintf("%s 1 third.example", other)
	for key, want := range map[string]string{
		apitest.Key: ownText + "," + otherText, "of-auditor": ownText + "," + otherText, "of-box": ownText, "of-creator": otherText,
	} {
		got := f.Call(t, "GET", "/v2/egress/activity", "", apitest.With(key))
		var list []struct {
			Box    string
			Denied int `json:"denied_last_hour"`
			Latest struct{ Name string }
		}
		if err := json.Unmarshal([]byte(got.Text), &list); err != nil {
			t.Fatalf("%s: %s: %v", key, got.Text, err)
		}
		var texts []string
		for _, a := range list {
			texts = append(texts, fmt.Sprintf("%s %d %s", a.Box, a.Denied, a.Latest.Name))
		}
		if text := strings.Join(texts, ","); text != want {
			t.Errorf("%s: %s; want %s", key, text, want)
		}
	}
}
