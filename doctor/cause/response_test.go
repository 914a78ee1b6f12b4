package cause

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestParse: the causes in a response, its content and framing.
func TestParse(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("X-Many: a\r\n", 129)
	for _, tt := range []struct {
		raw     string
		ended   bool
		want    string // causes
		content string
		framing string
	}{
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false, "[]", "ok", "length"},
		{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false, "[]", "ok", "length"},
		{"HTTP/1.1 204 No Content\r\n\r\n", false, "[]", "", "none"},
		{"HTTP/1.1 200 OK\r\n\r\nok", true, "[]", "ok", "close"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\n\r\n", false, "[]", "ok", "chunked"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2  \r\nok\r\n0\r\nX-End: yes\r\n\r\n", false, "[chunk-padding trailers]", "ok", "chunked"},
		{"HTTP/1.1 200 OK\nX-Row: a\nContent-Length: 2\n\nok", false, "[bare-newlines]", "ok", "length"},
		{"HTTP/1.1 200 OK\r\nX-Row: a\r\n b\r\nContent-Length: 2\r\n\r\nok", false, "[folded-field]", "ok", "length"},
		{"HTTP/1.1 200 OK\r\nX(Row): a\r\nContent-Length : 2\r\n\r\nok", false, "[field-name]", "ok", "length"},
		{"HTTP/1.1 200 OK\r\nno field\r\nContent-Length: 2\r\n\r\nok", false, "[field-name]", "ok", "length"},
		{"HTTP/1.1 200 OK\r\nX-Row: a\x01b\r\nContent-Length: 2\r\n\r\nok", false, "[control-byte]", "ok", "length"},
		{"HTTP/1.1 200 OK\r\n" + many + "Content-Length: 2\r\n\r\nok", false, "[fields-many]", "ok", "length"},
		{"HTTP/1.1 200 OK\r\nX-Big: " + strings.Repeat("b", 64<<10) + "\r\nContent-Length: 2\r\n\r\nok", false, "[fields-large]", "ok", "length"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", false, "[length-conflict]", "ok", "length"},
		{"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", true, "[length-invalid]", "ok", "close"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", false, "[length-repeated]", "ok", "length"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", false, "[length-and-chunked]", "ok", "chunked"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", false, "[chunked-twice]", "ok", "chunked"},
		{"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", false, "[http10-chunked]", "ok", "chunked"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nok", true, "[coding-unusual]", "ok", "close"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok", true, "[coding-unknown]", "ok", "close"},
		{"HTTP/1.1 101 Switching Protocols\r\n\r\n", false, "[upgrade-unasked]", "", "none"},
		{"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n", false, "[connection-login]", "", "length"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", true, "[body-cut]", "ok", "length"},
		{"HTTP/1.1 200 OK\r\nContent-Le", true, "[head-cut]", "", ""},
		{"SSH-2.0-OpenSSH_9.2\r\n", false, "[not-http]", "", ""},
		{"", true, "[no-response]", "", ""},
	} {
		r := Parse([]byte(tt.raw), tt.ended)
		if got := fmt.Sprint(r.Causes); got != tt.want || string(r.Content) != tt.content || r.Framing() != tt.framing {
			t.Errorf("%.80q: %s %q %s, want %s %q %s", tt.raw, got, r.Content, r.Framing(), tt.want, tt.content, tt.framing)
		}
		for n := range len(tt.raw) { // whatever has arrived, more data can only complete it
			Parse([]byte(tt.raw[:n]), false)
		}
	}
}

// FuzzParse: no response makes the parser panic, and the content is a part of the data.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nA: b\r\n\r\n", "HTTP/1.0 100 \n\nHTTP/1.1 200\nContent-Length: 1\n\nab", "HTTP/1.1 200 OK\r\n :\r\n\r\n", "\n", "HTTP/\n\n"} {
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, ended bool) {
		r := Parse(bytes.Clone(raw), ended)
		if len(r.Content) > len(raw) || r.Reusable && !r.Complete {
			t.Errorf("%d bytes of content in %d, %+v", len(r.Content), len(raw), r)
		}
		for _, id := range r.Causes {
			if Of(id).What == "" {
				t.Errorf("%s is not described", id)
			}
		}
	})
}

// TestParameters: what the gateway supports by default, with an option, or not at all.
func TestParameters(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		version, suite uint16
		group          tls.CurveID
		want           ID
	}{
		{0, 0, 0, ""},
		{tls.VersionTLS11, tls.TLS_RSA_WITH_AES_128_CBC_SHA, 0, OldTLS},
		{tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.X25519, ""},
		{tls.VersionTLS12, tls.TLS_RSA_WITH_AES_128_GCM_SHA256, 0, LegacySuite},
		{tls.VersionTLS12, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256, 0, LegacySuite},
		{tls.VersionTLS12, 0xc028, 0, UnsupportedSuite}, // CBC with SHA-384
		{tls.VersionTLS12, 0x009e, 0, UnsupportedSuite}, // DHE
		{tls.VersionTLS12, tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA, 0, UnsupportedSuite},
		{tls.VersionTLS13, tls.TLS_AES_128_GCM_SHA256, 30, UnsupportedGroup}, // X448
	} {
		if got := OfParameters(tt.version, tt.suite, tt.group); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

// TestEveryCauseIsDescribed: each has one description, with a remedy or an effect on clients unless it is fatal everywhere.
func TestEveryCauseIsDescribed(t *testing.T) {
	t.Parallel()
	var seen []ID
	for _, c := range All {
		if c.ID == "" || c.What == "" || slices.Contains(seen, c.ID) {
			t.Errorf("%+v", c)
		}
		if c.Option != "" && !strings.Contains(c.Remedy, string(c.Option)) {
			t.Errorf("%s: the remedy does not name %s", c.ID, c.Option)
		}
		seen = append(seen, c.ID)
	}
}

// TestPageListsEveryCause: docs/doctor.md has a row for each cause, with the texts of the reports.
func TestPageListsEveryCause(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range All {
		if row := fmt.Sprintf("| `%s` | %s | %s |\n", c.ID, c.What, cmp.Or(c.Remedy, c.Aside)); !strings.Contains(string(page), row) {
			t.Errorf("docs/doctor.md lacks\n%s", row)
		}
	}
}
