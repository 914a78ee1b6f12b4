package selftest

import (
	"bytes"
	"fmt"

	"boxgate/selftest/probe"
)

// refusedAtOnce judges an attack that the kernel refuses, without a connection or an answer.
func refusedAtOnce(r probe.Answer) (string, bool) {
	switch r.Outcome {
	case probe.Refused:
		return "reset or prohibited", false
	case probe.Silent:
		return "no answer", false
	case probe.Closed, probe.Open:
		return "CONNECTED", true
	default:
		return fmt.Sprintf("ANSWERED with %d bytes", len(r.Data)), true
	}
}

// refusedByProxy judges an attack on the proxy, which accepts the connection to read the name and refuses within the
// protocol.
func (b *builder) refusedByProxy(r probe.Answer) (string, bool) {
	const alert, handshake = 21, 22 // record types (RFC 8446, 5.1)
	switch {
	case r.Outcome == probe.Closed:
		return "closed", false
	case r.Outcome == probe.Open: // the decision must still be logged, and no packet may have left
		return "no answer", false
	case r.Outcome != probe.Answered:
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

// ignoreAnswer judges an attack whose answer proves nothing. Only the packets seen on the wire count.
func ignoreAnswer(r probe.Answer) (string, bool) {
	if r.Outcome == probe.Answered {
		return "an answer, from the name's owner", false
	}
	return "no answer", false
}
