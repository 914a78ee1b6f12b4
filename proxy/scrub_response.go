package proxy

import (
	"net/http"
	"strings"

	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/proxy/h1"
	"boxgate/proxy/problem"
	"boxgate/proxy/scrub"
	"boxgate/proxy/usage"
)

// This file masks the secrets of a rule in the responses of its hosts, and refuses a response that cannot be looked into.

// scrubbing is what is done to one response. A nil one does nothing.
type scrubbing struct {
	set      *scrub.Set
	codings  []string     // of the body; nil if there is none
	resized  bool         // Content-Length would not be true: the body is recoded, or would be if this response had it
	messages bool         // the body consists of gRPC messages
	usage    *usage.Box   // in which the recoding was counted; nil if there is none
	holds    memory.Claim // for the recoding
}

// maxRecodings is how many compressed responses of a box are undone and redone at the same time, if there is memory for
// them: the worst take 12 MiB each.
const maxRecodings = 64

var (
	errRecodings = error(problem.Fixed("the box has as many compressed responses under way as can be scrubbed at a time"))

	errPart     = error(problem.Fixed("a part of a response came although none was asked for"))
	errMessages = error(problem.Fixed("the response's messages are compressed"))
	errExtended = error(problem.Fixed("the response uses a WebSocket extension although none was offered"))
)

// newScrubbing looks at the head of a final response: field returns the values of a field, bodiless says that it has no
// body whatever the fields say. The error is an *[Upstream]; end must follow where there is none.
func (s *session) newScrubbing(r *ruling, status int, bodiless bool, field func(string) []string) (*scrubbing, error) {
	sc := &scrubbing{set: r.scrub}
	refused := func(why error) (*scrubbing, error) {
		return nil, &problem.Upstream{Reason: policy.ReasonUnscrubbable, Name: r.request.Name, Err: why}
	}
	switch status {
	case http.StatusPartialContent, http.StatusIMUsed:
		return refused(errPart)
	case http.StatusSwitchingProtocols:
		if len(field("Sec-Websocket-Extensions")) > 0 {
			return refused(errExtended)
		}
		return sc, nil
	}
	for _, name := range []string{"Grpc-Encoding", "Connect-Content-Encoding"} {
		for _, v := range field(name) {
			if v != "" && !strings.EqualFold(v, "identity") {
				return refused(errMessages)
			}
		}
	}
	codings, err := scrub.ParseCodings(strings.Join(field("Content-Encoding"), ","))
	if bodiless {
		without := status == http.StatusNotModified || r.request.Method == http.MethodHead
		sc.resized = without && (err != nil || len(codings) > 0)
		return sc, nil
	}
	if err != nil {
		return refused(err)
	}
	sc.messages = hasMessages(field("Content-Type"))
	if len(codings) > 0 {
		if !s.usage.Recodings.Enter(maxRecodings) {
			return nil, &problem.Upstream{Reason: policy.ReasonLimit, Name: r.request.Name,
				Err: errRecodings}
		}
		sc.codings, sc.resized, sc.usage = codings, true, s.usage
		sc.holds.Open(s.usage.Memory, memory.Recoding)
		if !sc.holds.Grow(scrub.Memory(codings)) {
			sc.end()
			return nil, &problem.Upstream{Reason: policy.ReasonLimit, Name: r.request.Name, Err: memory.ErrFull}
		}
	}
	return sc, nil
}

// hasMessages reports whether a body consists of length-prefixed messages: gRPC, gRPC-Web in its binary form, streams of
// Connect.
func hasMessages(contentType []string) bool {
	if len(contentType) != 1 {
		return false
	}
	kind, _, _ := strings.Cut(strings.ToLower(contentType[0]), ";")
	kind = strings.TrimSpace(kind)
	return kind == "application/grpc" || strings.HasPrefix(kind, "application/grpc+") ||
		kind == "application/grpc-web" || strings.HasPrefix(kind, "application/grpc-web+") ||
		strings.HasPrefix(kind, "application/connect+")
}

// end gives back what newScrubbing took.
func (sc *scrubbing) end() {
	if sc != nil && sc.usage != nil {
		sc.usage.Recodings.Leave()
		sc.holds.Close()
	}
}

// recodes reports whether the body is not as long as the server says.
func (sc *scrubbing) recodes() bool { return sc != nil && len(sc.codings) > 0 }

// relay moves a body.
func (sc *scrubbing) relay(dst scrub.Sink, src scrub.Source) error {
	var m scrub.Masker = scrub.NewStream(sc.set)
	if sc.messages {
		m = scrub.NewMessages(sc.set)
	}
	return scrub.Copy(dst, src, m, sc.codings, sc.holds.Shrink)
}

// valuesOf returns the values of a field of a head.
func valuesOf(r *h1.Response) func(string) []string { return valuesIn(r.Fields) }

func valuesIn(fields []h1.Field) func(string) []string {
	return func(name string) (values []string) {
		for i := range fields {
			if f := &fields[i]; strings.EqualFold(string(f.Name), name) {
				values = append(values, string(f.Value))
			}
		}
		return values
	}
}

// maskHead masks a head in the buffer where it lies. Fields that frame the message keep what they say: it was parsed.
func maskHead(set *scrub.Set, r *h1.Response) {
	if set == nil {
		return
	}
	set.Mask(r.Reason)
	maskFields(set, r.Fields)
}

func maskFields(set *scrub.Set, fields []h1.Field) {
	for i := range fields {
		f := &fields[i]
		switch f.Kind {
		case h1.Other, h1.AltSvc, h1.Trailer:
			set.Mask(f.Name)
			set.Mask(f.Value)
		}
	}
}

// maskHeader masks the fields of HTTP/2. Names are sent in lower case, so that is how they are looked at.
func maskHeader(set *scrub.Set, h http.Header) {
	if set == nil {
		return
	}
	for name, values := range h {
		for i, v := range values {
			if name != "Content-Length" {
				values[i] = set.MaskString(v)
			}
		}
		lower := strings.ToLower(name)
		if masked := set.MaskString(lower); masked != lower {
			delete(h, name)
			h[masked] = values
		}
	}
}

// withoutLength takes Content-Length out of a head whose body will have another, or would have if it had one.
func withoutLength(r *h1.Response) {
	kept := r.Fields[:0]
	for _, f := range r.Fields {
		if f.Kind != h1.ContentLength {
			kept = append(kept, f)
		}
	}
	r.Fields = kept
}
