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
