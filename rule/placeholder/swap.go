package placeholder

import (
	"encoding/base64"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h1"
)

// Swap is a token that was sent and the value that replaces it.
type Swap struct {
	Token, Value string
	Header       string // the header it was found in
}

// SwapField returns the value of a header with its tokens replaced.
func SwapField(name, value string, swaps []Swap) string {
	if start, _ := FindToken(value); start >= 0 {
		return swapText(value, swaps)
	}
	credentials, ok := basicOf(name, value)
	if !ok {
		return value
	}
	if start, _ := FindToken(credentials); start < 0 {
		return value // as encoded by the box
	}
	return value[:len("Basic ")] + base64.StdEncoding.EncodeToString([]byte(swapText(credentials, swaps)))
}

// swapText replaces in a single pass, so that values are never searched for tokens.
func swapText(s string, swaps []Swap) string {
	start, end := FindToken(s)
	if start < 0 {
		return s
	}
	var b strings.Builder
	for ; start >= 0; start, end = FindToken(s) {
		b.WriteString(s[:start])
		for i := range swaps {
			if swaps[i].Token == s[start:end] {
				b.WriteString(swaps[i].Value)
				break
			}
		}
		s = s[end:]
	}
	b.WriteString(s)
	return b.String()
}

// SwapTarget returns a request target with the tokens in its query replaced.
func SwapTarget(target string, swaps []Swap) string {
	if start, _ := FindToken(target); start < 0 || len(swaps) == 0 {
		return target
	}
	path, query, _ := strings.Cut(target, "?")
	escaped := slices.Clone(swaps)
	for i := range escaped {
		escaped[i].Value = Form.escape(escaped[i].Value)
	}
	return path + "?" + swapText(query, escaped)
}

// SwapFields replaces the tokens in the fields of a request that was judged.
func SwapFields(fields []h1.Field, swaps []Swap) {
	if len(swaps) == 0 {
		return
	}
	for i := range fields {
		if f := &fields[i]; f.Kind == h1.Other {
			f.Value = []byte(SwapField(string(f.Name), string(f.Value), swaps))
		}
	}
}

// SwapHTTP2 is [SwapFields] for HTTP/2.
func SwapHTTP2(fields []hpack.HeaderField, swaps []Swap) {
	if len(swaps) == 0 {
		return
	}
	for i := range fields {
		f := &fields[i]
		if v := SwapField(f.Name, f.Value, swaps); v != f.Value {
			f.Value, f.Sensitive = v, true
		}
	}
}

// basicOf decodes basic authentication credentials (RFC 7617) as leniently as any server might.
func basicOf(name, value string) (credentials string, ok bool) {
	const scheme = "basic"
	if len(value) < len(scheme)+2 || !strings.EqualFold(name, "Authorization") || !strings.EqualFold(value[:len(scheme)], scheme) {
		return "", false
	}
	text := value[len(scheme):]
	if text[0] != ' ' && text[0] != '\t' {
		return "", false
	}
	text = strings.TrimRight(strings.Trim(text, " \t"), "=")
	text = strings.NewReplacer("-", "+", "_", "/").Replace(text)
	plain, err := base64.RawStdEncoding.DecodeString(text)
	return string(plain), err == nil
}
