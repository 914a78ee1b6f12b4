package remote

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"time"

	"boxgate/policy/name"
)

// http serves an HTTP client: the first request must have credentials. It is passed on without them, and so is the rest of the
// connection; the explicit proxy removes credentials of later requests, like every Proxy field.
func (c *client) http() {
	head, err := readHead(c.in)
	if errors.Is(err, errHeadSize) {
		c.refuse(err.Error())
		c.part([]byte(headTooLarge))
		return
	}
	if err != nil {
		c.refuse("no request")
		return
	}
	user, password, rest, err := takeCredentials(head)
	if err != nil {
		c.refuse(err.Error())
		c.part([]byte(needCredentials))
		return
	}
	r, full := c.admit(user, password)
	switch {
	case full:
		c.part([]byte(noPlace))
		return
	case r == nil:
		c.part([]byte(needCredentials))
		return
	}
	defer r.leave()
	if err := r.connect(); err != nil {
		return
	}
	_ = c.raw.SetDeadline(time.Time{})
	r.run(c.rest(rest), r.pair)
}

// rest returns a reader of more, followed by the bytes of the client.
func (c *client) rest(more []byte) io.Reader {
	early, _ := c.in.Peek(c.in.Buffered()) // peeking at buffered bytes cannot fail
	head := append(more[:len(more):len(more)], early...)
	c.in = nil // frees its buffer
	return &leading{head: head, next: c.tls}
}

// leading reads head, then next. It does not keep head longer than necessary.
type leading struct {
	head []byte
	next io.Reader
}

// Read implements io.Reader.
func (l *leading) Read(p []byte) (int, error) {
	if len(l.head) == 0 {
		return l.next.Read(p)
	}
	n := copy(p, l.head)
	if l.head = l.head[n:]; len(l.head) == 0 {
		l.head = nil
	}
	return n, nil
}

// socks serves a SOCKS5 client.
func (c *client) socks() {
	if err := readMethods(c.in); err != nil {
		if errors.Is(err, errMethod) {
			c.refuse(err.Error())
			c.part([]byte{socksVersion, methodRefused})
			return
		}
		c.refuse(errNotSOCKS.Error())
		return
	}
	if _, err := c.tls.Write([]byte{socksVersion, methodPassword}); err != nil {
		return
	}
	user, password, err := readPassword(c.in)
	if err != nil {
		c.refuse(errNotSOCKS.Error())
		return
	}
	r, _ := c.admit(user, password)
	if r == nil {
		c.part([]byte{passwordVersion, 1})
		return
	}
	defer r.leave()
	if _, err := c.tls.Write([]byte{passwordVersion, 0}); err != nil {
		return
	}
	c.target(r)
}

// target reads the destination, and asks the explicit proxy for it with a CONNECT, which it judges and records.
func (c *client) target(r *relay) {
	authority, err := readTarget(c.in)
	if err != nil {
		code := byte(replyFailure)
		switch {
		case errors.Is(err, errCommand):
			code = replyCommand
		case errors.Is(err, errAddress):
			code = replyAddress
		default:
			err = errNotSOCKS
		}
		c.cfg.Proxy.NoteRefusal(r.box, name.ReasonProtocol, c.from+err.Error())
		c.part(socksReply(code))
		return
	}
	if err := r.connect(); err != nil {
		c.part(socksReply(replyFailure))
		return
	}
	code, answers := r.ask(authority)
	if code != replyOK {
		c.part(socksReply(code))
		return
	}
	if _, err := c.tls.Write(socksReply(replyOK)); err != nil {
		return
	}
	_ = c.raw.SetDeadline(time.Time{})
	r.run(c.rest(nil), answers)
}

// ask sends a CONNECT, and returns the SOCKS reply for the answer, and a reader of the bytes after it.
func (r *relay) ask(authority string) (byte, io.Reader) {
	_ = r.pair.SetDeadline(time.Now().Add(helloTime))
	if _, err := io.WriteString(r.pair, "CONNECT "+authority+" HTTP/1.1\r\nHost: "+authority+"\r\n\r\n"); err != nil {
		return replyFailure, nil
	}
	in := bufio.NewReader(r.pair)
	answer, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return replyFailure, nil
	}
	_ = answer.Body.Close()
	_ = r.pair.SetDeadline(time.Time{})
	early, _ := in.Peek(in.Buffered()) // peeking at buffered bytes cannot fail
	return replyTo(answer.StatusCode), &leading{head: early, next: r.pair}
}
