package server

import (
	"encoding/json"
	"net/http"
	"testing"

	"boxgate/api"
)

// A self-test is tight only if at least one probe was run, none that could have found a hole was left out, and no hole
// was found.
func TestSelfTestVerdict(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		verdicts []api.SelfTestVerdict
		tight    bool
	}{
		"nothing tested":  {nil, false},
		"nothing applied": {[]api.SelfTestVerdict{api.ProbeSkipped}, false},
		"all tight":       {[]api.SelfTestVerdict{api.ProbeTight, api.ProbeSkipped, api.ProbeTight}, true},
		"a hole":          {[]api.SelfTestVerdict{api.ProbeTight, api.ProbeHole}, false},
		"one not run":     {[]api.SelfTestVerdict{api.ProbeTight, api.ProbeNotRun}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := serve(t)
			f.create(t, `{"name":"tested"}`)
			for _, v := range tt.verdicts {
				f.host.Probes = append(f.host.Probes, api.SelfTestProbe{Group: "names", Attack: "a", Family: "ipv4", Verdict: v, Why: "w"})
			}
			got := f.Call(t, "POST", "/v2/box/tested/selftest", "")
			var card struct {
				Box     string
				Tight   bool
				Summary struct{ Tight, Holes, Skipped int }
				Probes  []struct{ Group, Family, Verdict, Why string }
			}
			if err := json.Unmarshal([]byte(got.Text), &card); err != nil || got.StatusCode != http.StatusOK {
				t.Fatal(err, got.StatusCode, got.Text)
			}
			if card.Tight != tt.tight || card.Box != "box1" || len(card.Probes) != len(tt.verdicts) {
				t.Errorf("card %+v", card)
			}
			for i, p := range card.Probes {
				if p.Verdict != string(tt.verdicts[i]) || p.Group != "names" || p.Family != "ipv4" || p.Why != "w" {
					t.Errorf("probe %+v", p)
				}
			}
		})
	}
}

// A self-test of an unknown box is a 404.
func TestSelfTestOfNoBox(t *testing.T) {
	t.Parallel()
	if got := serve(t).Call(t, "POST", "/v2/box/none/selftest", ""); got.StatusCode != http.StatusNotFound {
		t.Errorf("%d %s", got.StatusCode, got.Text)
	}
}
