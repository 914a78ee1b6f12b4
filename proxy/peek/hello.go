package peek

import "slices"

// This file parses common ClientHellos without building a TLS connection. crypto/tls has the last word: readHello accepts
// only hellos that crypto/tls accepts with the same name, and leaves all others to it.

// TLS extensions in ClientHellos of today (RFC 8446, 4.2; the IANA registry).
const (
	extServerName          = 0
	extStatusRequest       = 5
	extSupportedGroups     = 10
	extPointFormats        = 11
	extSignatureAlgorithms = 13
	extALPN                = 16
	extSCT                 = 18
	extPadding             = 21
	extEncryptThenMAC      = 22
	extMasterSecret        = 23
	extCompressCertificate = 27
	extRecordSizeLimit     = 28
	extDelegated           = 34
	extSessionTicket       = 35
	extPreSharedKey        = 41
	extEarlyData           = 42
	extSupportedVersions   = 43
	extPSKModes            = 45
	extPostHandshakeAuth   = 49
	extSignaturesCert      = 50
	extKeyShare            = 51
	extRenegotiationInfo   = 0xff01
	extECH                 = 0xfe0d
)

const (
	helloRandom   = 32
	maxPlaintext  = 1 << 14 // of a record, to crypto/tls
	maxExtensions = 48      // more are left to crypto/tls
)

// readHello returns the server name in data, which begins with a ClientHello, which may be empty. It returns
// false for every hello that it does not understand completely: more than one record, unknown extensions, names with
// characters that do not occur in host names, TLS 1.1 or older, and everything malformed.
func readHello(data []byte) (name []byte, ok bool) {
	r := wire(data)
	var record, hello, skipped wire
	if len(data) < recordHeader || data[0] != recordHandshake || data[1] != legacyMajor ||
		!r.skip(recordHeader-2) || !r.vector(2, &record) || len(record) == 0 || len(record) > maxPlaintext ||
		record[0] != clientHello || !record.skip(1) || !record.vector(3, &hello) || len(record) > 0 {
		return nil, false
	}
	var suites, extensions wire
	if !hello.skip(2+helloRandom) || !hello.vector(1, &skipped) || !hello.vector(2, &suites) || len(suites)%2 > 0 ||
		!hello.vector(1, &skipped) || !hello.vector(2, &extensions) || len(hello) > 0 {
		return nil, false
	}
	return readExtensions(extensions)
}

// readExtensions reads the extensions of a ClientHello.
func readExtensions(extensions wire) (name []byte, ok bool) {
	var seen [maxExtensions]uint16
	modern := false
	for n := 0; len(extensions) > 0; n++ {
		var kind uint16
		var body wire
		if n == maxExtensions || !extensions.uint16(&kind) || !extensions.vector(2, &body) || slices.Contains(seen[:n], kind) {
			return nil, false
		}
		seen[n] = kind
		switch kind {
		case extServerName:
			name, ok = body.serverName()
		case extSupportedVersions:
			modern, ok = body.versions()
		case extPreSharedKey: // must be the last
			ok = len(extensions) == 0 && body.preSharedKey()
		default:
			ok = body.validExtension(kind)
		}
		if !ok {
			return nil, false
		}
	}
	return name, modern
}

// withoutRoot returns a whole ClientHello without the dot at the end of its first server name, or false if there is no such
// dot. It does not check the hello further.
func withoutRoot(data []byte) (rootless []byte, ok bool) {
	hello := joinRecords(data)
	rest := wire(hello)
	var skipped, extensions wire
	if !rest.skip(handshakeHeader+2+helloRandom) || !rest.vector(1, &skipped) || !rest.vector(2, &skipped) || !rest.vector(1, &skipped) {
		return nil, false
	}
	all := len(hello) - len(rest)
	if !rest.vector(2, &extensions) || len(rest) > 0 {
		return nil, false
	}
	for len(extensions) > 0 {
		var kind uint16
		var body, list, host wire
		at := len(hello) - len(extensions)
		if !extensions.uint16(&kind) || !extensions.vector(2, &body) {
			return nil, false
		}
		if kind != extServerName {
			continue
		}
		if !body.vector(2, &list) || len(body) > 0 || !list.skip(1) || !list.vector(2, &host) || len(list) > 0 || len(host) < 2 || host[len(host)-1] != '.' {
			return nil, false
		}
		for _, length := range []int{2, all, at + 2, at + 4, at + 7} { // of the message, the extensions, this one, its list, the name
			decrement(hello[length:])
		}
		dot := len(hello) - len(extensions) - 1
		return splitRecords(append(hello[:dot], hello[dot+1:]...)), true
	}
	return nil, false
}

// joinRecords returns a copy of the handshake message at the beginning of data, joined from its records, or nil if a record is
// incomplete.
func joinRecords(data []byte) (message []byte) {
	for r := wire(data); ; {
		if len(message) >= handshakeHeader {
			if n := handshakeHeader + (int(message[1])<<16 | int(message[2])<<8 | int(message[3])); len(message) >= n {
				return message[:n]
			}
		}
		var payload wire
		if !r.skip(recordHeader-2) || !r.vector(2, &payload) {
			return nil
		}
		message = append(message, payload...)
	}
}

