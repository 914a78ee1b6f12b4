package dns

import (
	"errors"
	"strings"

	mdns "github.com/miekg/dns"

	"boxgate/dns/outbound"
	"boxgate/policy/name"
)

// headerSize is that of a message's header.
const headerSize = 12

// udpSize is what this server takes and sends over UDP.
const udpSize = outbound.UDPSize

// isMeta reports whether a type asks for something other than records of that type: transfers, ANY, and the rest of the
// range that RFC 6895, section 3.1 reserves.
func isMeta(t uint16) bool {
	return t == mdns.TypeNone || t == mdns.TypeOPT || t >= 128 && t <= 255
}

func isAddress(t uint16) bool { return t == mdns.TypeA || t == mdns.TypeAAAA }

// parseName makes a policy name of one in presentation format. A backslash escapes a byte that is not allowed in a host
// name.
func parseName(presentation string) (name.Name, error) {
	if strings.ContainsRune(presentation, '\\') {
		return name.Name{}, errors.New("not a host name")
	}
	return name.Parse(presentation)
}
