package flow

import (
	"encoding/binary"
	"iter"
	"time"

	"golang.org/x/sys/unix"
)

const nlaTypeMask = 1<<14 - 1 // without NLA_F_NESTED and NLA_F_NET_BYTEORDER (linux/netlink.h)

// attributes iterates over the netlink attributes in b, without the flags of their types. It stops at a malformed one.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.SizeofNlAttr || size > len(b) {
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) & nlaTypeMask
			if !yield(kind, b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
		}
	}
}

// findAttribute returns the first attribute of a kind in b; nil if there is no such attribute.
func findAttribute(b []byte, kind uint16) []byte {
	for k, value := range attributes(b) {
		if k == kind {
			return value
		}
	}
	return nil
}

// parseNumber reads a number in network byte order; 0 if b is empty.
func parseNumber(b []byte) (n uint64) {
	for _, x := range b[:min(len(b), 8)] {
		n = n<<8 | uint64(x)
	}
	return n
}

// parseTime reads nanoseconds since 1970; zero if b is empty.
func parseTime(b []byte) time.Time {
	if len(b) == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(parseNumber(b)))
}
