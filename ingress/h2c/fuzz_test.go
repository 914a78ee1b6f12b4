package h2c

import (
	"strconv"
	"testing"

	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h1"
	"boxgate/relay/h2/upstream"
)

// FuzzResponse: every head over HTTP/2 that the connection accepts becomes one of HTTP/1.1 with the same status and fields,
// and no further bytes.
func FuzzResponse(f *testing.F) {
	f.Add(200, "content-type", "text/plain", int64(-1), false)
	f.Add(204, "x", "", int64(5), true)
	f.Add(103, "link", "</a>", int64(-1), false)
	f.Add(200, "trailer", "x-sum", int64(3), false)
	f.Fuzz(func(t *testing.T, status int, name, value string, length int64, end bool) {
		if status < 100 || status > 999 || status == 101 || !h1.ValidToken(name) || lower([]byte(name)) != name || !h1.ValidValue(value) ||
			length < -1 || length >= 1e18 || name == "content-length" {
			t.Skip("the connection refuses it")
		}
		switch name {
		case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
			t.Skip("the connection drops it")
		}
		h := upstream.Head{Status: status, Fields: []hpack.HeaderField{{Name: name, Value: value}}, Length: length, End: end && length <= 0}
		if length >= 0 {
			h.Fields = append(h.Fields, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(length, 10)})
		}
		var r response
		r.begin(&h)
		var got h1.Response
		n, err := got.Parse(r.out, "GET")
		if err != nil {
			return // refused as it would be from an HTTP/1.1 application
		}
		if n != len(r.out) || got.Status != status || string(got.Fields[0].Name) != name || got.Body.UntilClose || got.Close {
			t.Errorf("%q: %d bytes, %+v", r.out, n, got)
		}
		if h.End && !got.Body.Empty() || got.HasLength && length >= 0 && got.Length != length {
			t.Errorf("%q: body %+v", r.out, got.Body)
		}
	})
}
