package ingress

import (
	"errors"
	"io"
	"time"

	"boxgate/relay/h1"
)

// errForm reports a body that no browser sends as the sign-in form.
var errForm = errors.New("the form is too large or has no length")

// form implements [replier]. The connection ends after the response.
func (c *client) form(most int, until time.Time) (content []byte, err error) {
	size := c.Req.Body.Length
	if c.Req.Body.Chunked || size > int64(most) {
		return nil, errForm
	}
	c.In.Take(c.Head)
	c.Head = 0
	c.body.begin(c)
	for {
		part, n, done, err := c.body.Next(c.In.Bytes())
		if err != nil {
			return nil, err
		}
		content = append(content, part...)
		if c.In.Take(n); done {
			return content, nil
		}
		if n > 0 && len(c.In.Bytes()) > 0 {
			continue
		}
		if err := c.ReadUntil(until, c.In.Fill); err != nil {
			return nil, h1.NoEOF(err)
		}
	}
}

// form implements [replier].
func (s *stream) form(most int, until time.Time) ([]byte, error) {
	if s.Req.Body.Chunked || s.Req.Body.Length > int64(most) {
		return nil, errForm
	}
	defer time.AfterFunc(time.Until(until), s.In.CloseRead).Stop()
	return io.ReadAll(io.LimitReader(s.In, int64(most)+1))
}
