package sshd

import (
	"math"
	"strings"

	gossh "golang.org/x/crypto/ssh"
)

// The bounds of what one session requests.
const (
	maxCommand     = 64 << 10 // bytes of a command
	maxVariables   = 128
	maxEnvironment = 64 << 10 // bytes of all variables, with their names
	maxName        = 256      // bytes of a variable's name
	maxTerm        = 64       // bytes of TERM
	// maxDimension bounds the size of a terminal, because programs allocate memory in proportion to it.
	maxDimension = 4096
)

// terminalOf clips the size of a terminal. Without one (0), it is 80 characters wide and 24 high.
func terminalOf(columns, rows uint32) Terminal {
	clip := func(n uint32, absent uint16) uint16 {
		if n == 0 {
			return absent
		}
		return uint16(min(n, maxDimension))
	}
	return Terminal{Rows: clip(rows, 24), Cols: clip(columns, 80)}
}

// parseTerminal parses a pty-req (RFC 4254, section 6.2). Its modes and its size in pixels are not used.
func parseTerminal(payload []byte) (term string, size Terminal, ok bool) {
	var r struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	if gossh.Unmarshal(payload, &r) != nil || len(r.Term) > maxTerm || strings.ContainsFunc(r.Term, isNoTerm) {
		return "", Terminal{}, false
	}
	return r.Term, terminalOf(r.Columns, r.Rows), true
}

// isNoTerm reports whether a character cannot be part of the name of a terminal.
func isNoTerm(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._+-", r))
}

// parseSize parses a window-change (RFC 4254, section 6.7).
func parseSize(payload []byte) (Terminal, bool) {
	var r struct{ Columns, Rows, Width, Height uint32 }
	if gossh.Unmarshal(payload, &r) != nil {
		return Terminal{}, false
	}
	return terminalOf(r.Columns, r.Rows), true
}

// parseVariable parses an env request (RFC 4254, section 6.4). It refuses variables of the dynamic linker.
func parseVariable(payload []byte) (name, value string, ok bool) {
	var r struct{ Name, Value string }
	if gossh.Unmarshal(payload, &r) != nil || r.Name == "" || len(r.Name) > maxName || strings.ContainsAny(r.Name, "=\x00") || strings.HasPrefix(r.Name, "LD_") || strings.ContainsRune(r.Value, 0) {
		return "", "", false
	}
	return r.Name, r.Value, true
}

// parseText parses the one text of an exec, subsystem or signal request (RFC 4254, sections 6.5 and 6.9).
func parseText(payload []byte, most int) (string, bool) {
	var r struct{ Text string }
	if gossh.Unmarshal(payload, &r) != nil || r.Text == "" || len(r.Text) > most || strings.ContainsRune(r.Text, 0) {
		return "", false
	}
	return r.Text, true
}

// parseForward parses the data of a direct-tcpip channel (RFC 4254, section 7.2). It accepts the addresses of the box's own loopback
// interface only, in the form that [Port.Dial] takes.
func parseForward(data []byte) (host string, port uint16, ok bool) {
	var r struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	if gossh.Unmarshal(data, &r) != nil || r.Port == 0 || r.Port > math.MaxUint16 {
		return "", 0, false
	}
	switch r.Host {
	case "localhost", "127.0.0.1", "::1":
		return r.Host, uint16(r.Port), true
	}
	return "", 0, false
}
