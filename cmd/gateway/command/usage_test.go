package command

import (
	"encoding/json"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/llm"
)

func TestModelLimitsInArguments(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]llm.Limit{
		"5usd/day": {USD: 5 * llm.Dollar, Per: llm.PerDay}, "1000tokens/hour": {Tokens: 1000, Per: llm.PerHour}, "none": {Per: llm.PerTotal},
		"1000tokens,0.5usd/total": {Tokens: 1000, USD: llm.Dollar / 2, Per: llm.PerTotal},
	} {
		if got, err := parseModelLimit(text); err != nil || *got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if got, err := parseModelLimit("default"); got != nil || err != nil {
		t.Errorf("default: %v, %v", got, err)
	}
	for _, bad := range []string{"", "5", "5usd", "5usd/week", "usd/day", "-1usd/day", "5eur/day", "1.5tokens/day", "/day"} {
		if got, err := parseModelLimit(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

// TestExamplePrices: the example is a valid configuration.
func TestExamplePrices(t *testing.T) {
	t.Parallel()
	cfg, err := config.Parse("prices", []byte(examplePrices), nil)
	if err != nil {
		t.Fatal(err)
	}
	prices, err := cfg.Prices.Table()
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{"claude-sonnet-4-5-20250929": "claude-sonnet-4-*", "gpt-5.1": "gpt-5*", "gpt-5-mini": "gpt-5-mini*"} {
		if p, ok := prices.Of(model); !ok || p.Pattern != want || p.MaxOutput == 0 {
			t.Errorf("%s costs as %+v", model, p)
		}
	}
}

// TestUsageIsPrinted prints the use of a box by model, and its limits.
func TestUsageIsPrinted(t *testing.T) {
	t.Parallel()
	var b boxModels
	err := json.Unmarshal([]byte(`{"id":"b1","usage":{"models":{"requests":3,"input_tokens":10,"output_tokens":5,"cache_read_tokens":2,"cache_write_tokens":1,"cost_usd":1.5,
		"assumed_tokens":9,"assumed_cost_usd":0.25,"models":[{"model":"m-1","requests":3,"input_tokens":10,"output_tokens":5,"cache_read_tokens":2,"cache_write_tokens":1,"cost_usd":1.5}],
		"budgets":[{"of":"box","usd":3,"per":"day","used_ratio":0.5,"ends_at":1766880000},{"of":"key","tokens":100,"per":"total","used_ratio":0.18}]}}}`), &b)
	var out strings.Builder
	if err != nil || printModels(&out, b) != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"m-1    3         11     2       5       $1.50", "9 tokens ($0.2500) more", "Limit of box: 3 usd per day, 50 % used, until 2025-12-28T00:00:00Z.", "Limit of key: 100 tokens in total, 18 % used."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if got := b.Usage.Models.short(); got != "18 tokens, $1.50 (50 % of 3 usd per day)" {
		t.Errorf("in short: %s", got)
	}
	out.Reset()
	if printModels(&out, boxModels{}) != nil || !strings.Contains(out.String(), "no metered requests") {
		t.Errorf("a box without any: %s", out.String())
	}
}
