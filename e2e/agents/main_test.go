package agents

import (
	"bufio"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet/models"
	"boxgate/llm"
)

func TestMain(m *testing.M) { harness.Main(m) }

// realKey is the key of the server of models. It must never be in a box.
const realKey = "sk-real-key-of-the-models-8d41c7"

// Prices of all models, for a million tokens. Tokens that are written to a cache cost twice that of the input.
const (
	inputPrice  = 1 * llm.Dollar
	outputPrice = 10 * llm.Dollar
)

// agent is one of the coding agents, with a model of a vendor.
type agent struct {
	name, model, host string
}

// agents are the coding agents, each with the vendor's API that it prefers, and opencode with both.
var agents = []agent{
	{"claude-code", "anthropic/claude-sonnet-4-5", "api.anthropic.com"},
	{"codex", "openai/gpt-5.3-codex", "api.openai.com"},
	{"opencode", "anthropic/claude-sonnet-4-5", "api.anthropic.com"},
	{"opencode", "openai/gpt-5", "api.openai.com"},
	{"claude-code", "anthropic/eu.anthropic.claude-sonnet-4-5-v1:0", bedrock},
}

// bedrock is the host of Amazon Bedrock.
const bedrock = "bedrock-runtime.eu-west-1.amazonaws.com"

// String names the agent and its vendor.
func (a agent) String() string {
	vendor, _, _ := strings.Cut(a.model, "/")
	if a.host == bedrock {
		vendor += " at Bedrock"
	}
	return a.name + " with " + vendor
}

// studio is a world with a server of models under the vendors' names.
type studio struct {
	*harness.World
	models *models.Server
}

func newStudio(t *testing.T) studio {
	t.Helper()
	s := studio{harness.NewWorld(t, func(c *config.Config) {
		input, output := inputPrice, outputPrice
		c.Prices = config.Prices{"*": {Input: &input, Output: &output}}
	}), &models.Server{Key: realKey}}
	for host, addr := range map[string]string{"api.anthropic.com": "198.51.100.201", "api.openai.com": "198.51.100.202", bedrock: "198.51.100.203"} {
		if err := s.Net.AddHost(host, addr); err != nil {
			t.Fatal(err)
		}
		if err := s.Net.ServeHTTP(host, s.models); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// box creates a box with a built-in agent and the key of its model.
func (s studio) box(a agent, key string) string {
	s.T.Helper()
	return s.boxWith(a, key, map[string]any{})
}

// boxWith creates a box with further fields of the request.
func (s studio) boxWith(a agent, key string, fields map[string]any) string {
	s.T.Helper()
	fields["agent"], fields["model"], fields["agent_api_key"], fields["network_policy"] = a.name, a.model, key, harness.Custom(a.host)
	if a.host == bedrock {
		fields["agent_base_url"] = "https://" + bedrock
	}
	return s.Create(fields)
}

// outcome is a run with its events.
type outcome struct {
	text, thinking string
	tools, results []string // JSON
	notices        []string
	done           struct {
		Output    string  `json:"output"`
		Input     int     `json:"input_tokens"`
		Cached    int     `json:"cached_input_tokens"`
		OutputN   int     `json:"output_tokens"`
		Cost      float64 `json:"total_cost_usd"`
		SessionID string  `json:"session_id"`
	}
	problem string
	took    time.Duration
}

// run runs a prompt to its end. more has further fields of the request.
func (s studio) run(box, prompt string, more map[string]any) (o outcome) {
	s.T.Helper()
	began := time.Now()
	body := map[string]any{"prompt": prompt}
	for name, value := range more {
		body[name] = value
	}
	data, err := json.Marshal(body)
	if err != nil {
		s.T.Fatal(err)
	}
	resp, err := s.Client.Stream(s.T.Context(), "POST", api.BoxPath(box, "run/stream"), "application/json", strings.NewReader(string(data)))
	if err != nil {
		s.T.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 2<<20)
	name := ""
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "event":
			name = value
		case "data":
			o.take(s.T, name, value)
		}
	}
	o.took = time.Since(began)
	return o
}

// take adds an event.
func (o *outcome) take(t *testing.T, name, data string) {
	t.Helper()
	var d struct{ Text, Error string }
	if err := json.Unmarshal([]byte(data), &d); err != nil {
		t.Errorf("%s %s: %v", name, data, err)
	}
	switch name {
	case "text":
		o.text += d.Text
	case "thinking":
		o.thinking += d.Text
	case "notice":
		o.notices = append(o.notices, d.Text)
	case "tool":
		o.tools = append(o.tools, data)
	case "tool_result":
		o.results = append(o.results, data)
	case "error":
		o.problem = d.Error
	case "done":
		if err := json.Unmarshal([]byte(data), &o.done); err != nil {
			t.Error(err)
		}
	}
}
