// Package handshake checks the opening handshake of WebSocket (RFC 6455, section 4) for proxies. After a 101 response
// the connection is a tunnel that is not inspected, so the response must be that of a WebSocket server to this very
// request.
package handshake

import (
	"crypto/sha1" //nolint:gosec // required by RFC 6455; not used for security
	"encoding/base64"
	"errors"
	"slices"
	"strings"
)

// Fields returns the values of a header field, one per field line.
type Fields func(name string) []string

// Errors of [Verify].
var (
	ErrKey       = errors.New("the request has no single Sec-WebSocket-Key")
	ErrAccept    = errors.New("Sec-WebSocket-Accept is not the answer to the key")
	ErrProtocol  = errors.New("the answer has a WebSocket subprotocol that was not offered")
	ErrExtension = errors.New("the answer has a WebSocket extension that was not offered")
)

// Verify returns nil if a 101 response that upgrades to websocket completes the handshake of the request, and otherwise
// one of the errors above. The caller must have checked the status, Upgrade and Connection.
func Verify(request, answer Fields) error {
	keys := request("Sec-WebSocket-Key")
	if len(keys) != 1 {
		return ErrKey
	}
	if accept := answer("Sec-WebSocket-Accept"); len(accept) != 1 || accept[0] != Accept(keys[0]) {
		return ErrAccept
	}
	chosen := answer("Sec-WebSocket-Protocol")
	if len(chosen) > 1 || len(chosen) == 1 && !slices.Contains(list(request("Sec-WebSocket-Protocol")), chosen[0]) {
		return ErrProtocol
	}
	offered := extensions(request)
	for _, name := range extensions(answer) {
		if !slices.Contains(offered, name) {
			return ErrExtension
		}
	}
	return nil
}

// Accept returns the value of Sec-WebSocket-Accept for a key (RFC 6455, 4.2.2).
func Accept(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // as above
	return base64.StdEncoding.EncodeToString(sum[:])
}

// extensions returns the names of the extensions in a message, without their parameters.
func extensions(f Fields) []string {
	names := list(f("Sec-WebSocket-Extensions"))
	for i, extension := range names {
		name, _, _ := strings.Cut(extension, ";")
		names[i] = strings.ToLower(strings.TrimSpace(name))
	}
	return names
}

// list splits the values of a list field. These fields have no quoted commas: parameters of extensions are tokens (RFC
// 6455, 9.1).
func list(lines []string) (elements []string) {
	for element := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		if element = strings.Trim(element, " \t"); element != "" {
			elements = append(elements, element)
		}
	}
	return elements
}
