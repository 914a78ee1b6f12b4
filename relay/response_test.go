package relay

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h1"
)

// TestManyFieldsOccupyNoMemoryDuringTheBody: a response that is read leniently may have so many fields that their slices, which are not part
// of the limited buffers, are larger than the head. A body may take long.
func TestManyFieldsOccupyNoMemoryDuringTheBody(t *testing.T) {
	t.Parallel()
	in := h1.Reader{Source: strings.NewReader("HTTP/1.1 200 OK\n" + strings.Repeat("a:\n", h1.MaxLenientFields) + "\nbody")}
	r := h1.Response{Lenient: true}
	n, err := responseHead(&in, &r, "GET")
	if err != nil || len(r.Fields) != h1.MaxLenientFields {
		t.Fatalf("%d fields, %v", len(r.Fields), err)
	}
	in.Take(n)
	var b Incoming
	if b.Begin(&in, &r); cap(r.Fields) > 2*h1.MaxFields {
		t.Errorf("%d fields are kept", cap(r.Fields))
	}
	if content, _, _, err := b.Next(in.Bytes()); string(content) != "body" || err != nil {
		t.Errorf("the body is %q, %v", content, err)
	}
}

// TestHeadsAreBounded: a head that is longer than it may be is refused, whether it has arrived whole or will never end.
func TestHeadsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 200
	const begin, end = "GET / HTTP/1.1\r\nHost: a\r\nX: ", "\r\n\r\n"
	fill := strings.Repeat("y", most-len(begin+end))
	for text, fits := range map[string]bool{
		begin + fill + end:              true,
		begin + fill + "y" + end:        false,
		begin + fill + "yyyyy":          false,
		begin + fill + end + "GET / HT": true,
	} {
		near, far := net.Pipe()
		go func() { _, _ = far.Write([]byte(text)) }()
		c := &Client{Conn: near, In: h1.Reader{Source: near}}
		var r h1.Request
		err := c.ReadHead(&r, most, time.Now().Add(time.Minute))
		var refused *h1.Error
		if fits && (err != nil || c.Head != most) || !fits && (!errors.As(err, &refused) || refused.Status != http.StatusRequestHeaderFieldsTooLarge) {
			t.Errorf("%d bytes: head of %d, %v", len(text), c.Head, err)
		}
		near.Close()
		far.Close()
	}
}

// patient expects a response for ever.
type patient struct{}

func (patient) Interrupted() error { return nil }

func (patient) Expected(time.Duration) (time.Duration, error) { return time.Second, nil }

// TestDeadlinesOfEarlierExchanges: a deadline that has passed while a connection was idle does not keep the next request from being sent.
func TestDeadlinesOfEarlierExchanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		defer near.Close()
		r := &ServerReader{Conn: near, Now: true}
		for _, idle := range []time.Duration{0, 900 * time.Millisecond, time.Second, time.Hour} {
			time.Sleep(idle)
			r.Begin(patient{}, time.Second)
			begun := time.Now()
			if _, err := r.Read(make([]byte, 1)); err == nil || time.Since(begun) < time.Second/4 {
				t.Errorf("idle for %v: a read ends after %v: %v", idle, time.Since(begun), err)
			}
			r.Begin(patient{}, time.Second)
		}
	})
}

// TestLengthOfContentThatIsNotThere: over HTTP/2 a 304 has none, as Go's client would wait for the content.
func TestLengthOfContentThatIsNotThere(t *testing.T) {
	t.Parallel()
	all := func(f *h1.Field) ([]byte, bool) { return f.Value, true }
	list := func(pairs ...string) (fields []hpack.HeaderField) {
		for i := 0; i < len(pairs); i += 2 {
			fields = append(fields, hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
		}
		return fields
	}
	for line, want := range map[string][]hpack.HeaderField{
		"200 OK": list("etag", "a", "content-length", "5"), "304 Not Modified": list("etag", "a"), "204 No Content": list("etag", "a"),
	} {
		var r h1.Response
		if _, err := r.Parse([]byte("HTTP/1.1 "+line+"\r\nEtag: a\r\nContent-Length: 5\r\n\r\n"), "GET"); err != nil {
			t.Fatal(err)
		}
		if got := (&Stream{}).Head(&r, all); !slices.Equal(got, want) {
			t.Errorf("%s: %v", line, got)
		}
	}
}
