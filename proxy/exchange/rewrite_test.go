package exchange

import (
	"errors"
	"strings"
	"testing"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/scrub"
	"boxgate/proxy/usage"
	"boxgate/rule"
	"boxgate/rule/placeholder"
)

// TestEncodersAreCharged: what compresses a changed body is charged to the box like what has decompressed it.
func TestEncodersAreCharged(t *testing.T) {
	t.Parallel()
	rules, err := policy.ParseHeaderRules([]byte(`{"a.test": {"placeholders": {"KEY": "value"}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	rules = policy.WithTokens(rules, name.NewSecret("key of the box"))
	token := rules[0].Placeholders()[0].Token
	plain := []byte(`["` + strings.Repeat("x", 300<<10) + token + `"]`)
	for _, coding := range []string{"gzip", "br", "zstd"} {
		codings := []string{coding}
		body, err := scrub.Encoded(codings, plain)
		if err != nil {
			t.Fatal(err)
		}
		decoding := scrub.Memory(codings) + 2*MaxBody
		for _, try := range []struct {
			room int
			want error
		}{{decoding + 3*len(plain), nil}, {decoding + len(plain), memory.ErrFull}} {
			most := int64(try.room)*8/7 + 8 // of which an eighth is for others
			account := memory.New(100*most, most).Account("box")
			r := &Decision{header: rules[0]}
			w := &Rewriting{s: &Session{Box: &policy.Box{}, Usage: &usage.Box{}}, r: r, Body: body, Whole: true, codings: codings, syntax: placeholder.JSON}
			w.claim.Open(account, memory.Buffers)
			if err := w.replacePlaceholders(t.Context()); !errors.Is(err, try.want) || w.Changed != (err == nil) {
				t.Errorf("%s with room for %d: %v", coding, try.room, err)
			}
			if w.Close(); account.InUse() != 0 {
				t.Errorf("%s: %d are held", coding, account.InUse())
			}
		}
	}
}

// TestLiteralsDoNotAllocate: requests share the header fields of a rule without sources.
func TestLiteralsDoNotAllocate(t *testing.T) {
	rules, err := policy.ParseHeaders(map[string]map[string]string{"a.test": {"A": "1", "B": "2"}})
	if err != nil {
		t.Fatal(err)
	}
	does := rule.Requests(rules[0].Effects)
	r := Decision{header: policy.HeaderRule{Request: &does}}
	if n := testing.AllocsPerRun(100, func() { _ = r.setHeaders(t.Context()) }); n != 0 || len(r.Set) != 2 {
		t.Errorf("%v allocations, %d fields", n, len(r.Set))
	}
}
