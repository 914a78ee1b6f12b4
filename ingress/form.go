package ingress

import (
	"errors"
	"io"
	"time"

	"boxgate/internal/h1"
)

// errForm is the body of a sign-in that no browser sends.
var errForm = errors.New("the form is too large or has no length")

// form implements [replier]. The connection ends after the response.
func (c *client) form(most int, until time.Time) (content []byte, err error) {
	size := c.req.Body.Length
	if c.req.Body.Chunked || size > int64(most) {
		return nil, errForm
	}
	c.in.Take(c.headLen)
	c.headLen = 0
	c.body.begin(c)
	for {
		part, n, done, err := c.body.body.Next(c.in.Bytes())
		if err != nil {
			return nil, err
		}
		content = append(content, part...)
		if c.in.Take(n); done {
			return content, nil
		}
		if n > 0 && len(c.in.Bytes()) > 0 {
			continue
		}
		if err := c.readUntil(until, c.in.Fill); err != nil {
			return nil, h1.NoEOF(err)
		}
	}
}

// form implements [replier].
func (s *stream) form(most int, until time.Time) ([]byte, error) {
	if s.req.Body.Chunked || s.req.Body.Length > int64(most) {
		return nil, errForm
	}
	defer time.AfterFunc(time.Until(until), s.in.CloseRead).Stop()
	return io.ReadAll(io.LimitReader(s.in, int64(most)+1))
}
