package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// Codes of the packets that a client may send first (PostgreSQL documentation, 54.7). They have no type byte.
const (
	codeVersion3 = 3 << 16
	codeCancel   = 1234<<16 | 5678
	codeTLS      = 1234<<16 | 5679
	codeGSS      = 1234<<16 | 5680
)

// maxStartup is the longest first packet (MAX_STARTUP_PACKET_LENGTH of PostgreSQL).
const maxStartup = 10000

// errStartup is the error of a first packet that is malformed or not PostgreSQL's.
var errStartup = errors.New("malformed startup packet")

// packet is a first packet without its length.
type packet struct {
	code uint32
	body []byte
}

// readPacket reads one first packet, and no byte more, because TLS may follow.
func readPacket(r io.Reader) (packet, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return packet{}, err
	}
	n := binary.BigEndian.Uint32(head[:4])
	if n < uint32(len(head)) || n > maxStartup {
		return packet{}, errStartup
	}
	p := packet{code: binary.BigEndian.Uint32(head[4:]), body: make([]byte, n-uint32(len(head)))}
	_, err := io.ReadFull(r, p.body)
	return p, err
}

// startup is a parsed StartupMessage.
type startup struct {
	minor      uint16            // minor version; the major version is 3
	parameters map[string]string // including user and database
	options    []string          // protocol options, whose names begin with "_pq_."
}

// parseStartup parses a StartupMessage: NUL-terminated pairs of name and value, then an empty name. Duplicate names are
// rejected, because servers could differ on which value counts.
func parseStartup(p packet) (startup, error) {
	s := startup{minor: uint16(p.code), parameters: map[string]string{}}
	if p.code>>16 != codeVersion3>>16 {
		return s, errStartup
	}
	for rest := p.body; ; {
		name, after, ok := bytes.Cut(rest, []byte{0})
		if ok && len(name) == 0 && len(after) == 0 {
			return s, nil
		}
		value, after, whole := bytes.Cut(after, []byte{0})
		if _, twice := s.parameters[string(name)]; !ok || !whole || twice || len(name) == 0 {
			return s, errStartup
		}
		if bytes.HasPrefix(name, []byte("_pq_.")) {
			s.options = append(s.options, string(name))
		} else {
			s.parameters[string(name)] = string(value)
		}
		rest = after
	}
}

// cancel is a request to cancel the query of another connection.
type cancel struct {
	process uint32
	key     []byte
}

func parseCancel(p packet) (c cancel, err error) {
	if len(p.body) < 4+shortKey || len(p.body) > 4+maxKey {
		return c, errStartup
	}
	return cancel{binary.BigEndian.Uint32(p.body), p.body[4:]}, nil
}
