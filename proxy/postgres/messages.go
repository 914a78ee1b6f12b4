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
	// maxLogin is the most bytes that a server may send during the login.
	maxLogin = 64 << 10
	// maxIterations limits the PBKDF2 iterations of SCRAM: 25 times PostgreSQL's default. A box that can change its user's
	// password, as every user may, can choose the number.
	maxIterations = 100_000
)

// messageReader limits each read to the end of a server's message, so that a reader of single messages does not consume data
// after the last. It fails on messages that would make the login costly.
type messageReader struct {
	r    io.Reader
	head [5]byte // the type, and the length including itself
	n    int     // bytes of head that were read
	rest uint32  // bytes of the body that were not read
	body []byte  // unread part of a body that was read as a whole
	read int     // total bytes

	negotiated bool // the server speaks an older version than requested
}

// errLogin ends a login if the server sends more than maxLogin.
var errLogin = fmt.Errorf("the server has sent more than %d KiB during the login", maxLogin>>10)

// Read implements [io.Reader].
func (m *messageReader) Read(p []byte) (int, error) {
	if m.read > maxLogin {
		return 0, errLogin
	}
	n, err := m.readPart(p)
	m.read += n
	return n, err
}

// readPart reads at most up to the end of the current message.
func (m *messageReader) readPart(p []byte) (int, error) {
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

// challenge reads an authentication message as a whole, and limits the cost of answering it.
func (m *messageReader) challenge() error {
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

// iterations returns the number of iterations that a SCRAM message requests (RFC 5802, 5.1), or 0 for other messages.
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
