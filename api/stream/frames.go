package stream

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Frame is one line of an exec-stream in NDJSON. Data is base64 in JSON, because output is binary.
type Frame struct {
	Stream   string `json:"stream,omitempty"`
	Data     []byte `json:"data,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
	CPUNs    int64  `json:"cpu_ns,omitempty"`
	Error    string `json:"error,omitempty"`
}

// Event formats a server-sent event with JSON data (WHATWG HTML, section 9.2).
func Event(name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		text = []byte(`{"error":"internal error"}`)
	}
	return []byte("event: " + name + "\ndata: " + string(text) + "\n\n")
}

// EscapeControls escapes characters that JSON allows unescaped but that a terminal interprets: DEL, the C1 controls, line
// separators and bidirectional controls. In valid JSON they only occur inside strings, where \u is equivalent.
func EscapeControls(text []byte) []byte {
	obeyed := func(r rune) bool {
		return r >= 0x7f && r <= 0x9f || r >= 0x200e && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069
	}
	if !bytes.ContainsFunc(text, obeyed) {
		return text
	}
	var out bytes.Buffer
	for _, r := range string(text) {
		if obeyed(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	return out.Bytes()
}

// Quote formats text as a JSON string without characters that a terminal would interpret.
func Quote(text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil {
		return []byte(`""`)
	}
	return EscapeControls(quoted)
}
