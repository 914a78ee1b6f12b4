package exchange

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/internal/memory"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/proxy/recovery"
	"boxgate/proxy/scrub"
	"boxgate/proxy/usage"
	"boxgate/relay/h1"
	"boxgate/rule"
	"boxgate/rule/placeholder"
)

// This part masks the secrets of a rule in responses of its hosts, and refuses responses that cannot be scrubbed.

// Scrubbing is the scrubbing of one response. A nil Scrubbing passes everything unchanged.
type Scrubbing struct {
	Set      *scrub.Set
	codings  []string     // of the body; may be nil
	Resized  bool         // Content-Length is invalid: the body is recoded, or would be if this response had one
	messages bool         // the body consists of gRPC messages
	usage    *usage.Box   // counts this recoding in Recodings; may be nil
	claim    memory.Claim // for the recoding
}

// MaxRecodings is the number of compressed responses of a box that are recoded at the same time, memory permitting: each
// takes up to 12 MiB.
const MaxRecodings = 64

var (
	errRecodings = error(problem.Fixed("the box has reached its limit of compressed responses scrubbed at a time"))

	errPart     = error(problem.Fixed("the server sent a partial response although no range was requested"))
	errMessages = error(problem.Fixed("the response's messages are compressed"))
	errExtended = error(problem.Fixed("the response uses a WebSocket extension that was not offered"))
)

// NewScrubbing inspects the head of a final response. field returns the values of a field; bodiless is set if there is no
// body regardless of the fields. Errors are of type *[problem.Upstream]; after success, [Scrubbing.End] must follow.
func (s *Session) NewScrubbing(r *Decision, status int, bodiless bool, field func(string) []string) (*Scrubbing, error) {
	sc := &Scrubbing{Set: r.Scrub}
	refused := func(why error) (*Scrubbing, error) {
		return nil, &problem.Upstream{Reason: name.ReasonUnscrubbable, Name: r.Request.Name, Err: why}
	}
	if r.errorsOnly && status < http.StatusBadRequest {
		return &Scrubbing{}, nil
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
		without := status == http.StatusNotModified || r.Request.Method == http.MethodHead
		sc.Resized = without && (err != nil || len(codings) > 0)
		return sc, nil
	}
	if err != nil {
		return refused(err)
	}
	sc.messages = hasMessages(field("Content-Type"))
	if len(codings) > 0 {
		if !s.Usage.Recodings.Enter(MaxRecodings) {
			return nil, &problem.Upstream{Reason: name.ReasonLimit, Name: r.Request.Name,
				Err: errRecodings}
		}
		sc.codings, sc.Resized, sc.usage = codings, true, s.Usage
		sc.claim.Open(s.Usage.Memory, memory.Recoding)
		if !sc.claim.Grow(scrub.Memory(codings)) {
			sc.End()
			return nil, &problem.Upstream{Reason: name.ReasonLimit, Name: r.Request.Name, Err: memory.ErrFull}
		}
	}
	return sc, nil
}

// hasMessages reports whether a body consists of length-prefixed messages: gRPC, binary gRPC-Web, or Connect streams.
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

// End releases the resources that [Session.NewScrubbing] reserved.
func (sc *Scrubbing) End() {
	if sc != nil && sc.usage != nil {
		sc.usage.Recodings.Leave()
		sc.claim.Close()
	}
}

// Recodes reports whether the length of the body differs from the server's Content-Length.
func (sc *Scrubbing) Recodes() bool { return sc != nil && len(sc.codings) > 0 }

// Relay copies a body from src to dst, scrubbed, until ctx ends.
func (sc *Scrubbing) Relay(ctx context.Context, dst scrub.Sink, src scrub.Source) error {
	var m scrub.Masker = scrub.NewStream(sc.Set)
	if sc.messages {
		m = scrub.NewMessages(sc.Set)
	}
	return scrub.Copy(dst, src, m, sc.codings, sc.claim.Shrink, ctx.Err)
}

// MaskHead masks a head in place. Framing fields are left unchanged: they have been parsed.
func MaskHead(set *scrub.Set, r *h1.Response) {
	if set == nil {
		return
	}
	set.Mask(r.Reason)
	MaskFields(set, r.Fields)
}

// MaskFields masks fields in place.
func MaskFields(set *scrub.Set, fields []h1.Field) {
	for i := range fields {
		f := &fields[i]
		switch f.Kind {
		case h1.Other, h1.AltSvc, h1.Trailer:
			set.Mask(f.Name)
			set.Mask(f.Value)
		}
	}
}

// MaskHTTP2 masks HTTP/2 fields in place.
func MaskHTTP2(set *scrub.Set, fields []hpack.HeaderField) {
	if set == nil {
		return
	}
	for i := range fields {
		if f := &fields[i]; f.Name != "content-length" {
			f.Name, f.Value = set.MaskString(f.Name), set.MaskString(f.Value)
		}
	}
}

// HTTP2Values returns a lookup function for the values in fields of HTTP/2.
func HTTP2Values(fields []hpack.HeaderField) func(string) []string {
	return func(name string) (values []string) {
		for i := range fields {
			if f := &fields[i]; strings.EqualFold(f.Name, name) {
				values = append(values, f.Value)
			}
		}
		return values
	}
}

// WithoutLength removes Content-Length from a head whose body has, or would have, a different length.
func WithoutLength(r *h1.Response) {
	kept := r.Fields[:0]
	for _, f := range r.Fields {
		if f.Kind != h1.ContentLength {
			kept = append(kept, f)
		}
	}
	r.Fields = kept
}

