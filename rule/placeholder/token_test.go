package placeholder

import (
	"strings"
	"testing"

	"boxgate/policy/name"
)

// FuzzFindToken: a result has the form of a token, no token is missed, and both variants agree.
func FuzzFindToken(f *testing.F) {
	token := NewToken(name.NewSecret("key"), "KEY")
	for _, s := range []string{"", token, "bxgph_" + token, "Bearer " + token + token, token[:TokenLen-1], "bxgph_bxgph_", strings.ToUpper(token)} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		s := before + token + after
		start, end := FindToken(s)
		if start < 0 || start > len(before) || end-start != TokenLen || !strings.HasPrefix(s[start:], "bxgph_") {
			t.Fatalf("%q: %d to %d", s, start, end)
		}
		if from, to := FindTokenBytes([]byte(s)); from != start || to != end {
			t.Fatalf("%q: %d to %d as a string, %d to %d as bytes", s, start, end, from, to)
		}
		if start, _ := FindToken(before); start >= 0 && strings.Trim(before[start+6:start+TokenLen], "abcdefghijklmnopqrstuvwxyz234567") != "" {
			t.Fatalf("%q has no token", before)
		}
	})
}
