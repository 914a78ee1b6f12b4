package h2

import "golang.org/x/net/http2"

// PrioritySize is the length of a priority, in a PRIORITY frame or before a header block.
const PrioritySize = 5

const (
	errProtocol  = http2.ConnectionError(http2.ErrCodeProtocol)
	errFrameSize = http2.ConnectionError(http2.ErrCodeFrameSize)
)

// Unpadded returns the payload of a DATA or HEADERS frame without its padding (RFC 9113, 6.1 and 6.2), or an
// [http2.ConnectionError].
func Unpadded(h http2.FrameHeader, payload []byte) ([]byte, error) {
	if !h.Flags.Has(http2.FlagDataPadded) { // the same bit in HEADERS
		return payload, nil
	}
	if len(payload) == 0 {
		return nil, errFrameSize
	}
	content := len(payload) - 1 - int(payload[0])
	if content < 0 {
		return nil, errProtocol
	}
	return payload[1 : 1+content], nil
}

// HeadFragment returns the priority, if there is one, and the part of a header block that are in the payload of a HEADERS
// frame, or an [http2.ConnectionError].
func HeadFragment(h http2.FrameHeader, payload []byte) (priority, fragment []byte, err error) {
	payload, err = Unpadded(h, payload)
	if err != nil || !h.Flags.Has(http2.FlagHeadersPriority) {
		return nil, payload, err
	}
	if len(payload) < PrioritySize {
		return nil, nil, errFrameSize
	}
	return payload[:PrioritySize], payload[PrioritySize:], nil
}
