package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/summerwind/h2spec/client"
	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"

	"boxgate/conformance/websocket"
)

// h2specWait bounds h2spec's wait for a response that may not come.
const h2specWait = 2 * time.Second

// h2spec runs all cases of github.com/summerwind/h2spec, including the strict ones, against an HTTP/2 server.
func h2spec(_ context.Context, target Target) ([]Result, error) {
	c := &config.Config{
		Host: target.Host, Port: 443, Path: "/", TLS: true, Strict: true, Timeout: h2specWait, MaxHeaderLen: 4000,
	}
	var out []Result
	for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		group.Test(c) // exits if it cannot connect
		out = collect(group, out)
	}
	return out, nil
}

// collect appends the results of a group and its subgroups.
func collect(group *spec.TestGroup, out []Result) []Result {
	for _, tc := range append(group.Tests, group.StrictTests...) {
		r := Result{Case: group.ID(), Title: tc.Desc, Outcome: Failed, Detail: "it was not run"}
		if tc.Result != nil {
			r.Case, r.Outcome, r.Detail = fmt.Sprintf("%s/%d", group.ID(), tc.Result.Sequence), OK, ""
			switch {
			case tc.Result.Skipped:
				r.Outcome = "SKIPPED"
			case tc.Result.Failed:
				r.Outcome, r.Detail = Failed, tc.Result.Error.Error()
			}
		}
		out = append(out, r)
	}
	for _, g := range group.Groups {
		out = collect(g, out)
	}
	return out
}

// HTTP2Handler returns the server for h2spec: a page with a body, because h2spec waits for DATA frames.
func HTTP2Handler() http.Handler {
	page := strings.Repeat("0123456789abcdef", 32)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, page)
	})
}

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

// WebSocketHandler returns the echo server for the WebSocket cases.
func WebSocketHandler() http.Handler { return websocket.Echo() }

// patience bounds the time a server takes to close a connection.
const patience = 10 * time.Second

// webSocket runs the cases. Unless Full is set, the cases of limits and compression are smaller than Autobahn's.
func webSocket(ctx context.Context, target Target, dial websocket.Dialer) []Result {
	shrink, messages, octets := 16, 20, 128<<10
	if target.Full {
		shrink, messages, octets = 1, 1000, 4<<20
	}
	cases := slices.Concat(websocket.Protocol(), websocket.Limits(shrink), websocket.Compression(messages, octets))
	var out []Result
	for _, v := range websocket.Run(ctx, dial, cases, patience) {
		out = append(out, Result{Case: v.Number, Title: v.Title, Outcome: v.Outcome, Seen: v.Seen})
	}
	return out
}
