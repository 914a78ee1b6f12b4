package http2

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/h2/downstream"
)

// This file puts the streams of a client into the terms of net/http.

// overTLS marks requests whose :scheme is https.
var overTLS = &tls.ConnectionState{}

// requestBody is the body of a request. One goroutine reads it, another may close it.
type requestBody struct {
	s       *downstream.Stream
	expects bool        // the client waits for a 100
	trailer http.Header // of the request: the announced fields, filled in at the end
}

// newRequest returns the request of a stream, and whether its client waits for a 100 before it sends the body.
func newRequest(ctx context.Context, s *downstream.Stream) (r *http.Request, expects bool) {
	h := &s.Head
	r = (&http.Request{}).WithContext(ctx)
	r.Method, r.Host, r.RequestURI, r.ContentLength = h.Method, h.Authority, h.Path, h.Length
	r.Proto, r.ProtoMajor = "HTTP/2.0", 2
	if r.RequestURI == "" { // CONNECT
		r.RequestURI = h.Authority
	}
	if h.Scheme == "https" {
		r.TLS = overTLS
	}
	r.Header = headerOf(h.Fields)
	if h.Protocol != "" {
		r.Header[":protocol"] = []string{h.Protocol}
	}
	if crumbs := r.Header["Cookie"]; len(crumbs) > 1 { // RFC 9113, 8.2.3
		r.Header["Cookie"] = []string{strings.Join(crumbs, "; ")}
	}
	if expects = httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue"); expects {
		delete(r.Header, "Expect")
	}
	r.Trailer = announced(r.Header["Trailer"])
	delete(r.Header, "Trailer")
	delete(r.Header, "Host") // it is the authority
	r.Body = &requestBody{s: s, expects: expects, trailer: r.Trailer}
	return r, expects
}

func headerOf(fields []hpack.HeaderField) http.Header {
	h := make(http.Header, len(fields)+1)
	values := make([]string, len(fields))
	for i, f := range fields {
		name := http.CanonicalHeaderKey(f.Name)
		if have, ok := h[name]; ok {
			h[name] = append(have, f.Value)
			continue
		}
		values[i] = f.Value
		h[name] = values[i : i+1 : i+1]
	}
	return h
}

// announced returns the fields that Trailer announces, without values.
func announced(lists []string) (trailer http.Header) {
	for _, list := range lists {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			switch name {
			case "", "Transfer-Encoding", "Trailer", "Content-Length":
				continue
			}
			if trailer == nil {
				trailer = http.Header{}
			}
			trailer[name] = nil
		}
	}
	return trailer
}

// Read reads the body. The first read asks a client that waits for a 100 to send it.
func (b *requestBody) Read(p []byte) (int, error) {
	if b.expects {
		b.expects = false
		if b.s.WriteHeader(http.StatusContinue, nil, false) == nil { // else it is answered
			_ = b.s.Flush()
		}
	}
	n, err := b.s.Read(p)
	if errors.Is(err, io.EOF) && b.trailer != nil {
		for _, f := range b.s.Trailers() {
			name := http.CanonicalHeaderKey(f.Name)
			if values, ok := b.trailer[name]; ok {
				b.trailer[name] = append(values, f.Value)
			}
		}
		b.trailer = nil
	}
	return n, err
}

// Close drops the rest.
func (b *requestBody) Close() error {
	b.s.CloseRead()
	return nil
}

// response writes the response of a stream. Its head is sent with the first content, by FlushError or at the end.
type response struct {
	s      *downstream.Stream
	header http.Header
	fields []hpack.HeaderField // of the final head
	status int                 // of the final head; 0: there is none yet
	sent   bool                // the final head
	empty  bool                // there is no content
	left   int64               // content that may still be written; -1: any
}

var errTooLong = errors.New("the response is longer than its Content-Length")

// Header returns the fields of the next head. Those with [http.TrailerPrefix] are sent at the end.
func (w *response) Header() http.Header { return w.header }

// WriteHeader sends an interim head, or sets the final one.
func (w *response) WriteHeader(status int) {
	switch {
	case w.status != 0:
	case status < 200:
		if w.s.WriteHeader(status, fieldsOf(w.header, true), false) == nil {
			_ = w.s.Flush()
		}
	default:
		w.status, w.fields, w.left = status, fieldsOf(w.header, false), -1
		w.empty = w.s.Method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified
		if n, err := strconv.ParseUint(w.header.Get("Content-Length"), 10, 63); err == nil {
			w.left = int64(n)
		}
	}
}

// Write sends content.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.s.Method == http.MethodHead:
		return len(p), nil
	case w.empty:
		return 0, http.ErrBodyNotAllowed
	case w.left >= 0 && int64(len(p)) > w.left:
		return 0, errTooLong
	case w.left >= 0:
		w.left -= int64(len(p))
	}
	if err := w.sendHead(false); err != nil || len(p) == 0 {
		return 0, err
	}
	return w.s.Write(p)
}

func (w *response) sendHead(end bool) error {
	if w.sent {
		return nil
	}
	w.sent = true
	err := w.s.WriteHeader(w.status, w.fields, end)
	w.fields = nil
	return err
}

// FlushError sends what was written.
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if err := w.sendHead(w.empty); err != nil {
		return err
	}
	return w.s.Flush()
}

// finish ends the response. Without a head there is none to end: the stream is reset.
func (w *response) finish() {
	if w.status == 0 {
		return
	}
	trailers := trailersOf(w.header)
	if !w.sent && (w.empty || len(trailers) == 0) {
		_ = w.sendHead(true) // the client may have left
		return
	}
	if w.sendHead(false) == nil {
		_ = w.s.CloseWrite(trailers) // likewise
	}
}

// fieldsOf returns the fields of a head.
func fieldsOf(h http.Header, interim bool) []hpack.HeaderField {
	fields := make([]hpack.HeaderField, 0, len(h))
	for name, values := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) || name == "Transfer-Encoding" || name == "Connection" ||
			interim && name == "Content-Length" {
			continue
		}
		lower := lowerName(name)
		for _, v := range values {
			fields = append(fields, hpack.HeaderField{Name: lower, Value: v})
		}
	}
	return fields
}

// lowerName returns a name in small letters, as HTTP/2 has it. Names that most responses have need no memory.
func lowerName(name string) string {
	if lower, ok := lowerNames[name]; ok {
		return lower
	}
	return strings.ToLower(name)
}

var lowerNames = func() map[string]string {
	names := map[string]string{}
	for _, lower := range []string{
		"accept-ranges", "access-control-allow-origin", "age", "cache-control", "content-disposition", "content-encoding", "content-language",
		"content-length", "content-type", "date", "etag", "expires", "grpc-message", "grpc-status", "last-modified", "link", "location", "server",
		"set-cookie", "strict-transport-security", "trailer", "vary", "via", "x-content-type-options", "x-frame-options", "x-request-id",
	} {
		names[http.CanonicalHeaderKey(lower)] = lower
	}
	return names
}()

// trailersOf returns the trailer fields.
func trailersOf(h http.Header) (fields []hpack.HeaderField) {
	for name, values := range h {
		name, ok := strings.CutPrefix(name, http.TrailerPrefix)
		if !ok || !httpguts.ValidTrailerHeader(http.CanonicalHeaderKey(name)) {
			continue
		}
		lower := lowerName(name)
		for _, v := range values {
			fields = append(fields, hpack.HeaderField{Name: lower, Value: v})
		}
	}
	return fields
}
