package placeholder

import (
	"encoding/base64"
	"testing"

	"boxgate/policy/name"
)

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
