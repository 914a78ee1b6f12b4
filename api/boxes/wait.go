package boxes

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// defaultWait is how long a create waits for the box. Most boxes take some tenths of a second. For slower ones, for
	// example if an image is pulled, the response is a box in state creating, which clients poll.
	defaultWait = 10 * time.Second
	// maxWait is for clients that ask to wait, and for clients of ephemeral boxes, which do not poll.
	maxWait = 10 * time.Minute
)

// waitOf returns how long the client of a create waits, according to its Prefer header (RFC 7240).
func waitOf(r *http.Request, ephemeral bool) time.Duration {
	wait := defaultWait
	if ephemeral {
		wait = maxWait
	}
	for _, field := range r.Header.Values("Prefer") {
		for preference := range strings.SplitSeq(field, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(preference), "=")
			seconds, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 16)
			switch {
			case strings.EqualFold(name, "respond-async"):
				return 0
			case strings.EqualFold(name, "wait") && err == nil:
				wait = min(time.Duration(seconds)*time.Second, maxWait)
			}
		}
	}
	return wait
}
