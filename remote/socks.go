package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// The values of RFC 1928 and RFC 1929 that are used here.
const (
	socksVersion    = 5
	passwordVersion = 1 // of the subnegotiation

	methodPassword = 0x02
	methodRefused  = 0xff // no method of the client is acceptable

	commandConnect = 1

	addrIPv4   = 1
	addrDomain = 3
	addrIPv6   = 4

	replyOK          = 0
	replyFailure     = 1
	replyNotAllowed  = 2
	replyUnreachable = 4
	replyCommand     = 7
	replyAddress     = 8
)

var (
	errNotSOCKS = errors.New("malformed SOCKS5")
	errMethod   = errors.New("the SOCKS5 client offers no user name and password")
	errCommand  = errors.New("a SOCKS5 command other than CONNECT")
	errAddress  = errors.New("an unknown type of address in SOCKS5")
)

// readMethods reads the methods that a client offers, and returns [errMethod] unless they contain user name and password.
func readMethods(r io.Reader) error {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	if head[0] != socksVersion || head[1] == 0 {
		return errNotSOCKS
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(r, methods); err != nil {
		return err
	}
	if !bytes.Contains(methods, []byte{methodPassword}) {
		return errMethod
	}
	return nil
}

// readPassword reads the user name and the password (RFC 1929).
func readPassword(r io.Reader) (user, password string, err error) {
	var version [1]byte
	if _, err := io.ReadFull(r, version[:]); err != nil {
		return "", "", err
	}
	if version[0] != passwordVersion {
		return "", "", errNotSOCKS
	}
	if user, err = readText(r); err == nil {
		password, err = readText(r)
	}
	return user, password, err
}

// readText reads up to 255 bytes with their length before them.
func readText(r io.Reader) (string, error) {
	var n [1]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return "", err
	}
	text := make([]byte, n[0])
	_, err := io.ReadFull(r, text)
	return string(text), err
}

// readTarget reads a request, and returns its destination as the authority of a CONNECT. A name is escaped where it contains
// bytes that no authority has; such a CONNECT is refused like any other malformed one. With [errCommand] the request was read
// completely, and with [errAddress] only its type of address is known.
func readTarget(r io.Reader) (authority string, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	if head[0] != socksVersion {
		return "", errNotSOCKS
	}
	host, err := readHost(r, head[3])
	if err != nil {
		return "", err
	}
	var port [2]byte
	if _, err := io.ReadFull(r, port[:]); err != nil {
		return "", err
	}
	if head[1] != commandConnect {
		return "", errCommand
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port[0])<<8|int(port[1]))), nil
}

// readHost reads an address of a type. A literal address as a name counts as the address.
func readHost(r io.Reader, kind byte) (string, error) {
	switch kind {
	case addrIPv4, addrIPv6:
		raw := make([]byte, map[byte]int{addrIPv4: net.IPv4len, addrIPv6: net.IPv6len}[kind])
		if _, err := io.ReadFull(r, raw); err != nil {
			return "", err
		}
		addr, _ := netip.AddrFromSlice(raw) // of either length
		return addr.String(), nil
	case addrDomain:
		text, err := readText(r)
		if err != nil {
			return "", err
		}
		if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
			return addr.String(), nil
		}
		return escaped(text), nil
	}
	return "", errAddress
}

// escaped returns a name with all bytes escaped that host names do not have.
func escaped(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// socksReply returns the answer to a request. The address in it is of no use to clients of CONNECT.
func socksReply(code byte) []byte {
	return []byte{socksVersion, code, 0, addrIPv4, 0, 0, 0, 0, 0, 0}
}

// replyTo returns the reply that corresponds to the status with which the explicit proxy answered a CONNECT.
func replyTo(status int) byte {
	switch {
	case status == 200:
		return replyOK
	case status == 403:
		return replyNotAllowed
	case status >= 500:
		return replyUnreachable
	}
	return replyFailure
}
