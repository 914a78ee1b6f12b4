package upstream

import (
	"errors"

	"golang.org/x/net/http2"

	"boxgate/relay/h2"
)

// ResetCode returns the code of the server's reset if that is why the stream failed. It returns false for PROTOCOL_ERROR
// and FLOW_CONTROL_ERROR, which concern the connection to the server and must not be forwarded.
func ResetCode(err error) (code http2.ErrCode, ok bool) {
	var reset *h2.StreamError
	if !errors.As(err, &reset) || !reset.Peer || reset.Code == http2.ErrCodeProtocol || reset.Code == http2.ErrCodeFlowControl {
		return 0, false
	}
	return reset.Code, true
}

// Unprocessed reports whether the server did not process the request that failed with err, so that it can be repeated
// safely (RFC 9113, 8.7): the server reported so, or never received it.
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
