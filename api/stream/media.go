package stream

import (
	"mime"
	"net/http"
	"strings"
)

// The media types of streams.
const (
	NDJSON      = "application/x-ndjson"
	EventStream = "text/event-stream"
)

// RunHeader names the run of the gateway whose decisions a stream has.
const RunHeader = "Boxgate-Run"

// WholeHeader has the time from which on no decision is missing in an answer from the history.
const WholeHeader = "Boxgate-Whole-Since"

// Accepts reports whether a media type is named in Accept.
func Accepts(r *http.Request, media string) bool {
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		if m, params, err := mime.ParseMediaType(part); err == nil && m == media && params["q"] != "0" {
			return true
		}
	}
	return false
}
