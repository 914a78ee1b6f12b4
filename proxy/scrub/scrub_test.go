package scrub

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
)

const secret = `sk-live_9f/8+a=Z "q\e` + `%x&7`

// percentAll encodes every byte.
func percentAll(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, []string{"%%%02x", "%%%02X"}[i%2], s[i])
	}
	return b.String()
}

func unicodeAll(s string) string {
	var b strings.Builder
	for i, r := range s {
		fmt.Fprintf(&b, []string{`\u%04x`, `\u%04X`, `\x%02x`}[i%3], r)
	}
	return b.String()
}

func quoted(s string) string {
	b, _ := json.Marshal(s)
	return string(b[1 : len(b)-1])
}

// wrapped breaks a text into lines.
func wrapped(s string, n int, end string) string {
	var b strings.Builder
	for len(s) > n {
		b.WriteString(s[:n] + end)
		s = s[n:]
	}
	return b.String() + s
}

// forms are the encodings that a server may use for a text.
func forms(s string) map[string]string {
	b64 := base64.StdEncoding.EncodeToString
	return map[string]string{
		"raw": s, "query": url.QueryEscape(s), "path": url.PathEscape(s), "percent": percentAll(s), "percent twice": url.QueryEscape(url.QueryEscape(s)),
		"json": quoted(s), "json twice": quoted(quoted(s)), "slashes": strings.ReplaceAll(quoted(s), "/", `\/`), "unicode": unicodeAll(s), "html": html.EscapeString(s),
		"half": url.PathEscape(s[:5]) + percentAll(s[5:9]) + s[9:], "hex": hex.EncodeToString([]byte(s)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(s))),
		"base64 0": b64([]byte(s)), "base64 1": b64([]byte("?" + s + "?")), "base64 2": b64([]byte("??" + s + "??")), "base64 3": b64([]byte("user:" + s)),
		"base64 url": base64.RawURLEncoding.EncodeToString([]byte("\xff\xfe" + s)), "base64 in a query": url.QueryEscape(b64([]byte("a" + s))),
		"base64 in json": strings.ReplaceAll(b64([]byte("a\xff\xff"+s)), "/", `\/`), "base64 lines": wrapped(b64([]byte("aa"+s)), 8, "\r\n"),
		"base64 lines in json": wrapped(b64([]byte(s)), 7, `\n`),
	}
}

func TestFormsAreMasked(t *testing.T) {
	t.Parallel()
	set := New([]string{secret})
	for name, form := range forms(secret) {
		text := "{\"a\": \"" + form + "\", \"b\": 1}"
		got := set.MaskString(text)
		if len(got) != len(text) || !strings.HasPrefix(got, "{\"a\": \"") || !strings.HasSuffix(got, "\", \"b\": 1}") {
			t.Errorf("%s: %q became %q", name, text, got)
		}
		left := len(form) - strings.Count(got, "*")
		if around := map[bool]int{true: 8}[strings.HasPrefix(name, "base64")]; left > around {
			t.Errorf("%s: %q became %q", name, text, got)
		}
	}
}

// TestBothAlphabetsOfBase64: a secret with the two digits that differ between the alphabets of RFC 4648, inside it and at
// every alignment, is masked in both.
func TestBothAlphabetsOfBase64(t *testing.T) {
	t.Parallel()
	const secret = "sk-?>~?>~~?>~>?~?>>~??~~>>-end"
	set := New([]string{secret})
	for before := range 3 {
		text := []byte(strings.Repeat("a", before) + secret)
		for name, encoding := range map[string]*base64.Encoding{"standard": base64.StdEncoding, "URL": base64.URLEncoding, "raw URL": base64.RawURLEncoding} {
			form := encoding.EncodeToString(text)
			inner := form[8 : len(form)-8]
			if digits := map[bool]string{true: "+/", false: "-_"}[name == "standard"]; !strings.Contains(inner, digits[:1]) || !strings.Contains(inner, digits[1:]) {
				t.Fatalf("%s has not both of %s", form, digits)
			}
			if got := set.MaskString("x " + form + " y"); strings.Contains(got, inner[:8]) || strings.Count(got, "*") < len(form)-8 {
				t.Errorf("%s, after %d: %q became %q", name, before, form, got)
			}
		}
	}
}

