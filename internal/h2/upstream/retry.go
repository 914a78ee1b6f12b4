package upstream

import (
	"errors"

	"golang.org/x/net/http2"

	"boxgate/internal/h2"
)

// ResetCode returns the code with which the server has reset a stream, if that is why it failed and if it can be told to who
// asked: PROTOCOL_ERROR and FLOW_CONTROL_ERROR are about the connection to the server.
func ResetCode(err error) (code http2.ErrCode, ok bool) {
	var reset *h2.StreamError
	if !errors.As(err, &reset) || !reset.Peer || reset.Code == http2.ErrCodeProtocol || reset.Code == http2.ErrCodeFlowControl {
		return 0, false
	}
	return reset.Code, true
}

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
