package selftest

import (
	"bytes"
	"fmt"
)

// refusedAtOnce: the kernel refuses, so there is no connection and no answer.
func refusedAtOnce(r answer) (string, bool) {
	switch r.Outcome {
	case outRefused:
		return "reset or prohibited", false
	case outSilent:
		return "no answer", false
	case outClosed, outOpen:
		return "CONNECTED", true
	default:
		return fmt.Sprintf("ANSWERED with %d bytes", len(r.Data)), true
	}
}

// refusedByProxy: the proxy takes the connection to read the name, and refuses in the words of the protocol.
func (b *builder) refusedByProxy(r answer) (string, bool) {
	const alert, handshake = 21, 22 // record types (RFC 8446, 5.1)
	switch {
	case r.Outcome == outClosed:
		return "closed", false
	case r.Outcome == outOpen: // the decision must still be logged, and nothing have left
		return "no answer", false
	case r.Outcome != outAnswer:
		return refusedAtOnce(r)
	case len(r.Data) > 0 && r.Data[0] == alert:
		return "TLS alert", false
	case len(r.Data) > 0 && r.Data[0] == handshake && b.cfg.DenyPage:
		return "TLS to the denial page", false
	case bytes.HasPrefix(r.Data, []byte("HTTP/1.1 4")):
		return "HTTP " + string(r.Data[9:12]), false
	default:
		return refusedAtOnce(r)
	}
}

// whatever came back proves nothing: the wire tells.
func whatever(r answer) (string, bool) {
	if r.Outcome == outAnswer {
		return "an answer, from the name's owner", false
	}
	return "no answer", false
}