// TestBase64Borders checks each bit: digits with bits of the secret are masked, all others stay.
func TestBase64Borders(t *testing.T) {
	t.Parallel()
	set := New([]string{secret})
	for before := range 7 {
		for after := range 7 {
			text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("a", before) + secret + strings.Repeat("z", after)))
			got := set.MaskString(text)
			for i := range text {
				first, last := i*6/8, (i*6+5)/8
				holds := text[i] != '=' && last >= before && first < before+len(secret)
				if (got[i] == '*') != holds || (!holds && got[i] != text[i]) {
					t.Fatalf("%d before, %d behind: digit %d of %s in %s", before, after, i, text, got)
				}
			}
		}
	}
}

func TestOtherTextStays(t *testing.T) {
	t.Parallel()
	set := New([]string{secret, "correct horse battery"})
	for _, text := range []string{
		"", "s", "sk-live_9f", secret[:len(secret)-1], "%73%6b-live", `\u0073\u006b\\\\\\\\\\\\\\\\\\\\n`, "&#115;&amp;&bogus;&", "correct+horse+batter",
		base64.StdEncoding.EncodeToString([]byte(secret[1:])), strings.Repeat("correct horse ", 20), strings.ToUpper(secret), "\xff\x00%%%%%+++&&&",
	} {
		if got := set.MaskString(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	if got := set.MaskString("x correct+horse%20battery."); got != "x "+strings.Repeat("*", 23)+"." {
		t.Error(got)
	}
}

func TestOverlappingSecretsAreMasked(t *testing.T) {
	t.Parallel()
	set := New([]string{"abcdefghij", "efghijklmn", "abcdefgh"})
	for text, want := range map[string]string{
		"-abcdefghijklmn-": "-**************-", "abcdefghi": "********i", "abcdefgabcdefgh": "abcdefg********", "efghijklmn": "**********",
	} {
		if got := set.MaskString(text); got != want {
			t.Errorf("%s became %s", text, got)
		}
		if got := parts(set, text, 1); got != want {
			t.Errorf("%s became %s byte by byte", text, got)
		}
	}
}

// parts passes text through a stream in pieces of n bytes.
func parts(set *Set, text string, n int) string {
	s := NewStream(set)
	var out []byte
	for len(text) > n {
		out = s.Append(out, []byte(text[:n]))
		text = text[n:]
	}
	return string(s.End(s.Append(out, []byte(text))))
}

func TestStreamHoldsBackOnlyABeginning(t *testing.T) {
	t.Parallel()
	s := NewStream(New([]string{"s3cret-token"}))
	for _, event := range []string{"data: one\n\n", "data: s\n\n", "data: {\"a\":\"\\u0073\"}\n\n", "data: czNjcmV0LXRv\n\n", ": s3cret-toke\r\n\r\n"} {
		if got := s.Append(nil, []byte(event)); string(got) != event {
			t.Errorf("%q was returned as %q", event, got)
		}
	}
	if got := s.Append(nil, []byte("data: s3cret-")); string(got) != "data: " || s.Held() != 7 {
		t.Errorf("%q, %d held", got, s.Held())
	}
	if got := s.End(nil); string(got) != "s3cret-" {
		t.Errorf("the end yields %q", got)
	}
	if got := s.End(s.Append(nil, []byte("token"))); string(got) != "token" {
		t.Errorf("another text continues the one that ended: %q", got)
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	basic := base64.StdEncoding.EncodeToString([]byte("user:correct-horse"))
	for value, want := range map[string][]string{
		"Bearer sk-0123456789": {"sk-0123456789"}, "sk-0123456789": {"sk-0123456789"}, "short": nil, "Bearer short": {"Bearer short"},
		"Basic " + basic: {"correct-horse", basic, "user:correct-horse"}, "no/scheme 0123456789": {"no/scheme 0123456789"},
		"session=0123456789; theme=dark": {"0123456789", "session=0123456789; theme=dark"}, `Token token="0123456789"`: {"0123456789", `token="0123456789"`},
		"Basic " + base64.StdEncoding.EncodeToString([]byte("sk_live_0123:")): {base64.StdEncoding.EncodeToString([]byte("sk_live_0123:")), "sk_live_0123", "sk_live_0123:"},
	} {
		got := Texts(value)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
	if New([]string{"short", ""}) != nil {
		t.Error("short secrets are searched for")
	}
	var none *Set
	if none.Mask([]byte("x")) || none.MaskString("x") != "x" || string(NewStream(nil).Append(nil, []byte("x"))) != "x" {
		t.Error("text is masked without secrets")
	}
}

// FuzzStream: a stream yields the same as a complete text, however it is split.
func FuzzStream(f *testing.F) {
	for name, form := range forms(secret) {
		f.Add([]byte("x"+form+"y"), uint64(len(name)))
	}
	f.Add([]byte(`\\\\\\\\\\\\\\\\\\\\\\\\abababababab`), uint64(1))
	set := New([]string{secret, `\\\\\\\\\\\\`, "abababababab", "abababababac", "%%%%%%%%25", "ÄÖÜ😀ab"})
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		whole := bytes.Clone(text)
		masked := set.Mask(whole)
		if len(whole) != len(text) || masked == bytes.Equal(whole, text) && !bytes.Contains(text, []byte("*")) {
			t.Fatalf("%q became %q", text, whole)
		}
		for i := range text {
			if whole[i] != text[i] && whole[i] != Mask {
				t.Fatalf("%q became %q", text, whole)
			}
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		s, out := NewStream(set), []byte(nil)
		for rest := text; len(rest) > 0; {
			n := min(len(rest), 1+rng.IntN(4)*rng.IntN(8))
			out = s.Append(out, rest[:n])
			rest = rest[n:]
		}
		if out = s.End(out); !bytes.Equal(out, whole) {
			t.Fatalf("%q in parts became %q, whole %q", text, out, whole)
		}
		if again := bytes.Clone(whole); set.Mask(again) {
			t.Fatalf("%q, masked already, has a secret left: %q", whole, again)
		}
	})
}

// FuzzSecret embeds a form of a random secret in a text: the form is masked completely, and the text around it stays.
func FuzzSecret(f *testing.F) {
	f.Add("correct horse", "before", "after", uint64(1))
	f.Add(`a"b\c/d%e+f&g`, "{", "}", uint64(2))
	f.Fuzz(func(t *testing.T, secret, before, after string, seed uint64) {
		if len(secret) < MinLength || len(secret) > 200 || strings.Trim(secret, secret[:1]) == "" {
			return
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		var form strings.Builder
		for i := range len(secret) {
			switch c := secret[i]; {
			case rng.IntN(3) == 0:
				fmt.Fprintf(&form, "%%%02x", c)
			case rng.IntN(3) == 0 && c < 0x80:
				fmt.Fprintf(&form, `\u%04X`, c)
			default:
				form.WriteByte(c)
			}
		}
		text := before + form.String() + after
		got := New([]string{secret}).MaskString(text)
		stars := strings.Repeat("*", form.Len())
		if len(got) != len(text) || got[len(before):len(before)+len(stars)] != stars {
			t.Fatalf("%q in %q became %q", secret, text, got)
		}
	})
}

// TestSupersede: a text in progress is searched for later secrets as well as for the first ones; a buffered tail stays
// buffered.
func TestSupersede(t *testing.T) {
	t.Parallel()
	first, second, third := New([]string{"first-secret"}), New([]string{"second-secret"}), New([]string{"second-secret", "third-secret"})
	empty := &Set{}
	for _, own := range []*Set{first, empty} {
		stream := NewStream(own)
		out := string(stream.Append(nil, []byte("a second-secret fir")))
		own.Supersede(second)
		out += string(stream.Append(nil, []byte("st-secret second-sec")))
		second.Supersede(third)
		out += string(stream.Append(nil, []byte("ret third-se")))
		out += string(stream.End(stream.Append(nil, []byte("cret"))))
		want := "a second-secret ************ ************* ************"
		if own == empty {
			want = "a second-secret first-secret ************* ************"
		}
		if out != want {
			t.Errorf("%q, want %q", out, want)
		}
	}
	if got := first.MaskString("first-secret second-secret third-secret"); got != "************ ************* ************" {
		t.Errorf("a text in one piece: %q", got)
	}
	var none *Set
	none.Supersede(first)
	if none.latest() != nil || NewStream(nil).Held() != 0 {
		t.Error("a nil set")
	}
}
