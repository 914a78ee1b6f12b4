package websocket

import (
	"slices"
	"strconv"
	"strings"
)

// closeCases returns section 7.
func closeCases() []Case {
	bye := closing(string(closePayload(codeNormal, "")))
	return slices.Concat(
		numbered("7.1",
			echoed("a message, then close", events(gotText("Hello World!")), send(text("Hello World!"))),
			closesAfter("two close frames", send(bye, closing(""))),
			closesAfter("a ping behind the close frame", send(bye, ping(""))),
			closesAfter("a message behind the close frame", send(bye, text("Hello World!"))),
			closesAfter("a fragment, close, the last fragment", send(part("fragment1"), bye, last("fragment2"))),
			anyOutcome("256 KiB, a message, close and a ping at once", send(
				out{opcode: opText, payload: "BAsd7&jh23", times: 26215}, text("Hello World!"), bye, ping(""))),
		),
		numbered("7.3",
			closesWith("close without payload", "", codeNormal, codeNone),
			closesWith("close with one octet", "a", codeProtocol),
			closesWith("close with a code", string(closePayload(codeNormal, "")), codeNormal),
			closesWith("close with a code and a reason", string(closePayload(codeNormal, "Hello World!")), codeNormal),
			closesWith("close with the longest reason", string(closePayload(codeNormal, strings.Repeat("*", 123))), codeNormal),
			closesWith("close with a reason that is too long", string(closePayload(codeNormal, strings.Repeat("*", 124))), codeProtocol),
		),
		numbered("7.5", closesWith("close with a reason that is no UTF-8", string(closePayload(codeNormal, greek+"\xed\xa0\x80edited")), codeProtocol, codePayload)),
		numbered("7.7", withCodes("valid", 0, 1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)...),
		numbered("7.9", withCodes("invalid", codeProtocol, 0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999)...),
		numbered("7.13",
			anyOutcome("close with code 5000", send(closing("\x13\x88"))),
			anyOutcome("close with code 65535", send(closing("\xff\xff"))),
		),
	)
}

// closesAfter returns a case whose steps close the connection. No further frames may be received.
func closesAfter(title string, steps ...step) Case {
	return Case{Title: title, steps: steps, end: sent}
}

// anyOutcome returns a case without a specified outcome.
func anyOutcome(title string, steps ...step) Case {
	return Case{Title: title, steps: steps, end: sent, open: true}
}

// closesWith sends a close frame. The server must answer with one of the codes; to a bad frame it may answer without
// one.
func closesWith(title, payload string, codes ...int) Case {
	c := Case{Title: title, steps: []step{send(closing(payload))}, end: sent, codes: codes}
	if codes[0] != codeNormal {
		c.end = byPeer
	}
	return c
}

// withCodes sends a close frame with each code. answer is the expected code; 0 means the normal or the same code.
func withCodes(kind string, answer int, codes ...int) []Case {
	var cases []Case
	for _, code := range codes {
		want := []int{answer}
		if answer == 0 {
			want = []int{codeNormal, code}
		}
		payload := string([]byte{byte(code >> 8), byte(code)})
		cases = append(cases, closesWith("close with the "+kind+" code "+strconv.Itoa(code), payload, want...))
	}
	return cases
}
