package agents

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
)

// use is the use of models by a box in the API.
type use struct {
	Input  int     `json:"total_input_tokens"`
	Output int     `json:"total_output_tokens"`
	Cost   float64 `json:"total_token_cost_usd"`
	Usage  struct {
		Models struct {
			Requests int
			Assumed  int `json:"assumed_tokens"`
			Budgets  []struct {
				Used int `json:"used_tokens"`
			}
		}
	}
}

func (s studio) use(box string) (u use) {
	s.T.Helper()
	if err := s.Client.Get(s.T.Context(), api.BoxPath(box), &u); err != nil {
		s.T.Fatal(err)
	}
	return u
}

// reported returns what the server of models has reported to an agent: its answers, their tokens and their cost in dollars.
func (s studio) reported(a agent) (answers, input, output int, usd float64) {
	for _, r := range s.models.Requests() {
		if r.Status != 200 {
			continue
		}
		answers, input, output = answers+1, input+r.Usage.Input, output+r.Usage.Output
		usd += (float64(r.Usage.Input)*inputPrice.Float() + float64(r.Usage.Output)*outputPrice.Float()) / 1e6
		if a.host != "api.openai.com" { // others do not report tokens written to a cache
			usd += float64(r.Usage.Written) * inputPrice.Float() / 1e6
		}
	}
	return answers, input, output, usd
}

func alike(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// TestAgentsAreMetered: the requests of each agent are counted without any other setting than its key. Run, box and server agree on the
// tokens and the cost, and the rule refuses no request of the unmodified program.
func TestAgentsAreMetered(t *testing.T) {
	nightly.Only(t)
	s := newStudio(t)
	for _, a := range agents {
		t.Run(a.String(), func(t *testing.T) {
			s := studio{s.On(t), s.models}
			s.models.Forget()
			box := s.box(a, realKey)
			o := s.run(box, prompt, nil)
			answers, input, output, usd := s.reported(a)
			if answers < 2 || o.done.Input != input || o.done.OutputN != output || !alike(o.done.Cost, usd) {
				t.Errorf("%d answers of %d and %d tokens for %v usd, and the run has %+v", answers, input, output, usd, o)
			}
			u := s.use(box)
			if u.Input != input || u.Output != output || !alike(u.Cost, usd) || u.Usage.Models.Requests != answers || u.Usage.Models.Assumed != 0 {
				t.Errorf("%d answers of %d and %d tokens for %v usd, and the box has %+v", answers, input, output, usd, u)
			}
			for _, e := range s.Events(box) {
				if e.Stage == policy.StageHTTP && e.Verdict != policy.Allow {
					t.Errorf("refused: %s %s%s: %s", e.Method, e.Name, e.Path, e.Reason)
				}
			}
		})
	}
}

// TestAttackAgentInALoop: an agent whose model calls its tool for ever ends within the budget of its box, although opencode repeats
// refused requests for more than a minute.
func TestAttackAgentInALoop(t *testing.T) {
	nightly.Only(t)
	const budget, each = 400_000, 20_000
	s := newStudio(t)
	for _, a := range agents[:3] {
		t.Run(a.String(), func(t *testing.T) {
			s := studio{s.On(t), s.models}
			s.models.Forget()
			box := s.boxWith(a, realKey, map[string]any{"limits": map[string]any{"model": map[string]any{"tokens": budget, "per": "total"}}})
			o := s.run(box, fmt.Sprintf("model: spend %d\nmodel: loop true", each), map[string]any{"timeout": 300_000})
			answers, input, output, _ := s.reported(a)
			if o.done.Output != "" || !strings.Contains(o.problem, "budget") && !strings.Contains(o.problem, "Quota exceeded") {
				t.Errorf("after %v: %+v", o.took, o)
			}
			if u := s.use(box); answers < 4 || input+output > budget || len(u.Usage.Models.Budgets) != 1 || u.Usage.Models.Budgets[0].Used != input+output {
				t.Errorf("%d answers of %d tokens, and the box has %+v", answers, input+output, u)
			}
			s.Until("the program has ended", func() bool {
				_, code := s.Sh(box, "pgrep -x "+programs[a.name])
				return code == 1
			})
			refused := 0
			for _, e := range s.Events(box) {
				if e.Reason == name.ReasonModelBudget {
					refused++
				}
			}
			t.Logf("%d answers, %d refusals, %v: %s", answers, refused, o.took, o.problem)
			if refused == 0 || refused > 12 {
				t.Errorf("%d requests were refused by the budget", refused)
			}
		})
	}
}
