package fidelity

import (
	"strings"
	"testing"

	"boxgate/audit"
)

// looseAnswers are responses that curl accepts, with the fields that the box receives, or "" if the gateway refuses
// them.
var looseAnswers = map[string]struct{ head, body, strict string }{
	"chunk-padded":      {"Transfer-Encoding: chunked\r\n", "2   \r\nok\r\n0   \r\n\r\n", "transfer-encoding: chunked"},
	"chunk-padded-ext":  {"Transfer-Encoding: chunked\r\n", "2 ;a=b\r\nok\r\n0\t;c\r\n\r\n", "transfer-encoding: chunked"},
	"length-twice":      {"Content-Length: 2\r\nContent-Length: 2\r\n", "ok", "content-length: 2"},
	"length-list":       {"Content-Length: 2, 2\r\n", "ok", "content-length: 2"},
	"identity":          {"Transfer-Encoding: identity\r\nContent-Length: 2\r\n", "ok", "content-length: 2"},
	"identity-to-end":   {"Transfer-Encoding: identity\r\n", "ok", "transfer-encoding: chunked"},
	"comma":             {"Transfer-Encoding: chunked,\r\n", "2\r\nok\r\n0\r\n\r\n", "transfer-encoding: chunked"},
	"chunked-twice":     {"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n", ""},
	"length-and-chunks": {"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n", ""},
	"two-lengths":       {"Content-Length: 2\r\nContent-Length: 3\r\n", "ok", ""},
}

// TestFidelityLooseAnswers: responses with loose but unambiguous framing reach the box in strict form, with the same
// content as without the gateway. Ambiguous ones become a 502.
func TestFidelityLooseAnswers(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	answer := func(head string) string {
		_, path, _ := strings.Cut(head, " /")
		path, _, _ = strings.Cut(path, " ")
		a := looseAnswers[path]
		return "HTTP/1.1 200 OK\r\n" + a.head + "Connection: close\r\n\r\n" + a.body
	}
	for _, host := range []string{"raw1.example.com", "raw.example.org"} {
		f.raw(host, answer)
	}
	for name, a := range looseAnswers {
		if a.strict != "" {
			if out := f.run("curl -sk --max-time 60 https://raw.example.org/" + name); out != "ok" {
				t.Errorf("%s: curl reads %q without the gateway", name, out)
			}
		}
		for _, version := range []string{"--http1.1", "--http2"} {
			out, errs, code := f.runLine("curl -sS --max-time 60 -D - " + version + " https://raw1.example.com/" + name)
			head, body, _ := strings.Cut(out, "\r\n\r\n")
			switch lines := framing(head); {
			case a.strict == "":
				if status, _, _ := strings.Cut(head, "\r\n"); !strings.Contains(status, " 502") {
					t.Errorf("%s %s: %q", name, version, out)
				}
				f.Event(f.Box, func(e audit.Event) bool { return e.Path == "/"+name && e.Reason == "upstream_http" && e.Error != "" })
			case code != 0 || body != "ok":
				t.Errorf("%s %s: %q %s", name, version, out, errs)
			case version == "--http1.1" && lines != a.strict, version == "--http2" && strings.Contains(lines, "transfer-encoding"):
				t.Errorf("%s %s: framed by %q", name, version, lines)
			}
		}
	}
}

// framing returns the fields that frame a response, in lower case.
func framing(head string) string {
	var out []string
	for line := range strings.SplitSeq(strings.ToLower(head), "\r\n") {
		if strings.HasPrefix(line, "content-length:") || strings.HasPrefix(line, "transfer-encoding:") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}
