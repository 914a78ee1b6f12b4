package h1

import "bytes"

// Framing describes how a body is delimited. The zero value is no body.
type Framing struct {
	Chunked    bool
	UntilClose bool  // a response's body that ends with the connection
	Length     int64 // if the body is neither chunked nor ends with the connection
}

// Empty reports whether there is no body.
func (f Framing) Empty() bool { return !f.Chunked && !f.UntilClose && f.Length == 0 }

// head contains what request and response heads share.
type head struct {
	// Minor is the minor version: 0 or 1.
	Minor uint8
	// Fields are the fields in the order received.
	Fields []Field
	// Body is how the body is delimited.
	Body Framing
	// Close is set if the sender closes the connection after this message.
	Close bool
	// Upgrade is the value of the Upgrade field if Connection names it, else nil.
	Upgrade []byte

	// HasLength is set if there is a Content-Length field.
	HasLength bool

	named     [][]byte // fields that Connection names, other than known ones
	keepAlive bool
	upgrading bool
	hasTE     bool
}

func (h *head) reset() {
	*h = head{Fields: h.Fields[:0], named: h.named[:0]}
}

// Named reports whether Connection names the field, which makes it hop-by-hop (RFC 9110, 7.6.1).
func (h *head) Named(name []byte) bool {
	for _, n := range h.named {
		if len(n) == len(name) && bytes.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// version parses "HTTP/1.0" or "HTTP/1.1".
func (h *head) version(b []byte) error {
	switch string(b) {
	case "HTTP/1.1":
		h.Minor = 1
	case "HTTP/1.0":
		h.Minor = 0
	default:
		if len(b) != 8 || string(b[:5]) != "HTTP/" || b[6] != '.' {
			return bad("the start line does not end in a version")
		}
		return &Error{Status: 505, What: "the version is neither HTTP/1.1 nor HTTP/1.0"}
	}
	return nil
}

// field handles the fields that affect framing or the connection.
func (h *head) field(f *Field) error {
	switch f.Kind {
	case ContentLength:
		if h.HasLength {
			return bad("Content-Length is repeated")
		}
		n, err := parseLength(f.Value)
		if err != nil {
			return err
		}
		h.HasLength, h.Body.Length = true, n
	case TransferEncoding:
		if h.hasTE {
			return bad("Transfer-Encoding is repeated")
		}
		if !EqualFold(f.Value, "chunked") {
			return bad("Transfer-Encoding is not exactly chunked")
		}
		h.hasTE = true
	case Connection:
		return options(f.Value, h.option)
	case Upgrade:
		if h.Upgrade != nil {
			return bad("Upgrade is repeated")
		}
		h.Upgrade = f.Value
	case Trailer:
		return options(f.Value, trailerName)
	}
	return nil
}

// trailerName refuses framing fields announced for the trailer section (RFC 9110, 6.5.1).
func trailerName(name []byte) error {
	switch kindOf(name) {
	case ContentLength, TransferEncoding, Trailer, Host:
		return bad("Trailer announces a field that may not stand there")
	}
	return nil
}

func (h *head) option(option []byte) error {
	switch {
	case EqualFold(option, "close"):
		h.Close = true
	case EqualFold(option, "keep-alive"):
		h.keepAlive = true
	case EqualFold(option, "upgrade"):
		h.upgrading = true
	default:
		// A peer that declares framing or routing fields hop-by-hop is up to no good.
		if k := kindOf(option); k == Host || k == ContentLength || k == TransferEncoding {
			return bad("Connection names a field it may not")
		}
		if len(h.named) == MaxFields {
			return bad("too many connection options")
		}
		h.named = append(h.named, option)
	}
	return nil
}

// framing checks combinations of fields.
func (h *head) framing() error {
	if h.hasTE && h.HasLength {
		return bad("both Content-Length and Transfer-Encoding")
	}
	if h.hasTE && h.Minor == 0 {
		return bad("Transfer-Encoding in HTTP/1.0")
	}
	h.Body.Chunked = h.hasTE
	if h.Minor == 0 && !h.keepAlive {
		h.Close = true
	}
	if !h.upgrading {
		h.Upgrade = nil
	}
	return nil
}

// parseLength accepts only digits: no sign, no list, no white space (RFC 9112, 6.3).
func parseLength(b []byte) (int64, error) {
	if len(b) == 0 || len(b) > 18 {
		return 0, bad("Content-Length is not a number of at most 18 digits")
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, bad("Content-Length is not a number of at most 18 digits")
		}
		n = n*10 + int64(c-'0')
	}
	return n, nil
}
