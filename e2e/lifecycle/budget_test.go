package lifecycle

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/llm"
	"boxgate/policy/name"
)

// modelHost is a server of models in the test internet.
const modelHost = "models.example.com"

// modelUse is the use of models by a box in the API.
type modelUse struct {
	Input  int64   `json:"total_input_tokens"`
	Output int64   `json:"total_output_tokens"`
	Cost   float64 `json:"total_token_cost_usd"`
	Usage  struct {
		Models struct {
			Requests int64
			Assumed  int64 `json:"assumed_tokens"`
			Budgets  []struct {
				Of   string
				Used int64 `json:"used_tokens"`
				Held int64 `json:"reserved_tokens"`
			}
		}
	}
}

// models is a world with a server that reports 10 tokens of input and 200 of output for each request. Requests to /held/v1/messages wait for
// their client to leave.
type models struct {
	*harness.World
	box     string
	reached atomic.Int32
}

// pricedModels is the configuration of a world of models.
func pricedModels(c *config.Config) {
	price, output := llm.Dollar, 10*llm.Dollar
	c.Prices = config.Prices{"claude-*": {Input: &price, Output: &output}}
	c.Limits.ModelTotal = config.ModelLimit{USD: 1000 * llm.Dollar, Per: "month"}
}

func newModels(t *testing.T, w *harness.World) *models {
	t.Helper()
	m := &models{World: w}
	if err := m.Net.AddHost(modelHost, "198.51.100.79", "2001:db8:1::79"); err != nil {
		t.Fatal(err)
	}
	if err := m.Net.ServeHTTP(modelHost, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		m.reached.Add(1)
		if strings.HasPrefix(r.URL.Path, "/held") {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"model":"claude-x-1","usage":{"input_tokens":10,"output_tokens":200}}`)
	})); err != nil {
		t.Fatal(err)
	}
	m.box = m.Create(map[string]any{
		"network_policy": harness.Custom(modelHost),
		"attach_headers": map[string]any{modelHost: map[string]any{"headers": map[string]any{"X-Api-Key": map[string]string{"value": harness.TestSecret}}, "meter": "anthropic"}},
		"limits":         map[string]any{"model": map[string]any{"tokens": 10_000, "per": "total"}},
	})
	return m
}

// used returns the use of models by the box.
func (m *models) used() (u modelUse) {
	m.T.Helper()
	if err := m.Client.Get(m.T.Context(), api.BoxPath(m.box), &u); err != nil {
		m.T.Fatal(err)
	}
	return u
}

// charged returns the tokens charged to the box.
func (m *models) charged() int64 {
	m.T.Helper()
	if b := m.used().Usage.Models.Budgets; len(b) == 1 {
		return b[0].Used
	}
	return 0
}

// ask is a request of a box that may cost some 580 tokens, and costs 210.
const ask = `curl -k -sS -w '%{http_code}\n' -H 'Content-Type: application/json' --data '{"model":"claude-x","max_tokens":500,"messages":[{"role":"user","content":"hello"}]}' `

// TestAttackBudgetOfModels: a loop of requests, 20 at a time, ends within the budget; a kill of the gateway in the middle of a request charges what
// that had reserved, once.
func TestAttackBudgetOfModels(t *testing.T) {
	t.Parallel()
	m := newModels(t, harness.NewWorld(t, pricedModels))
	harness.Contains(t, m.MustSh(m.box, ask+"https://"+modelHost+"/v1/messages"), "claude-x-1", "200")
	u := m.used()
	if u.Input != 10 || u.Output != 200 || u.Cost != 0.00201 || u.Usage.Models.Requests != 1 || m.charged() != 210 {
		t.Errorf("after one request: %+v", u)
	}
	if out, status := m.GatewayCommand("usage", m.box); status != 0 || !strings.Contains(out, "claude-x-1") || !strings.Contains(out, "10000 tokens in total") {
		t.Errorf("gateway usage: exit %d\n%s", status, out)
	}

	reached := m.reached.Load()
	m.MustSh(m.box, "("+ask+"--max-time 60 https://"+modelHost+"/held/v1/messages >/dev/null 2>&1 &)")
	m.Until("the request reaches the server", func() bool { return m.reached.Load() > reached })
	m.Kill()
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := m.charged()
	if after < 210+500 || after > 210+700+10_000/32+1 {
		t.Errorf("%d tokens are charged after the kill, want 210, a reservation and a headroom", after)
	}
	m.Kill()
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := m.charged(); again != after {
		t.Errorf("%d tokens are charged after another kill, want %d", again, after)
	}

	out := m.MustSh(m.box, `for i in $(seq 5); do for n in $(seq 20); do `+ask+"https://"+modelHost+`/v1/messages & done; wait; done`)
	let, refused := strings.Count(out, "200\n"), strings.Count(out, "429\n")
	if let == 0 || refused == 0 || let+refused != 100 || !strings.Contains(out, `"type":"rate_limit_error"`) {
		t.Errorf("%d requests passed and %d were refused:\n%s", let, refused, out[max(0, len(out)-2000):])
	}
	if end := m.charged(); end > 10_000 || end != after+int64(210*let) {
		t.Errorf("%d tokens are charged in the end, want %d and at most 10000", end, after+int64(210*let))
	}
	refusal := m.Event(m.box, func(e audit.Event) bool { return e.Reason == name.ReasonModelBudget })
	if refusal.Status != http.StatusTooManyRequests {
		t.Errorf("decision %+v", refusal)
	}
}

// TestBudgetDuringAnUpgrade replaces the gateway while a request runs: its reservation is charged by the new process.
func TestBudgetDuringAnUpgrade(t *testing.T) {
	t.Parallel()
	up := newUpgrading(t, pricedModels)
	if err := up.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := newModels(t, up.World)
	m.MustSh(m.box, ask+"https://"+modelHost+"/v1/messages")
	m.MustSh(m.box, "("+ask+"--max-time 60 https://"+modelHost+"/held/v1/messages >/dev/null 2>&1 &)")
	m.Until("the request reaches the server", func() bool { return m.reached.Load() == 2 })
	up.mustReplace("upgrade")
	if got := m.charged(); got < 210+500 || got > 210+700+10_000/32+1 {
		t.Errorf("%d tokens are charged after the upgrade", got)
	}
	out := m.MustSh(m.box, fmt.Sprintf(`for n in $(seq 60); do %s https://%s/v1/messages; done`, ask, modelHost))
	if let := strings.Count(out, "200\n"); let < 40 || m.charged() > 10_000 {
		t.Errorf("%d requests passed, and %d tokens are charged", let, m.charged())
	}
}
