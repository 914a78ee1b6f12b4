package placeholder

import (
	"encoding/base64"
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

// FuzzSwapField: each token is replaced by its value, and the rest is unchanged. Inserted values are not searched again.
func FuzzSwapField(f *testing.F) {
	key := NewToken(name.NewSecret("key of a box"), "KEY")
	f.Add("Authorization", "Bearer ", "", "value")
	f.Add("Authorization", "Basic ", "=", "a:b")
	f.Add("X", "bxgph_", key[:20], key)
	f.Fuzz(func(t *testing.T, name, before, after, value string) {
		if s, _ := FindToken(before); s >= 0 {
			return
		}
		start, _ := FindToken(before + key + after)
		if start != len(before) { // the edges make another token
			return
		}
		if s, _ := FindToken(after); s >= 0 {
			return
		}
		swaps := []Swap{{Token: key, Value: value, Header: name}}
		if got := SwapField(name, before+key+after, swaps); got != before+value+after {
			t.Fatalf("%q: %q", name, got)
		}
		plain := before + key + after
		in := "Basic " + base64.StdEncoding.EncodeToString([]byte(plain))
		got := SwapField("authorization", in, swaps)
		if want := "Basic " + base64.StdEncoding.EncodeToString([]byte(before+value+after)); got != want {
			t.Fatalf("%q in %q: %q", key, plain, got)
		}
		var scan Scan
		if scan.field("Authorization", in, true); len(scan.Found) != 1 {
			t.Fatalf("%q: %v", plain, scan.Found)
		}
	})
}
