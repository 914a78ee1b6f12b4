package conformance

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/summerwind/h2spec/client"
	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/spec"
)

// h2clientWait is how long a case waits for the client's reaction.
const h2clientWait = 10 * time.Second

// ClientCase is a case of h2spec for HTTP/2 clients: a server that acts on a client's first connection.
type ClientCase struct {
	Case, Title string

	tc   *spec.ClientTestCase
	once sync.Once
	done chan Result
}

// ClientCases returns all cases.
func ClientCases() []*ClientCase { return clientCases(client.Spec(), nil) }

func clientCases(group *spec.ClientTestGroup, out []*ClientCase) []*ClientCase {
	for _, tc := range group.Tests {
		out = append(out, &ClientCase{
			Case: fmt.Sprintf("%s/%d", group.ID(), tc.Seq), Title: tc.Desc, tc: tc, done: make(chan Result, 1),
		})
	}
	for _, g := range group.Groups {
		out = clientCases(g, out)
	}
	return out
}

// Serve handles a connection of the client and closes it. Only the first one is judged.
func (c *ClientCase) Serve(conn net.Conn) {
	defer conn.Close()
	c.once.Do(func() {
		r := Result{Case: c.Case, Title: c.Title}
		cfg := &config.Config{Timeout: h2clientWait, TLS: true, MaxHeaderLen: 4000}
		sc, err := spec.Accept(cfg, plainReset{conn})
		if err == nil {
			err = c.tc.Run(cfg, sc)
		}
		if r.Outcome = OK; err != nil {
			r.Outcome, r.Detail = Failed, err.Error()
		}
		c.done <- r
	})
}

// plainReset is a connection whose Read returns bare ECONNRESET errors. h2spec compares the error with ECONNRESET to
// recognise a reset as a closed connection, but Go wraps it. A client that closes with unread data sends a reset.
type plainReset struct{ net.Conn }

// Read implements net.Conn.
func (c plainReset) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, syscall.ECONNRESET) {
		err = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	return n, err
}

// Result returns the verdict. It waits for the client to connect, with a timeout.
func (c *ClientCase) Result() Result {
	select {
	case r := <-c.done:
		return r
	case <-time.After(5 * h2clientWait):
		return Result{Case: c.Case, Title: c.Title, Outcome: Failed, Detail: "no client came"}
	}
}
