package dns

import (
	"errors"
	"strings"

	mdns "github.com/miekg/dns"

	"boxgate/dns/outbound"
	"boxgate/policy/name"
)

// headerSize is the size of a message header in bytes.
const headerSize = 12

// udpSize is the maximum message size over UDP in bytes, both ways.
const udpSize = outbound.UDPSize

// isMeta reports whether a type does not ask for records of that type: transfers, ANY, and the rest of the range that
// RFC 6895, section 3.1 reserves.
func isMeta(t uint16) bool {
	return t == mdns.TypeNone || t == mdns.TypeOPT || t >= 128 && t <= 255
}

func isAddress(t uint16) bool { return t == mdns.TypeA || t == mdns.TypeAAAA }

// parseName converts a name in presentation format. A backslash escapes a byte that is not allowed in a host name, so
// such a name is an error.
func parseName(presentation string) (name.Name, error) {
	if strings.ContainsRune(presentation, '\\') {
		return name.Name{}, errors.New("not a host name")
	}
	return name.Parse(presentation)
}
