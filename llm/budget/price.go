package budget

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"boxgate/llm"
)

// Price has the prices of one token of each kind.
type Price struct {
	// Pattern is the entry of the configuration.
	Pattern                              string
	Input, Output, CacheRead, CacheWrite llm.Money
	// MaxOutput is the most tokens of one response; 0: [DefaultMaxOutput].
	MaxOutput uint64
}

// DefaultMaxOutput is the most output tokens of a request that states no maximum, to a model without one in the configuration. No vendor
// lets a model answer with more.
const DefaultMaxOutput = 131072

// Prices is a table of prices, the most specific pattern first. The zero value knows no price. It does not change.
type Prices struct{ list []Price }

// MaxPrices is the most entries of a table of prices.
const MaxPrices = 1000

// NewPrices returns a table. A pattern is the name of a model, in which * stands for any text; the one with the most other characters wins.
func NewPrices(list []Price) (Prices, error) {
	if len(list) > MaxPrices {
		return Prices{}, fmt.Errorf("there are more than %d prices", MaxPrices)
	}
	list = slices.Clone(list)
	for _, p := range list {
		if err := CheckPattern(p.Pattern); err != nil {
			return Prices{}, fmt.Errorf("%q %w", p.Pattern, err)
		}
	}
	slices.SortFunc(list, func(a, b Price) int {
		return cmp.Or(cmp.Compare(weight(b.Pattern), weight(a.Pattern)), cmp.Compare(strings.Count(a.Pattern, "*"), strings.Count(b.Pattern, "*")), cmp.Compare(a.Pattern, b.Pattern))
	})
	return Prices{list}, nil
}

// weight is the number of characters of a pattern that are not wildcards.
func weight(pattern string) int { return len(pattern) - strings.Count(pattern, "*") }

// maxPattern is the longest pattern.
const maxPattern = 128

// CheckPattern returns the mistake in a pattern of the table of prices.
func CheckPattern(pattern string) error {
	switch {
	case pattern == "" || len(pattern) > maxPattern:
		return fmt.Errorf("must have 1 to %d characters", maxPattern)
	case strings.Count(pattern, "*") > 4:
		return errors.New("has more than four *")
	case Label(strings.ReplaceAll(pattern, "*", "x")) != strings.ReplaceAll(pattern, "*", "x"):
		return errors.New("must have letters, digits, * and . _ - : / @ + only")
	}
	return nil
}

// Of returns the price of a model, and whether the table has one. Case does not matter: some servers ignore it in requests.
func (p Prices) Of(model string) (Price, bool) {
	if len(model) > maxModel {
		return Price{}, false
	}
	model = strings.ToLower(model)
	for _, price := range p.list {
		if matches(strings.ToLower(price.Pattern), model) {
			return price, true
		}
	}
	return Price{}, false
}

// dearest returns the price of the model for which a call may cost most, the most tokens and dollars of the call, and the label of a model
// that has no price, or "".
func (p Prices) dearest(c llm.Call) (price Price, most Amount, unpriced string) {
	for i, model := range append([]string{c.Model}, strings.Fields(c.Others)...) {
		this, priced := p.Of(model)
		if !priced && unpriced == "" {
			unpriced = Label(model)
		}
		n := this.most(c)
		if i == 0 || n.USD > most.USD {
			price = this
		}
		most = Amount{Tokens: max(most.Tokens, n.Tokens), USD: max(most.USD, n.USD)}
	}
	return price, most, unpriced
}

// matches reports whether a model matches a pattern. Each * costs one search at most, so that a name cannot make it slow.
func matches(pattern, model string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == model
	}
	model, found := strings.CutPrefix(model, first)
	if !found {
		return false
	}
	parts := strings.Split(rest, "*")
	last := parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] {
		at := strings.Index(model, part)
		if at < 0 {
			return false
		}
		model = model[at+len(part):]
	}
	return len(model) >= len(last) && strings.HasSuffix(model, last)
}

// cost returns the price of a usage.
func (p Price) cost(u llm.Usage) llm.Money {
	return p.Input.Times(u.Input).Plus(p.Output.Times(u.Output)).Plus(p.CacheRead.Times(u.CacheRead)).Plus(p.CacheWrite.Times(u.CacheWrite))
}

// most returns the most that a call may cost. It cannot know which of its input a cache will have.
func (p Price) most(c llm.Call) Amount {
	output := p.maxOutput(c)
	return Amount{
		Tokens: llm.Add(c.Input, output),
		USD:    max(p.Input, p.CacheRead, p.CacheWrite).Times(c.Input).Plus(p.Output.Times(output)),
	}
}

// maxOutput returns the most output tokens of a call.
func (p Price) maxOutput(c llm.Call) uint64 { return cmp.Or(c.Max, p.MaxOutput, DefaultMaxOutput) }

// maxModel is the longest name of a model that is looked up and shown.
const maxModel = 128

// Label returns the name of a model in a form that is safe in labels, tables and pages: at most 128 letters, digits and . _ - : / @ +,
// with _ for every other byte. Boxes choose these names.
func Label(model string) string {
	if model == "" {
		return "unknown"
	}
	out := []byte(model[:min(len(model), maxModel)])
	for i, c := range out {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._-:/@+", c) >= 0 {
			continue
		}
		out[i] = '_'
	}
	return string(out)
}
