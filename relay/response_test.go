package relay

import (
	"strings"
	"testing"

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
