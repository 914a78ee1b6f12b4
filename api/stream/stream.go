// Package stream contains the formats of streamed responses: NDJSON, server-sent events and the frames of a command's
// output. It is shared by the handlers and the client.
package stream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
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

// The media types of streams.
const (
	NDJSON      = "application/x-ndjson"
	EventStream = "text/event-stream"
)

// RunHeader is the response header with the ID of the gateway's run whose decisions are streamed.
const RunHeader = "Boxgate-Run"

// WholeHeader is the response header with the time since which the history is complete.
const WholeHeader = "Boxgate-Whole-Since"

// Accepts reports whether the Accept header lists a media type.
func Accepts(r *http.Request, media string) bool {
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		if m, params, err := mime.ParseMediaType(part); err == nil && m == media && params["q"] != "0" {
			return true
		}
	}
	return false
}
