package policy

import (
	"net/netip"
	"strconv"
	"strings"
)

// isNumber reports whether a resolver may take a last label for a number, and so the whole name for an IPv4 address:
// decimal and octal digits, or hexadecimal ones after 0x (WHATWG URL, "ends in a number").
func isNumber(label string) bool {
	if label == "" {
		return false
	}
	digits, hex := strings.CutPrefix(label, "0x")
	for i := range len(digits) {
		c := digits[i]
		if '0' <= c && c <= '9' || hex && 'a' <= c && c <= 'f' {
			continue
		}
		return false
	}
	return true
}

// meansAddress reports whether s is an IP address in any spelling.
func meansAddress(s string) bool {
	if isAddress(s) {
		return true
	}
	_, ok := legacyIPv4(strings.Split(strings.ToLower(strings.TrimSuffix(s, ".")), "."))
	return ok
}

// legacyIPv4 reads the forms that inet_aton accepts in addition to four decimal numbers: one to four parts, each
// decimal, octal or hexadecimal, the last one filling the remaining bytes. It is only used to name the address in the
// message.
func legacyIPv4(labels []string) (netip.Addr, bool) {
	if len(labels) > 4 {
		return netip.Addr{}, false
	}
	var sum uint64
	for i, label := range labels {
		v, ok := legacyNumber(label)
		last := i == len(labels)-1
		if !ok || !last && v > 255 {
			return netip.Addr{}, false
		}
		if !last {
			sum |= v << (8 * (3 - i))
			continue
		}
		if v >= 1<<(8*(4-i)) {
			return netip.Addr{}, false
		}
		sum |= v
	}
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}), true
}

func legacyNumber(s string) (uint64, bool) {
	base := 10
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		if hex == "" {
			return 0, true
		}
		s, base = hex, 16
	} else if len(s) > 1 && s[0] == '0' {
		base = 8
	}
	v, err := strconv.ParseUint(s, base, 32)
	return v, err == nil
}