// This part changes the heads of responses as the rule of their host requires.

// dropsField reports whether a field of a response is removed; the name is in lower case.
func (r *Decision) dropsField(name string) bool {
	return slices.ContainsFunc(r.header.OnRequests().Responses, func(h rule.ResponseHead) bool { return h.DropsResponseField(name) })
}

// ResponseFields returns the fields of a response's head, or trailers, to send to the client. It modifies the list.
func (r *Decision) ResponseFields(fields []h1.Field) []h1.Field {
	if len(r.header.OnRequests().Responses) == 0 {
		return fields
	}
	return slices.DeleteFunc(fields, func(f h1.Field) bool { return r.dropsField(strings.ToLower(string(f.Name))) })
}

// ResponseHTTP2 is [Decision.ResponseFields] for HTTP/2, where names are in lower case.
func (r *Decision) ResponseHTTP2(fields []hpack.HeaderField) []hpack.HeaderField {
	if len(r.header.OnRequests().Responses) == 0 {
		return fields
	}
	return slices.DeleteFunc(fields, func(f hpack.HeaderField) bool { return r.dropsField(f.Name) })
}

// SetsLogin reports whether a header of the rule is part of a connection-based login (NTLM, Negotiate).
func SetsLogin(set []rule.Field) bool {
	return slices.ContainsFunc(set, func(f rule.Field) bool { return !f.Remove && h1.IsLogin(f.Name, f.Value.Reveal()) })
}

// framed is a side of a WebSocket. The frames written to it are searched and changed.
type framed struct {
	io.Writer
	frames interface {
		// Append appends the changed frames in p to dst. Parts of frames wait for the rest.
		Append(dst, p []byte) ([]byte, error)
	}
	out []byte
}

// frameBuffer is the largest buffer kept between writes.
const frameBuffer = 16 << 10

// Write changes the frames in p and writes them.
func (m *framed) Write(p []byte) (int, error) {
	out, err := m.frames.Append(m.out[:0], p)
	if m.out = out; cap(out) > frameBuffer {
		m.out = nil
	}
	if len(out) > 0 {
		if _, err := m.Writer.Write(out); err != nil {
			return 0, err
		}
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Masking returns w, wrapped to mask the frames written to it if the rule requires that.
func (r *Decision) Masking(w io.Writer) io.Writer {
	if r.Scrub == nil || r.errorsOnly {
		return w
	}
	return &framed{Writer: w, frames: scrub.NewFrames(r.Scrub)}
}

// This part searches the data that a box with placeholders sends after the head of a request: bodies and WebSocket
// messages.

// Watch returns a searcher for the body of an allowed request with the given values of Content-Encoding. The caller closes
// it.
func (s *Session) Watch(r *Decision, encodings []string) (placeholder.Watch, *problem.Problem) {
	codings, err := scrub.ParseCodings(strings.Join(encodings, ","))
	if len(codings) == 0 || err != nil || !r.Policy.HasPlaceholders() { // other codings are searched undecoded
		return placeholder.NewWatch(r.Policy.HasPlaceholders()), nil
	}
	if !s.Usage.Recodings.Enter(MaxRecodings) {
		return placeholder.Watch{}, NoMemory()
	}
	holds := &memory.Claim{}
	holds.Open(s.Usage.Memory, memory.Recoding)
	free := func() { s.Usage.Recodings.Leave(); holds.Close() }
	if !holds.Grow(scrub.Memory(codings)) {
		free()
		return placeholder.Watch{}, NoMemory()
	}
	return placeholder.NewCodedWatch(codings, func(decode func()) {
		go func() {
			defer free()
			defer recovery.Panic(s.Core.Log, s.Box.ID, func() {})
			decode()
		}()
	}), nil
}

// Searched returns the server's side of a WebSocket, and a function to call when it has ended.
func (s *Session) Searched(ctx context.Context, r *Decision, w io.Writer) (searched io.Writer, end func()) {
	if !r.Policy.HasPlaceholders() {
		return w, func() {}
	}
	holds, frames := &memory.Claim{}, &placeholder.Frames{}
	holds.Open(s.Usage.Memory, memory.Buffers)
	frames.Memory = holds
	if r.header.OnRequests().Places.Has(rule.InWebSocket) {
		frames.Values = func(tokens []string) ([]string, error) {
			values, err := r.valuesOf(ctx, s, tokens, rule.InWebSocket)
			if err == nil && r.header.Scrub {
				r.maskAlso(s, values)
			}
			return values, err
		}
	}
	return &framed{Writer: w, frames: frames}, holds.Close
}

// WithoutExtensions removes the offer of WebSocket extensions from a request of a box with placeholders: compressed
// messages could not be searched.
func (r *Decision) WithoutExtensions(fields []h1.Field) []h1.Field {
	if !r.Policy.HasPlaceholders() {
		return fields
	}
	return slices.DeleteFunc(fields, func(f h1.Field) bool { return h1.IsVariant(f.Name, extensions) })
}

// WithoutExtensionsHTTP2 is [Decision.WithoutExtensions] for HTTP/2.
func (r *Decision) WithoutExtensionsHTTP2(fields []hpack.HeaderField) []hpack.HeaderField {
	if !r.Policy.HasPlaceholders() {
		return fields
	}
	return slices.DeleteFunc(fields, func(f hpack.HeaderField) bool { return h1.IsVariant(f.Name, extensions) })
}

const extensions = "Sec-WebSocket-Extensions"
