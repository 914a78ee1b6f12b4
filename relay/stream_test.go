package relay

import (
	"slices"
	"testing"

	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h1"
)

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
