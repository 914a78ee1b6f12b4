package remote

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"strings"
)

// maxHead is the maximum size in bytes of the first request head of a connection.
const maxHead = 16 << 10

// maxCredentials is the maximum size of the value of Proxy-Authorization; valid ones are far shorter.
const maxCredentials = 1 << 10

var (
	errHeadSize      = errors.New("the head of the request is too large")
	errNoCredentials = errors.New("without credentials")
	errCredentials   = errors.New("malformed Proxy-Authorization")
)

// readHead reads the head of an HTTP request up to and including its empty line.
func readHead(r *bufio.Reader) ([]byte, error) {
	var head []byte
	for {
		line, err := r.ReadSlice('\n')
		if len(head)+len(line) > maxHead || errors.Is(err, bufio.ErrBufferFull) {
			return nil, errHeadSize
		}
		if err != nil {
			return nil, errors.Join(err, io.ErrUnexpectedEOF)
		}
		head = append(head, line...)
		if len(bytes.TrimRight(line, "\r\n")) == 0 {
			return head, nil
		}
	}
}

// takeCredentials returns the user name and password in the Proxy-Authorization field of a head, and the head without it. The field must
// be written as the explicit proxy requires it of other fields: without space around its name, and on one line (RFC 9112, 5.1 and 5.2).
// The rest of the head is not checked: the explicit proxy parses it.
func takeCredentials(head []byte) (user, password string, rest []byte, err error) {
	var value string
	found, taking, malformed := 0, false, false
	for line := range bytes.Lines(head) {
		name, text, field := bytes.Cut(line, []byte(":"))
		switch {
		case taking && (line[0] == ' ' || line[0] == '\t'):
			malformed = true
			continue
		case field && strings.EqualFold(strings.TrimSpace(string(name)), "proxy-authorization"):
			found, taking, value = found+1, true, strings.TrimSpace(string(text))
			malformed = malformed || len(name) != len("proxy-authorization")
			continue
		}
		taking = false
		rest = append(rest, line...)
	}
	if found == 0 {
		return "", "", rest, errNoCredentials
	}
	if malformed || found > 1 || len(value) > maxCredentials {
		return "", "", rest, errCredentials
	}
	scheme, encoded, _ := strings.Cut(value, " ")
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	user, password, ok := strings.Cut(string(plain), ":")
	if !strings.EqualFold(scheme, "basic") || err != nil || !ok {
		return "", "", rest, errCredentials
	}
	return user, password, rest, nil
}

// needCredentials is the answer to a request without a valid token.
const needCredentials = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"boxgate\"\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 68\r\nConnection: close\r\n\r\n" +
	"The user name is the ID of a remote box, the password is its token.\n"

// noPlace is the answer to a request with a valid token if the box has too many connections.
const noPlace = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: text/plain; charset=utf-8\r\n" +
	"Content-Length: 39\r\nConnection: close\r\n\r\nThe box has too many open connections.\n"

// headTooLarge is the answer to a head that was not read to its end.
const headTooLarge = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
