package har

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/proxy/har"
)

// slowClient reads the beginning of an archive, and then nothing until it is resumed.
type slowClient struct {
	bytes.Buffer
	writing chan struct{} // closed when the first entry is being written
	resumed chan struct{}
}

func (c *slowClient) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("startedDateTime")) {
		select {
		case <-c.writing:
		default:
			close(c.writing)
		}
		<-c.resumed
	}
	return c.Buffer.Write(b)
}

// TestEndWhileTheClientIsSlow: a client that does not read cannot prolong a capture beyond its time or its key. Recorded
// entries are still written when the time is over, but never to a client whose key has ended.
func TestEndWhileTheClientIsSlow(t *testing.T) {
	t.Parallel()
	for why, want := range map[har.Reason]int{har.EndTime: 3, har.EndKey: 1} {
		ctx, end := context.WithCancelCause(t.Context())
		during := time.Hour
		if why == har.EndTime {
			during = 100 * time.Millisecond
		}
		client := &slowClient{writing: make(chan struct{}), resumed: make(chan struct{})}
		c := har.New(har.Options{}, nil)
		account := memory.New(64<<20, 64<<20).Account("box")
		exchange := func() {
			e := c.Begin(account, time.Now())
			e.Request(har.Request{Version: "HTTP/1.1", Method: "GET", Scheme: "https", Host: "a.example", Path: "/", Size: -1})
			e.Finish(&audit.Event{})
		}
		for range 3 {
			exchange()
		}
		written := make(chan error, 1)
		go func() {
			a := archive{c, har.NewWriter(client, c, func(b []byte) []byte { return b }), rest.NewPaced(httptest.NewRecorder())}
			written <- a.write(ctx, during, &Endpoints{})
		}()
		<-client.writing
		if why == har.EndKey {
			end(problem.Refuse(http.StatusUnauthorized, "the key has ended"))
		}
		select {
		case <-c.Ended():
		case <-time.After(time.Minute):
			t.Fatalf("%s: the capture goes on", why)
		}
		exchange()
		close(client.resumed)
		if err := <-written; err != nil {
			t.Error(err)
		}
		if got := strings.Count(client.String(), "startedDateTime"); got != want || c.Reason() != why || !strings.Contains(client.String(), `"ended":"`+string(why)) {
			t.Errorf("%s: %d entries, ended by %s: %s", why, got, c.Reason(), client.String())
		}
		if account.InUse() != 0 {
			t.Errorf("%s: %d bytes are still charged", why, account.InUse())
		}
		end(nil)
	}
}
