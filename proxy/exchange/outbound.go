package exchange

import (
	"context"
	"io"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"

	"boxgate/internal/memory"
	"boxgate/proxy/problem"
	"boxgate/proxy/recovery"
	"boxgate/proxy/scrub"
	"boxgate/relay/h1"
	"boxgate/rule"
	"boxgate/rule/placeholder"
)

// This file searches the data that a box with placeholders sends after the head of a request: bodies and WebSocket
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