// decrement decrements a two-byte length, which is not zero.
func decrement(length []byte) {
	if length[1]--; length[1] == 0xff {
		length[0]--
	}
}

// splitRecords splits a handshake message into records.
func splitRecords(message []byte) (records []byte) {
	for len(message) > 0 {
		n := min(len(message), maxPlaintext)
		records = append(append(records, recordHandshake, legacyMajor, 1, byte(n>>8), byte(n)), message[:n]...)
		message = message[n:]
	}
	return records
}

// validExtension reports whether crypto/tls accepts the content of an extension that does not affect the destination.
func (w wire) validExtension(kind uint16) bool {
	switch kind {
	case extStatusRequest:
		var skipped wire
		return w.skip(1) && w.vector(2, &skipped) && w.vector(2, &skipped) && len(w) == 0
	case extSupportedGroups, extSignatureAlgorithms, extSignaturesCert:
		var list wire
		return w.vector(2, &list) && len(w) == 0 && len(list) > 0 && len(list)%2 == 0
	case extPointFormats:
		var list wire
		return w.vector(1, &list) && len(w) == 0 && len(list) > 0
	case extPSKModes, extRenegotiationInfo:
		var list wire
		return w.vector(1, &list) && len(w) == 0
	case extALPN:
		var list wire
		return w.vector(2, &list) && len(w) == 0 && len(list) > 0 && list.items(0, 1, 0)
	case extKeyShare:
		var list wire
		return w.vector(2, &list) && len(w) == 0 && list.items(2, 2, 0)
	case extSCT, extMasterSecret, extEarlyData:
		return len(w) == 0
	case extSessionTicket:
		return true
	case extECH:
		return w.outerECH()
	case extPadding, extEncryptThenMAC, extCompressCertificate, extRecordSizeLimit, extDelegated, extPostHandshakeAuth:
		return true // crypto/tls ignores these
	default:
		return isGrease(kind)
	}
}

// isGrease reports whether an extension is reserved for being ignored (RFC 8701).
func isGrease(kind uint16) bool { return kind&0x0f0f == 0x0a0a && kind>>8 == kind&0xff }

// serverName returns the one host name of a server_name extension (RFC 6066, 3).
func (w wire) serverName() (name []byte, ok bool) {
	var list, host wire
	if !w.vector(2, &list) || len(w) > 0 || len(list) == 0 || list[0] != 0 || !list.skip(1) || !list.vector(2, &host) || len(list) > 0 {
		return nil, false
	}
	for _, b := range host {
		if !inHostName(b) {
			return nil, false
		}
	}
	return host, len(host) > 0 && host[len(host)-1] != '.'
}

// versions reports whether a supported_versions extension offers TLS 1.2 or 1.3.
func (w wire) versions() (modern, ok bool) {
	var list wire
	if !w.vector(1, &list) || len(w) > 0 || len(list) == 0 {
		return false, false
	}
	var version uint16
	for len(list) > 0 {
		if !list.uint16(&version) {
			return false, false
		}
		modern = modern || isOffer(version)
	}
	return modern, true
}

// preSharedKey reports whether a pre_shared_key extension is well-formed (RFC 8446, 4.2.11).
func (w wire) preSharedKey() bool {
	var identities, binders wire
	return w.vector(2, &identities) && w.vector(2, &binders) && len(w) == 0 && len(identities) > 0 && len(binders) > 0 &&
		identities.items(0, 2, 4) && binders.items(0, 1, 0)
}

// outerECH reports whether an encrypted_client_hello extension is of the outer kind, as clients send it to every server
// (RFC 9849, 5).
func (w wire) outerECH() bool {
	var skipped wire
	return len(w) > 0 && w[0] == 0 && w.skip(1+2+2+1) && w.vector(2, &skipped) && w.vector(2, &skipped) && len(w) == 0
}

// wire is the unread rest of a part of a message. Its methods return false if it is too short.
type wire []byte

func (w *wire) skip(n int) bool {
	if len(*w) < n {
		return false
	}
	*w = (*w)[n:]
	return true
}

func (w *wire) uint16(v *uint16) bool {
	if len(*w) < 2 {
		return false
	}
	*v = uint16((*w)[0])<<8 | uint16((*w)[1])
	return w.skip(2)
}

// vector reads a vector whose length is in its first size bytes.
func (w *wire) vector(size int, v *wire) bool {
	if len(*w) < size {
		return false
	}
	n := 0
	for _, b := range (*w)[:size] {
		n = n<<8 | int(b)
	}
	if len(*w) < size+n {
		return false
	}
	*v, *w = (*w)[size:size+n], (*w)[size+n:]
	return true
}

// items reports whether w is a list of non-empty vectors with lengths of size bytes. Each has the given number of bytes
// before and after it.
func (w wire) items(before, size, after int) bool {
	for len(w) > 0 {
		var v wire
		if !w.skip(before) || !w.vector(size, &v) || len(v) == 0 || !w.skip(after) {
			return false
		}
	}
	return true
}

// inHostName reports whether b can occur in a host name.
func inHostName(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '-' || b == '_' || b == '.'
}
