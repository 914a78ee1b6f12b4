package ui

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// TestVisible: characters that a person cannot see, or that move others, are shown as escapes, and all others stay.
func TestVisible(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                "",
		"api.example.com/v1?a=b&c=<d>":    "api.example.com/v1?a=b&c=<d>",
		"bücher.example · 日本":             "bücher.example · 日本",
		"a\u202egpj.exe":                  `a\u{202e}gpj.exe`,
		"\u2066a\u2069\u200f":             `\u{2066}a\u{2069}\u{200f}`,
		"zero\u200bwidth\ufeff":           `zero\u{200b}width\u{feff}`,
		"line\nfeed\ttab\x00":             `line\u{a}feed\u{9}tab\u{0}`,
		"no\u00a0break\u3000\u2800":       `no\u{a0}break\u{3000}\u{2800}`,
		"\u3164\uffa0\u115f":              `\u{3164}\u{ffa0}\u{115f}`,
		"soft\u00adhyphen":                `soft\u{ad}hyphen`,
		"tag\U000e0041 \ufe0f":            `tag\u{e0041} \u{fe0f}`,
		"private\ue000":                   `private\u{e000}`,
		"bad\xff\xc0\xaf":                 `bad\xff\xc0\xaf`,
		"\ufffd":                          `\u{fffd}`,
		"e\u0301":                         "e\u0301",
		"e" + strings.Repeat("\u0301", 6): "e" + strings.Repeat("\u0301", 4) + `\u{301}\u{301}`,
	} {
		if got := Visible(in); got != want {
			t.Errorf("%q: %q; want %q", in, got, want)
		}
	}
}

// FuzzVisible: the result is valid, has no character that a person cannot see, and is shown the same if it is escaped again.
func FuzzVisible(f *testing.F) {
	for _, s := range []string{"plain", "a\u202eb", "\xff", "\u200d\u0301\u0301\u0301\u0301\u0301", "\U000e0001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Visible(s)
		if !utf8.ValidString(got) || Visible(got) != got {
			t.Fatalf("%q: %q", s, got)
		}
		for _, r := range got {
			if !unicode.IsGraphic(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zs, r) && r != ' ' {
				t.Fatalf("%q: %q has %q", s, got, r)
			}
		}
	})
}
