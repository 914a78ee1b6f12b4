package upstream

import (
	"errors"

	"golang.org/x/net/http2"

	"boxgate/internal/h2"
)

// Unprocessed reports whether the server did not process the request that failed with err, so that sending it again is
// safe (RFC 9113, 8.7): the server said so, or was not sent it.
func Unprocessed(err error) bool {
	var reset *h2.StreamError
	var away *h2.GoAwayError
	switch {
	case errors.As(err, &reset):
		return reset.Peer && reset.Code == http2.ErrCodeRefusedStream
	case errors.As(err, &away):
		return away.Above
	}
	return errors.Is(err, errUnusable)
}
