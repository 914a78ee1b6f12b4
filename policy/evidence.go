package policy

import (
	"net/netip"
	"slices"

	"boxgate/policy/name"
)

// Opening is what a client has said so far, as far as it matters to where its bytes may go. The zero value is the
// narrowest: no other is refused where it passes.
type Opening uint8

// The openings.
const (
	OpeningUnreadable Opening = iota // begins like TLS, but is no ClientHello that is understood here
	OpeningTLS                       // a ClientHello; the Request has its name, if it gives one
	OpeningLenient                   // neither TLS nor HTTP here, but a lenient server may read TLS, HTTP or a PROXY header in it
	OpeningPartial                   // the beginning of a request line, and then a pause
	OpeningOther                     // another protocol
	OpeningSilent                    // nothing yet
	OpeningEnded                     // nothing, and the client will send nothing more
	OpeningConnect                   // a CONNECT to the Request's name or address; nothing of what comes in its tunnel
	OpeningRequest                   // an HTTP request in the clear; the Request has its host, if that is a name
	OpeningSecure                    // an HTTP request inside TLS that was terminated for the Request's name
)

// unread reports whether nobody knows which host the bytes are for: they may be for any at the address they reach.
func (o Opening) unread(name name.Name) bool {
	return o != OpeningRequest && o != OpeningSecure && (o != OpeningTLS || name.IsZero())
}

// Answer is what is known of something that takes time to find out. The zero value is counted as the worse of the others.
type Answer uint8

// The answers.
const (
	Unknown Answer = iota
	No
	Yes
)

// AnswerOf returns Yes or No.
func AnswerOf(yes bool) Answer {
	if yes {
		return Yes
	}
	return No
}

// Evidence is what is known of a connection, or of a request in it, besides what its [Request] says. The zero value is
// the narrowest.
type Evidence struct {
	Opening Opening
	Bound   name.Name   // the name that a CONNECT gave: the tunnel leads there or nowhere
	Told    []name.Name // the names for which DNS told the box the address it asks for
	Proxied bool        // the request was made to a proxy: where it gives a name, an address may be looked up for it
	NoAddr  bool        // an address was looked for (NeedAddr) and there is none
	Greeted bool        // the server has spoken before the client, and does not speak HTTP/2

	Dialled netip.Addr // the address that is about to be dialled, or was; invalid until it is known
	Ruled   Answer     // whether Dialled, before it is known Request.Addr, is the address of a host with rules on the port
	Owned   Answer     // whether Dialled is an address of the name that the route goes by

	Settled bool   // the way is known, see [Route.Settle]:
	By      string // the key of the upstream proxy, "" for none
	From    Source // from where connections leave
}

// Need is a piece of evidence that takes time to gather.
type Need uint8

// The pieces.
const (
	NeedNothing Need = iota
	NeedAddr         // Request.Addr: one of the name's (Bound, else that of the Request) with which Decide allows [Route.Request]
	NeedRuled        // Evidence.Ruled
	NeedOwned        // Evidence.Owned
)

// ServerSpeaksFirst reports whether a port is that of a protocol in which the server greets: FTP, SSH, SMTP, POP3, NNTP,
// IMAP, submission, MySQL, VNC.
func ServerSpeaksFirst(port uint16) bool { return slices.Contains(serverFirst, port) }

var serverFirst = []uint16{21, 22, 25, 110, 119, 143, 587, 2525, 3306, 5900}

// isWeb reports whether a port is one of those of HTTP and HTTPS, where the client speaks first and names its host.
func isWeb(port uint16) bool { return port == name.HTTPPort || port == name.HTTPSPort }
