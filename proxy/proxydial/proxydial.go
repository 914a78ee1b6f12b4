// Package proxydial connects to servers through upstream proxies: by CONNECT (RFC 9110, 9.3.6) with basic authentication
// (RFC 7617), and by SOCKS version 5 (RFC 1928) with a user name and a password (RFC 1929).
package proxydial

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/proxy"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Credentials authenticate to a proxy. Errors never contain them.
type Credentials struct {
	User     string
	Password name.Secret
}

// Refused reports that the proxy answered CONNECT with an error status.
type Refused struct{ Status int }

// Error returns the status without the proxy's own text.
func (e *Refused) Error() string {
	return fmt.Sprintf("the upstream proxy answered CONNECT with status %d", e.Status)
}

// errHead is the error for an answer that is not HTTP, or whose head is too long.
var errHead = errors.New("the upstream proxy does not answer CONNECT as HTTP does")

// maxHead is the maximum length in bytes of an answer's head.
const maxHead = 16 << 10

// Connect asks the proxy on c to connect to a server, given as host:port, until ctx ends. After that c is the connection to
// the server, of whose data no byte has been read. After an error c is unusable.
func Connect(ctx context.Context, c net.Conn, scheme policy.ProxyScheme, to string, as *Credentials) error {
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { socket.Abort(c) })
	var err error
	if scheme == policy.ProxySOCKS5 {
		err = socks(c, to, as)
	} else {
		err = connect(c, to, as)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// socks connects by SOCKS.
func socks(c net.Conn, to string, as *Credentials) error {
	var auth *proxy.Auth
	if as != nil {
		auth = &proxy.Auth{User: as.User, Password: as.Password.Reveal()}
	}
	d, err := proxy.SOCKS5("tcp", "upstream", auth, connected{c})
	if err != nil {
		return err
	}
	_, err = d.Dial("tcp", to)
	return err
}

// connected is a [proxy.Dialer] that returns an existing connection.
type connected struct{ net.Conn }

// Dial implements [proxy.Dialer].
func (c connected) Dial(string, string) (net.Conn, error) { return c.Conn, nil }

// connect connects by HTTP.
func connect(c net.Conn, to string, as *Credentials) error {
	head := "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n"
	if as != nil {
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(as.User+":"+as.Password.Reveal())) + "\r\n"
	}
	if _, err := io.WriteString(c, head+"\r\n"); err != nil {
		return err
	}
	return readAnswer(c)
}

// readAnswer reads the answer to CONNECT, and not a byte more, because the server's data follows.
func readAnswer(r io.Reader) error {
	var head []byte
	for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, b[0]) {
		if len(head) == maxHead {
			return errHead
		}
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
	}
	res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return errHead // its text quotes the answer
	}
	_ = res.Body.Close()
	if res.ProtoMajor != 1 {
		return errHead
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return &Refused{res.StatusCode}
	}
	return nil
}
