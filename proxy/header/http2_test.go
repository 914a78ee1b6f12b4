package header

import (
	"slices"
	"testing"

	"golang.org/x/net/http2/hpack"

	"boxgate/policy/name"
	"boxgate/rule"
)

func list(pairs ...string) (fields []hpack.HeaderField) {
	for i := 0; i < len(pairs); i += 2 {
		fields = append(fields, hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return fields
}

var setKey = []rule.Field{{Name: "X-Api-Key", Value: name.NewSecret("s3cret")}}

// TestTrailersPass: trailer fields are forwarded whether announced or not, except variants of headers that are set and
// fields that frame, route or control. The request's list is not modified, so that it can be sent again.
func TestTrailersPass(t *testing.T) {
	t.Parallel()
	in := list("x-api-key", "mine", "x-sum", "7", "x_api_key", "mine", "content-length", "9", "content_length", "9", "proxy-x", "1", "if-match", "1", "te", "trailers")
	for range 2 {
		if got := PassTrailers(in, setKey); !slices.Equal(got, list("x-sum", "7")) {
			t.Errorf("%v", got)
		}
	}
	if all := list("grpc-status", "0", "grpc-message", "fine"); !slices.Equal(PassTrailers(all, setKey), all) {
		t.Error("trailers that may pass do not")
	}
}

// TestRequestFieldsPass: the box's fields are forwarded in order, without those of its connection and variants of headers
// that are set. Cookies are split, because servers limit the length of a field.
func TestRequestFieldsPass(t *testing.T) {
	t.Parallel()
	in := list("accept", "*/*", "host", "a.test", "x-api-key", "mine", "cookie", "a=1; b=2", "x_api_key", "mine", "te", "trailers", "content-length", "4",
		"proxy-authorization", "x", "expect", "100-continue", "user-agent", "", "trailer", "X-Sum, X-Api-Key, Host", "http2-settings", "x", "accept", "text/html")
	want := list("accept", "*/*", "cookie", "a=1", "cookie", "b=2", "te", "trailers", "trailer", "X-Sum", "accept", "text/html")
	if got := PassRequest(nil, in, setKey, true); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if got := PassRequest(nil, list("trailer", "x-sum", "cookie", "a=1"), []rule.Field{{Name: "Cookie"}}, false); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestResponseFieldsPass: fields of the upstream hop, offers of HTTP/3, duplicate lengths, and lengths of interim responses
// are dropped.
func TestResponseFieldsPass(t *testing.T) {
	t.Parallel()
	in := func() []hpack.HeaderField {
		return list("connection", "x", "content-length", "5", "alt-svc", `h3=":443"`, "date", "now", "content-length", "5", "trailer", "Grpc-Status,Te", "proxy-x", "1")
	}
	if got := PassResponse(in(), false); !slices.Equal(got, list("content-length", "5", "date", "now", "trailer", "Grpc-Status")) {
		t.Errorf("%v", got)
	}
	if got := PassResponse(in(), true); !slices.Equal(got, list("date", "now")) {
		t.Errorf("%v", got)
	}
}
