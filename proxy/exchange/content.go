package exchange

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"boxgate/internal/memory"
	"boxgate/policy/content"
	"boxgate/policy/match"
	"boxgate/proxy/problem"
	"boxgate/proxy/scrub"
	"boxgate/rule/placeholder"
)

// This file reads the messages in the body of a request that request rules depend on.

const (
	flawSize    = "the body is larger than 1 MiB"
	flawCoding  = "the body has a content coding that the gateway does not decode, or several"
	flawDecoded = "the body is not valid in its content coding, or larger than 1 MiB when decoded"
	flawPlain   = "the body has a content coding, but is text without decoding too"
)

// contentFields are the fields that determine how a body is read.
var contentFields = match.NeedsOf("content-type", "content-encoding", "mcp-method", "mcp-name")

// Memory for reading messages: for each byte of JSON, and for each byte of a GraphQL document, whose number of tokens is bounded.
const (
	jsonMemory     = 12
	documentMemory = 128
	documentMost   = 2 << 20
)

// Unread reports whether the decision refuses only because a request rule depends on messages that have not been read. The caller
// reads the body, calls [Session.ReadMessages] and judges again.
func (r *Decision) Unread() bool { return r.Refused != nil && r.unread != 0 }

// Buffer returns a Rewriting for a body that is read before the request is judged, up to a byte more than [MaxBody]. Pass it to
// [Session.ReadMessages] and [Session.Rewrite].
func (s *Session) Buffer() *Rewriting {
	w := &Rewriting{s: s, buffered: true}
	w.claim.Open(s.Usage.Memory, memory.Buffers)
	return w
}

// Buffered reports whether the body was read before the request was judged.
func (w *Rewriting) Buffered() bool { return w != nil && w.buffered }

// ReadMessages adds to m the messages that the decision lacks. w is nil for a request without a body. A body that cannot be read
// makes the next judgement refuse, with the reason.
func (s *Session) ReadMessages(ctx context.Context, m *Message, r *Decision, w *Rewriting) (refused *problem.Problem) {
	head := content.Head{Method: m.Method, HasBody: w != nil, Upgrades: m.Websocket || m.Upgrades}
	_, head.Query, _ = strings.Cut(m.Path, "?")
	var encodings []string
	for _, f := range m.Head.Forwarded(&contentFields) {
		switch match.FoldHeader(f.Name) {
		case "content-type":
			head.Types = append(head.Types, f.Value)
		case "content-encoding":
			encodings = append(encodings, f.Value)
		case "mcp-method":
			head.MCPMethod = append(head.MCPMethod, f.Value)
		case "mcp-name":
			head.MCPName = append(head.MCPName, f.Value)
		}
	}
	if w == nil {
		return s.readMessages(m, r.unread, &head, nil)
	}
	plain, flaw, refused := s.plainBody(ctx, w, encodings)
	switch {
	case refused != nil:
		return refused
	case flaw != "":
		m.Content = m.Content.Unreadable(r.unread, flaw)
		return nil
	}
	return s.readMessages(m, r.unread, &head, plain)
}

// plainBody returns the body of a buffered request without its codings, given the values of Content-Encoding, or a flaw for which servers could
// read it differently.
func (s *Session) plainBody(ctx context.Context, w *Rewriting, encodings []string) (plain []byte, flaw string, refused *problem.Problem) {
	codings, err := scrub.ParseCodings(strings.Join(encodings, ","))
	switch {
	case !w.Whole:
		return nil, w.flawSize(), nil
	case err != nil || len(encodings) > 1 || len(codings) > 1 || len(codings) == 1 && codings[0] == "deflate" && scrub.IsTwoDeflates(w.Body, w.most()):
		return nil, flawCoding, nil
	case len(codings) > 0 && utf8.Valid(w.Body):
		// Many servers ignore Content-Encoding. Streams of raw deflate and brotli can be messages in either form.
		return nil, flawPlain, nil
	}
	plain, fits, err := s.decodedBody(ctx, w, codings)
	switch {
	case errors.Is(err, memory.ErrFull):
		return nil, "", NoMemory()
	case err != nil || !fits:
		return nil, flawDecoded, nil
	}
	return plain, "", nil
}

// readMessages adds messages of a kind to m, given the decoded body, within the memory limit of the box.
func (s *Session) readMessages(m *Message, kind content.Kind, head *content.Head, body []byte) (refused *problem.Problem) {
	var claim memory.Claim
	claim.Open(s.Usage.Memory, memory.Buffers)
	defer claim.Close()
	if n := len(head.Query) + len(body); !claim.Grow(jsonMemory*n + min(documentMemory*n, documentMost)) {
		return NoMemory()
	}
	m.Content = m.Content.With(kind, head, body)
	return nil
}

// decodedBody returns the decoded body of a buffered request. fits is false if it is too large.
func (s *Session) decodedBody(ctx context.Context, w *Rewriting, codings []string) (plain []byte, fits bool, err error) {
	if len(codings) == 0 {
		return w.Body, true, nil
	}
	if !s.Usage.Recodings.Enter(MaxRecodings) {
		return nil, false, memory.ErrFull
	}
	defer s.Usage.Recodings.Leave()
	most := scrub.Memory(codings) + 2*MaxBody
	if !w.claim.Grow(most) {
		return nil, false, memory.ErrFull
	}
	defer w.claim.Shrink(most)
	limit := placeholder.Expansion
	limit.Stop = ctx.Err
	return scrub.Decoded(codings, w.Body, MaxBody, limit)
}
