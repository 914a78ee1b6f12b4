package postgres

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
)

const (
	// maxMessage is the longest message of a server during the login.
	maxMessage = 64 << 10
	// maxLogin is the most that a server sends during the login.
	maxLogin = 64 << 10
	// maxIterations is how often a password is hashed to prove it, at most: 25 times as often as PostgreSQL asks by default.
	// A box that may change the password of its user, as all users may, chooses the number by that.
	maxIterations = 100_000
)

// messages reads no further than the end of a message of a server at a time, so that who reads one by one has not read what
// follows the last. What would make the login costly is an error.
type messages struct {
	r    io.Reader
	head [5]byte // the type, and the length with itself
	n    int     // of head, that were read
	rest uint32  // of the body, that was not read
	body []byte  // of a message that was read as a whole, as far as it was not passed on
	read int     // in all

	negotiated bool // the server speaks an older version than it was asked for
}

// errLogin ends a login whose server says more than any has to.
var errLogin = fmt.Errorf("the server has sent more than %d KiB during the login", maxLogin>>10)

// Read implements [io.Reader].
func (m *messages) Read(p []byte) (int, error) {
	if m.read > maxLogin {
		return 0, errLogin
	}
	n, err := m.next(p)
	m.read += n
	return n, err
}

// next reads up to the end of a message.
func (m *messages) next(p []byte) (int, error) {
	const authentication = 'R'
	if m.head[0] == authentication && m.rest > 0 && m.rest <= maxMessage {
		if err := m.challenge(); err != nil {
			return 0, err
		}
	}
	switch {
	case len(m.body) > 0:
		n := copy(p, m.body)
		m.body = m.body[n:]
		return n, nil
	case m.rest > 0:
		n, err := m.r.Read(p[:min(len(p), int(m.rest))])
		m.rest -= uint32(n)
		return n, err
	}
	n, err := m.r.Read(p[:min(len(p), len(m.head)-m.n)])
	copy(m.head[m.n:], p[:n])
	if m.n += n; m.n == len(m.head) {
		m.n = 0
		m.negotiated = m.negotiated || m.head[0] == 'v'
		length := binary.BigEndian.Uint32(m.head[1:])
		m.rest = max(length, 4) - 4
	}
	return n, err
}

// challenge reads a message of the authentication as a whole, and checks what it costs to answer.
func (m *messages) challenge() error {
	m.body = make([]byte, m.rest)
	if _, err := io.ReadFull(m.r, m.body); err != nil {
		return err
	}
	m.rest = 0
	if n := iterations(m.body); n > maxIterations {
		return fmt.Errorf("the server asks for %d iterations of SCRAM-SHA-256; at most %d are made", n, maxIterations)
	}
	return nil
}

// iterations returns how often a message asks to hash the password (RFC 5802, 5.1); 0 if it does not.
func iterations(body []byte) int {
	const saslContinue = 11
	if len(body) < 4 || binary.BigEndian.Uint32(body) != saslContinue {
		return 0
	}
	parts := bytes.SplitN(body[4:], []byte(","), 3)
	n, err := strconv.Atoi(string(bytes.TrimPrefix(parts[len(parts)-1], []byte("i="))))
	if err != nil {
		return 0
	}
	return n
}
