package exchange

import (
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"

	"boxgate/proxy/har"
	"boxgate/proxy/header"
	"boxgate/proxy/scrub"
	"boxgate/relay/h1"
	"boxgate/rule"
)

// This part records requests for the capture of their box. Without a capture, each method is one comparison.

// newEntry begins the entry of an exchange; nil without a capture.
func (s *Session) newEntry(at time.Time) *har.Entry {
	c := s.Usage.Capture.Load()
	if c == nil {
		return nil
	}
	return c.Begin(s.Usage.Memory, at)
}

// Captured reports whether the exchange is recorded.
func (x *Exchange) Captured() bool { return x.entry != nil }

// CaptureRequest records the head of the request before anything in it is replaced. fields are as the box sent them; size is the
// length of the head in bytes, -1 if it is not known.
func (x *Exchange) CaptureRequest(m *Message, version string, size int, fields []har.Field) {
	if x.entry == nil {
		return
	}
	r := har.Request{
		Version: version, Method: m.Method, Scheme: "http", Host: m.Authority, Path: m.Path, Size: size, Upgrade: m.Upgrades || m.Websocket, Fields: fields,
	}
	if x.s.Secure {
		r.Scheme = "https"
	}
	x.entry.Request(r)
}

// CaptureUpload records the next part of the body of the request, as the box sent it.
func (x *Exchange) CaptureUpload(part []byte) { x.entry.RequestBody(part) }

// CaptureResponse records the head of the response, as the box gets it.
func (x *Exchange) CaptureResponse(version string, status int, fields []har.Field) {
	x.entry.Response(time.Now(), version, status, fields)
}

// CaptureOwn records a whole response of the gateway's own.
func (x *Exchange) CaptureOwn(version string, status int, fields []har.Field, body []byte) {
	x.entry.Own(time.Now(), version, status, fields, body)
}

// Download takes the next part of the body of the response, as the box gets it, for the capture and the meter.
func (x *Exchange) Download(part []byte) {
	x.entry.ResponseBody(part)
	if x.meter != nil {
		x.meter.feed(part)
	}
}

// CaptureTrailers records the trailers of the response.
func (x *Exchange) CaptureTrailers(fields []har.Field) { x.entry.Trailers(fields) }

// Uncaptured drops the record of an exchange with the gateway itself.
func (x *Exchange) Uncaptured() {
	x.entry.Discard()
	x.entry = nil
}

// noteSent records when the request is sent.
func (x *Exchange) noteSent() {
	if x.entry != nil {
		x.entry.Sends(time.Now())
	}
}

// noteChanges records the names of the headers that the gateway changes.
func (x *Exchange) noteChanges(r *Decision) {
	if x.entry == nil {
		return
	}
	var sets, removes, tokens []string
	for i := range r.Set {
		if f := &r.Set[i]; f.Remove {
			removes = append(removes, f.Name)
		} else {
			sets = append(sets, f.Name)
		}
	}
	for i := range r.Swaps {
		tokens = append(tokens, r.Swaps[i].Token)
	}
	x.entry.Changes(sets, removes, tokens)
}

// CapturedFields returns the fields of a head over HTTP/1.x.
func CapturedFields(fields []h1.Field) []har.Field {
	out := make([]har.Field, 0, len(fields))
	for i := range fields {
		out = append(out, har.Field{Name: string(fields[i].Name), Value: string(fields[i].Value)})
	}
	return out
}

// CapturedResponse returns the fields of a response over HTTP/1.x that the box gets, without fields of the connection.
func CapturedResponse(r *h1.Response) []har.Field {
	out := make([]har.Field, 0, len(r.Fields))
	for i := range r.Fields {
		f := &r.Fields[i]
		switch f.Kind {
		case h1.Other, h1.AltSvc, h1.ContentLength, h1.Trailer:
			if !r.Named(f.Name) && header.PassesResponse(f) {
				out = append(out, har.Field{Name: string(f.Name), Value: string(f.Value)})
			}
		}
	}
	return out
}

// CapturedHTTP2 is [CapturedFields] for HTTP/2.
func CapturedHTTP2(fields []hpack.HeaderField) []har.Field {
	out := make([]har.Field, 0, len(fields))
	for i := range fields {
		out = append(out, har.Field{Name: fields[i].Name, Value: fields[i].Value})
	}
	return out
}

// minSignature is the length of the shortest signature or token that is masked. Dates and names are shorter.
const minSignature = 20

// maskCaptured passes the secrets of an allowed request to the capture, whether or not its response is scrubbed.
func (r *Decision) maskCaptured() {
	if r.capture == nil || r.Refused != nil {
		return
	}
	r.capture.Mask(r.secrets())
	for i := range r.Set[min(len(r.Set), r.ownFields):] {
		f := &r.Set[r.ownFields+i]
		if v := f.Value.Reveal(); len(v) >= minSignature && !r.introduces(f) {
			r.capture.Mask(signatureTexts(v))
		}
	}
}

// signatureTexts returns the texts to mask for a signature. Of Authorization for AWS they are its values, which its servers reflect one
// by one when they refuse a signature.
func signatureTexts(value string) (texts []string) {
	if !strings.HasPrefix(value, "AWS4-") {
		return scrub.Texts(value)
	}
	for part := range strings.SplitSeq(value, ",") {
		if _, v, _ := strings.Cut(part, "="); len(v) >= minSignature {
			texts = append(texts, v)
		}
	}
	return texts
}

// introduces reports whether a header describes the request to the proxy that it is sent to.
func (r *Decision) introduces(f *rule.Field) bool {
	if r.Via == nil {
		return false
	}
	for _, i := range r.Via.introduction {
		if i.Name == f.Name {
			return true
		}
	}
	return false
}

// maskCaptured passes secrets that are sent in a body or a message to the capture of the box.
func (s *Session) maskCaptured(values []string) {
	c := s.Usage.Capture.Load()
	if c == nil {
		return
	}
	for _, v := range values {
		c.Mask(scrub.Texts(v))
	}
}
