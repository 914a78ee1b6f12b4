package sshd

import (
	"strings"
	"testing"

	gossh "golang.org/x/crypto/ssh"
)

// FuzzRequests parses every payload that a client can send, and checks the bounds of what is accepted.
func FuzzRequests(f *testing.F) {
	text := func(values ...any) []byte {
		var out []byte
		for _, v := range values {
			switch v := v.(type) {
			case string:
				out = append(out, gossh.Marshal(struct{ Text string }{v})...)
			case int:
				out = append(out, gossh.Marshal(struct{ Number uint32 }{uint32(v)})...)
			}
		}
		return out
	}
	for _, seed := range [][]byte{
		nil, text("xterm-256color", 80, 24, 0, 0, "\x00"), text("x\x1b[2J", 1<<30, 0, 0, 0, ""), text(120, 40, 0, 0), text("LANG", "C.UTF-8"), text("LD_PRELOAD", "x"), text("A=B", ""),
		text("make test"), text(""), text("sftp"), text("TERM"), text("localhost", 8080, "127.0.0.1", 1), text("169.254.169.254", 80, "", 0), text("::1", 65536, "", 0), text("127.0.0.1", 0, "", 0),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		if term, size, ok := parseTerminal(payload); ok && (len(term) > maxTerm || strings.ContainsAny(term, "\x00\x1b \n;") || bad(size)) {
			t.Errorf("terminal %q, %v", term, size)
		}
		if size, ok := parseSize(payload); ok && bad(size) {
			t.Errorf("size %v", size)
		}
		if name, value, ok := parseVariable(payload); ok && (name == "" || len(name) > maxName || strings.ContainsAny(name, "=\x00") || strings.HasPrefix(name, "LD_") || strings.Contains(value, "\x00")) {
			t.Errorf("variable %q=%q", name, value)
		}
		if line, ok := parseText(payload, maxCommand); ok && (line == "" || len(line) > maxCommand || strings.Contains(line, "\x00")) {
			t.Errorf("command %q", line)
		}
		if host, port, ok := parseForward(payload); ok && (port == 0 || host != "localhost" && host != "127.0.0.1" && host != "::1") {
			t.Errorf("forward to %q port %d", host, port)
		}
	})
}

func bad(t Terminal) bool {
	return t.Rows == 0 || t.Cols == 0 || t.Rows > maxDimension || t.Cols > maxDimension
}

// TestPrintable: an error that quotes text of a box has no control characters at the client's terminal.
func TestPrintable(t *testing.T) {
	t.Parallel()
	if got := printable("cannot start \x1b]0;x\x07\u202e\u2028\xff"); got != "cannot start \uFFFD]0;x\uFFFD\uFFFD\uFFFD\uFFFD" {
		t.Errorf("%q", got)
	}
}
