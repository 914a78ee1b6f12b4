package budget

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/llm"
)

func TestPricesOfPatterns(t *testing.T) {
	t.Parallel()
	var list []Price
	for i, pattern := range []string{"*", "claude-*", "claude-opus-*", "claude-opus-4-1", "*/gpt-*", "gpt-*-mini", "A*b*c"} {
		list = append(list, Price{Pattern: pattern, Input: llm.Money(i)})
	}
	prices, err := NewPrices(list)
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{
		"claude-3": "claude-*", "claude-opus-4": "claude-opus-*", "claude-opus-4-1": "claude-opus-4-1", "openai/gpt-5": "*/gpt-*", "gpt-5-mini": "gpt-*-mini",
		"gpt-mini": "*", "abc": "A*b*c", "axxbyyc": "A*b*c", "ab": "*", "acb": "*", "Claude-3": "claude-*", "CLAUDE-OPUS-4-1": "claude-opus-4-1", "": "*", "gpt--mini": "gpt-*-mini",
	} {
		if p, ok := prices.Of(model); !ok || p.Pattern != want {
			t.Errorf("%q costs as %q, want %q", model, p.Pattern, want)
		}
	}
	if _, ok := prices.Of(strings.Repeat("a", maxModel+1)); ok {
		t.Error("a name of 129 bytes has a price")
	}
	for _, bad := range []string{"", "a b", "a\n", "*****", strings.Repeat("a", 129), "ü"} {
		if _, err := NewPrices([]Price{{Pattern: bad}}); err == nil {
			t.Errorf("the pattern %q is taken", bad)
		}
	}
	if _, err := NewPrices(make([]Price, MaxPrices+1)); err == nil {
		t.Error("too many prices are taken")
	}
}

func TestCosts(t *testing.T) {
	t.Parallel()
	p := Price{Input: 3, Output: 15, CacheRead: 1, CacheWrite: 4}
	if got := p.cost(llm.Usage{Input: 1, Output: 10, CacheRead: 100, CacheWrite: 1000, Reasoning: 5}); got != 3+150+100+4000 {
		t.Errorf("cost %d", uint64(got))
	}
	if got := p.most(llm.Call{Input: 10, Max: 100}); got != (Amount{Tokens: 110, USD: 40 + 1500}) {
		t.Errorf("most %+v", got)
	}
}

// TestMetricsHaveBoundedLabels: the names of models in labels are the operator's.
func TestMetricsHaveBoundedLabels(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.all = tokens(1000, llm.PerTotal)
	r.restart()
	for _, model := range []string{"m-1", "m-2", "evil", "evil2"} {
		r.reserve("a", 8).Settle(llm.Usage{Output: 8, Requests: 1}, model, true)
	}
	r.refused("a", call(2000))
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(r.Book); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			series[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"boxgate_model_requests_total m-*": 4, "boxgate_model_requests_total other": 0, "boxgate_model_tokens_total output m-*": 32,
		"boxgate_model_refused_total all": 1, "boxgate_model_limit_used_ratio": 0.032,
	} {
		if got := series[name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for name := range series {
		if strings.Contains(name, "evil") {
			t.Errorf("a box chose the label of %s", name)
		}
	}
}

// FuzzModelName: the price of any name is found fast, and its label is safe.
func FuzzModelName(f *testing.F) {
	prices, err := NewPrices([]Price{{Pattern: "a*b*c*d*e"}, {Pattern: "*x*"}})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"", "abcde", "claude-opus-4-1", "\x1b[31m", strings.Repeat("ab", 100)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, model string) {
		if p, ok := prices.Of(model); ok && p.Pattern == "*x*" && !strings.ContainsAny(model, "xX") {
			t.Errorf("%q costs as %q", model, p.Pattern)
		}
		label := Label(model)
		if label == "" || len(label) > maxModel || Label(label) != label || strings.ContainsAny(label, "\x00\x1b\n \"<>&'\\{}") {
			t.Errorf("label %q of %q", label, model)
		}
	})
}
