package h2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// NoTable is a change of the size of the compression table to zero (RFC 7541, 6.3). It begins the first header block of a
// connection on which [AppendField] is used: the peer can free its table, and needs no other change of its size.
const NoTable = 0x20

// AppendFrameHead appends the header of a frame.
func AppendFrameHead(dst []byte, length int, t http2.FrameType, flags http2.Flags, stream uint32) []byte {
	dst = append(dst, byte(length>>16), byte(length>>8), byte(length), byte(t), byte(flags))
	return binary.BigEndian.AppendUint32(dst, stream)
}

// EndHead ends a header block that was appended to dst after the header of a HEADERS frame at the given position: it sets the
// frame's length and flag or, if the block is too long, splits it into CONTINUATION frames.
func EndHead(dst []byte, at int) []byte {
	start := at + FrameHead
	if length := len(dst) - start; length <= FrameMax {
		dst[at], dst[at+1], dst[at+2] = byte(length>>16), byte(length>>8), byte(length)
		dst[at+4] |= byte(http2.FlagHeadersEndHeaders)
		return dst
	}
	stream := binary.BigEndian.Uint32(dst[at+5:])
	rest := append([]byte(nil), dst[start+FrameMax:]...)
	dst[at], dst[at+1], dst[at+2] = byte(FrameMax>>16), byte(FrameMax>>8&0xff), byte(FrameMax&0xff)
	dst = dst[:start+FrameMax]
	for len(rest) > 0 {
		next := rest[:min(len(rest), FrameMax)]
		rest = rest[len(next):]
		var flags http2.Flags
		if len(rest) == 0 {
			flags = http2.FlagContinuationEndHeaders
		}
		dst = append(AppendFrameHead(dst, len(next), http2.FrameContinuation, flags, stream), next...)
	}
	return dst
}

// AppendField appends a field to a header block, without any use of the compression table: as an index if it is a
// pseudo-header field of the static table, else as a literal. A sensitive one is marked as never to be indexed (RFC 7541, 7.1.3). Names come
// in any case and are written in small letters.
func AppendField(dst []byte, f *hpack.HeaderField) []byte {
	var form byte // literal without indexing
	if f.Sensitive {
		form = 0x10
	} else if i := staticField(f); i != 0 {
		return append(dst, 0x80|i)
	}
	if i := staticNames[f.Name]; i != 0 {
		dst = appendInteger(dst, form, 4, int(i))
	} else {
		dst = appendInteger(append(dst, form), 0, 7, len(f.Name))
		at := len(dst)
		dst = append(dst, f.Name...)
		lower(dst[at:])
	}
	dst = appendInteger(dst, 0, 7, len(f.Value))
	return append(dst, f.Value...)
}

func lower(name []byte) {
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			name[i] = c + 'a' - 'A'
		}
	}
}

// Static reports whether the static table (RFC 7541, appendix A) contains a pseudo-header field with its value, which then is
// a standard one.
func Static(f *hpack.HeaderField) bool { return staticField(f) != 0 }

// appendInteger appends an integer with a prefix of the given number of bits (RFC 7541, 5.1).
func appendInteger(dst []byte, form byte, bits, n int) []byte {
	limit := 1<<bits - 1
	if n < limit {
		return append(dst, form|byte(n))
	}
	dst = append(dst, form|byte(limit))
	for n -= limit; n >= 0x80; n >>= 7 {
		dst = append(dst, 0x80|byte(n&0x7f))
	}
	return append(dst, byte(n))
}

// staticField returns the index of a pseudo-header field in the static table (RFC 7541, appendix A), or 0.
func staticField(f *hpack.HeaderField) byte {
	if f.Name == "" || f.Name[0] != ':' {
		return 0
	}
	switch f.Name {
	case ":method":
		return pick(f.Value, "GET", 2, "POST", 3)
	case ":path":
		return pick(f.Value, "/", 4, "/index.html", 5)
	case ":scheme":
		return pick(f.Value, "http", 6, "https", 7)
	case ":status":
		return statuses[f.Value]
	}
	return 0
}

func pick(v, a string, i byte, b string, j byte) byte {
	switch v {
	case a:
		return i
	case b:
		return j
	}
	return 0
}

var statuses = map[string]byte{"200": 8, "204": 9, "206": 10, "304": 11, "400": 12, "404": 13, "500": 14}

// staticNames maps each name to its first index in the static table.
var staticNames = func() map[string]byte {
	names := map[string]byte{":authority": 1, ":method": 2, ":path": 4, ":scheme": 6, ":status": 8}
	const first = 15
	for i, name := range []string{
		"accept-charset", "accept-encoding", "accept-language", "accept-ranges", "accept", "access-control-allow-origin", "age", "allow",
		"authorization", "cache-control", "content-disposition", "content-encoding", "content-language", "content-length",
		"content-location", "content-range", "content-type", "cookie", "date", "etag", "expect", "expires", "from", "host", "if-match",
		"if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-modified", "link", "location", "max-forwards",
		"proxy-authenticate", "proxy-authorization", "range", "referer", "refresh", "retry-after", "server", "set-cookie",
		"strict-transport-security", "transfer-encoding", "user-agent", "vary", "via", "www-authenticate",
	} {
		names[name] = byte(first + i)
	}
	return names
}()

// PrioritySize is the length of a priority, in a PRIORITY frame or before a header block.
const PrioritySize = 5

const (
	errProtocol  = http2.ConnectionError(http2.ErrCodeProtocol)
	errFrameSize = http2.ConnectionError(http2.ErrCodeFrameSize)
)

// Unpadded returns the payload of a DATA or HEADERS frame without its padding (RFC 9113, 6.1 and 6.2), or an
// [http2.ConnectionError].
func Unpadded(h http2.FrameHeader, payload []byte) ([]byte, error) {
	if !h.Flags.Has(http2.FlagDataPadded) { // the same bit in HEADERS
		return payload, nil
	}
	if len(payload) == 0 {
		return nil, errFrameSize
	}
	content := len(payload) - 1 - int(payload[0])
	if content < 0 {
		return nil, errProtocol
	}
	return payload[1 : 1+content], nil
}

// HeadFragment returns the priority, if there is one, and the part of a header block that are in the payload of a HEADERS
// frame, or an [http2.ConnectionError].
func HeadFragment(h http2.FrameHeader, payload []byte) (priority, fragment []byte, err error) {
	payload, err = Unpadded(h, payload)
	if err != nil || !h.Flags.Has(http2.FlagHeadersPriority) {
		return nil, payload, err
	}
	if len(payload) < PrioritySize {
		return nil, nil, errFrameSize
	}
	return payload[:PrioritySize], payload[PrioritySize:], nil
}
