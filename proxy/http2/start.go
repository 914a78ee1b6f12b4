package http2

import (
	"net/http"
	"net/netip"
	"runtime"
	"strconv"

	"golang.org/x/net/http2/hpack"

	"boxgate/policy/match"
	"boxgate/proxy/exchange"
	"boxgate/proxy/header"
	"boxgate/proxy/origin"
	"boxgate/proxy/recovery"
	"boxgate/relay/h1"
	"boxgate/relay/h2"
	"boxgate/relay/h2/downstream"
	"boxgate/relay/h2/upstream"
	"boxgate/rule/placeholder"
)

// This part serves requests without a goroutine per request: the goroutine that reads the client's connection judges and
// forwards a request, and the goroutine that reads the server's connection relays the response. Neither may wait, so a request
// that needs more than the common steps continues in a goroutine.

const (
	bodyNow = 16 << 10 // the most content of a request that is sent without a goroutine
	headNow = 4 << 10  // the largest head or trailers that are relayed without a goroutine
)

// early is the part of a request that was done without a goroutine.
type early struct {
	up     *origin.H2Conn   // nil until there is one
	stream *upstream.Stream // nil until the request is sent
	source *uploadSource    // nil if the request has no body, or it was not examined
	head   upstream.Head    // of the response, if a goroutine must relay it
	begun  bool             // the head has arrived
}

// releaseConn returns the connection to its pool.
func (e *early) releaseConn() {
	if e.up == nil {
		return
	}
	if e.stream != nil {
		e.stream.Close()
	}
	e.up.Leave(e.stream != nil)
	e.up, e.stream = nil, nil
}

// start begins a request in the goroutine that reads the client's connection.
func (c *conn) start(client *downstream.Stream, b *h2.Batch) {
	st := c.open(client)
	client.Take(st)
	defer st.contain(client)
	if !st.send(b) {
		client.Resume()
	}
}

// contain ends a request after a panic. It must be deferred directly.
func (st *stream) contain(client *downstream.Stream) {
	if v := recover(); v != nil {
		st.over(client, v)
	}
}

// over ends a request that no goroutine serves.
func (st *stream) over(client *downstream.Stream, v any) {
	st.w.now = true
	from := st.early.stream
	st.conclude(v)
	client.Done()
	st.recycle()
	if from != nil {
		from.Forget()
	}
}

// send judges a request that has arrived whole and sends it, if that is possible without waiting. Otherwise it reports false,
// and st.next continues the request. Once the request is sent, [stream.Arrived] owns st.
func (st *stream) send(b *h2.Batch) bool {
	if n, whole := st.client.Whole(); !whole || n > bodyNow || st.expects || st.isWebSocket() || st.x.Captured() {
		return false
	}
	if st.admit(); st.denial != nil {
		st.next = (*stream).deny
		return false
	}
	if st.next = (*stream).decide; !st.judgeNow() {
		return false
	}
	if st.isCoded() {
		return false
	}
	st.early.up = st.s.Core.Origins.Shared(st.s.Origin, st.decision.Target(st.s))
	if !st.depart() {
		st.early.releaseConn()
		return false
	}
	st.watch = placeholder.NewWatch(st.decision.Policy.HasPlaceholders())
	if st.next = (*stream).forward; st.early.up != nil && !st.logsIn() && st.sendOn(st.early.up, b) {
		return true
	}
	st.early.releaseConn()
	return false
}

// judgeNow is judge for a request that is allowed, if the decision takes no waiting. Otherwise it reports false.
func (st *stream) judgeNow() bool {
	m := st.message()
	if !st.s.JudgeNow(st.c.ctx, &m, &st.decision) {
		return false
	}
	if st.judgeHead(); st.decision.Refused != nil {
		return false
	}
	st.x.Judged(&m, &st.decision)
	return true
}

// depart begins the flight of an allowed request, with the address of the connection if there is one. If it reports false,
// the request must be judged again.
func (st *stream) depart() bool {
	if st.early.up == nil {
		st.setFlight(netip.Addr{})
	} else if st.goesTo(st.early.up) != nil {
		return false
	}
	return st.confirm()
}

// sendOn sends an allowed request on a connection, and reports whether that was possible without waiting.
func (st *stream) sendOn(up *origin.H2Conn, b *h2.Batch) bool {
	var content []byte
	if st.length != 0 {
		st.early.source = st.newUploadSource()
		var trailers []hpack.HeaderField
		var known bool
		if content, trailers, known = st.early.source.known(); !known || len(trailers) > 0 || st.early.source.inspect() != nil {
			return false
		}
	}
	client, to := st.client, &upstream.Stream{}
	st.early.stream = to
	fields := st.requestFields()
	if !up.Client.Begin(to, fields, content, st, b) {
		runtime.Gosched() // the goroutine that writes to the server gets a chance to make room
		if !up.Client.Begin(to, fields, content, st, b) {
			st.early.stream = nil
			return false
		}
	}
	await(client, to)
	return true
}

// await continues the request in a goroutine if its client leaves or the request is cut while it has no goroutine.
func await(client *downstream.Stream, to *upstream.Stream) {
	if !client.Await(to) && to.Unwatch() {
		client.Resume()
	}
}

// Failed is called when the server's stream has failed.
func (st *stream) Failed(*upstream.Stream) { st.client.Resume() }

// Arrived relays the part of a response that has arrived, as far as possible without waiting.
func (st *stream) Arrived(from *upstream.Stream, b *h2.Batch) {
	client := st.client
	client.Delay(b)
	defer recovery.Panic(st.s.Core.Log, st.s.Box.ID, func() {}) // of what follows a panic: it must not end the gateway
	defer st.contain(client)
	for {
		whole, watch := st.passOn(from)
		switch {
		case whole:
			st.over(client, nil)
			return
		case !watch:
			client.Resume()
			return
		case from.Watch(st):
			await(client, from)
			return
		}
	}
}

// passOn relays the part of a response that has arrived. whole reports that the response is complete; watch, that the rest can
// be awaited without a goroutine.
func (st *stream) passOn(from *upstream.Stream) (whole, watch bool) {
	if st.client.Cancelled() {
		return false, false
	}
	if !st.early.begun {
		h, ok, watch := from.FinalHead()
		if !ok {
			return false, watch
		}
		if !st.takeHead(&h) {
			return false, false
		}
	}
	for {
		next := from.Peek()
		n := len(next.Content)
		if n > 0 && !st.writeNow(next.Content) {
			return false, false
		}
		st.x.Event.BytesIn += int64(n)
		if next.Last && st.closable(next.Trailers) {
			return true, false // closing the stream takes the content
		}
		if n > 0 {
			from.Took(n)
		}
		switch {
		case next.Last, n == 0 && !next.Watch:
			return false, false
		case n == 0:
			return false, st.writeNow(nil) && st.client.Flush() == nil
		}
	}
}

// writeNow relays content, after the head if that was not sent yet. If there is no room, it lets the goroutine that writes to
// the client run once.
func (st *stream) writeNow(content []byte) bool {
	if st.w.writeNow(content) {
		return true
	}
	runtime.Gosched()
	return st.w.writeNow(content)
}

// takeHead records the head of the response, and reports whether it can be relayed without waiting.
func (st *stream) takeHead(h *upstream.Head) bool {
	if st.early.begun = true; st.early.source != nil {
		st.early.source.forget()
	}
	size := header.SizeHTTP2(h.Fields)
	if size > headNow || !st.holds.Grow(header.SizeFactor*size) {
		st.early.head, st.next = *h, (*stream).relayHead
		return false
	}
	st.x.Event.Status = h.Status
	st.answer(h.Status, header.PassResponse(h.Fields, false))
	st.next = (*stream).relayRest
	return true
}

// closable reports whether a response whose content was relayed can be ended without waiting.
func (st *stream) closable(trailers []hpack.HeaderField) bool {
	if header.SizeHTTP2(trailers) > headNow {
		return false
	}
	st.setTrailers(trailers)
	if st.w.closable() {
		return true
	}
	runtime.Gosched()
	return st.w.closable()
}

// relayHead relays a response with its head, in a goroutine.
func (st *stream) relayHead() {
	st.early.stream.Attend(st.ctx)
	st.pass(&result{Stream: st.early.stream, Head: st.early.head})
}

// relayRest relays the rest of a response, in a goroutine.
func (st *stream) relayRest() {
	st.early.stream.Attend(st.ctx)
	st.finish(st.early.stream)
}

// begin takes the head of the request.
func (st *stream) begin() {
	h := &st.client.Head
	st.fields, st.target, st.length = h.Fields, h.Path, h.Length
	if st.target == "" { // CONNECT
		st.target = h.Authority
	}
	for i := range st.fields {
		if f := &st.fields[i]; f.Name == "expect" && h1.Lists([]byte(f.Value), "100-continue") {
			st.expects = true
		}
	}
}

// message returns the judge's input. An expectation is handled by the gateway from here on.
func (st *stream) message() exchange.Message {
	h := &st.client.Head
	scheme := "https"
	if h.Scheme != "https" {
		scheme = "http"
	}
	return exchange.Message{
		Method: h.Method, Authority: h.Authority, Scheme: scheme, Path: st.target, Websocket: st.isWebSocket(),
		Tokens: placeholder.InHTTP2Request(st.fields, st.target, h.Method, h.Authority, h.Protocol), Head: st,
	}
}

// version is the version of requests and responses as HTTP archives have it.
const version = "HTTP/2"

// capture records the head of the request.
func (st *stream) capture() {
	h := &st.client.Head
	m := exchange.Message{Method: h.Method, Authority: h.Authority, Path: st.target, Websocket: st.isWebSocket()}
	st.x.CaptureRequest(&m, version, -1, exchange.CapturedHTTP2(st.fields))
}

// Forwarded implements [exchange.Head].
func (st *stream) Forwarded(needs *match.Needs) []match.Field {
	return header.WantedHTTP2(st.fields, needs)
}

func (st *stream) isWebSocket() bool {
	return st.client.Method == http.MethodConnect && st.client.Protocol == "websocket"
}

// headSize returns the approximate length of the request's head in HTTP/1.1.
func (st *stream) headSize() int {
	h := &st.client.Head
	return len(h.Method) + len(st.target) + len(h.Authority) + 32 + len(h.Protocol) + header.SizeHTTP2(st.fields)
}

// wellFormed validates the request by the rules of the HTTP/1.1 parser, so that it means the same on every path.
func (st *stream) wellFormed() bool {
	h := &st.client.Head
	if !h1.ValidMethod(h.Method) || !h1.ValidTarget(st.target) || !st.fieldsWellFormed() {
		return false
	}
	if st.target == "*" && h.Method != http.MethodOptions {
		return false
	}
	return h.Protocol == "" || h.Method == http.MethodConnect // RFC 8441, 4
}

// lines returns the number of fields that the request has in HTTP/1.1, where cookies are one (RFC 9113, 8.2.3).
func (st *stream) lines() int {
	lines, cookies := 0, 0
	for i := range st.fields {
		if st.fields[i].Name == "cookie" {
			cookies = 1
		} else {
			lines++
		}
	}
	return lines + cookies
}

// fieldsWellFormed validates the fields, except for their number.
func (st *stream) fieldsWellFormed() bool {
	lengths := 0
	for i := range st.fields {
		f := &st.fields[i]
		if !h1.ValidField(f.Name, f.Value) {
			return false
		}
		if f.Name == "content-length" { // RFC 9113, 8.1.1: it must match the body
			if lengths++; lengths > 1 || f.Value != strconv.FormatInt(st.client.Length, 10) {
				return false
			}
		}
	}
	return true
}

// requestFields returns the head of the request for an upstream that speaks HTTP/2: the path byte for byte, the box's
// fields without any variant of a header that is set, then the headers that are set.
func (st *stream) requestFields() []hpack.HeaderField {
	h, set := &st.client.Head, st.decision.Set
	authority, target := st.sentTo()
	out := append(st.sent[:0],
		hpack.HeaderField{Name: ":method", Value: h.Method}, hpack.HeaderField{Name: ":scheme", Value: "https"},
		hpack.HeaderField{Name: ":authority", Value: authority}, hpack.HeaderField{Name: ":path", Value: target})
	out = header.PassRequest(out, st.fields, set, st.length != 0)
	if n := st.length; n > 0 || n == 0 && expectsLength(h.Method) {
		out = append(out, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(n, 10)})
	}
	if st.expects {
		out = append(out, hpack.HeaderField{Name: "expect", Value: "100-continue"})
	}
	for i := range set {
		if set[i].Remove {
			continue
		}
		out = append(out, hpack.HeaderField{Name: set[i].Name, Value: set[i].Value.Reveal(), Sensitive: true})
	}
	st.sent = out
	return out
}

// sentTo returns the authority and the target of the forwarded request.
func (st *stream) sentTo() (authority, target string) {
	if via := st.decision.Via; via != nil {
		return via.Authority, via.Target
	}
	return st.client.Authority, st.target
}

// expectsLength reports whether servers expect a length in a request without content (RFC 9110, 8.6).
func expectsLength(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
}

// Read reads the body of the request. The first read sends 100 to a client that waits for it.
func (st *stream) Read(p []byte) (int, error) {
	if st.expects && st.asked.CompareAndSwap(false, true) {
		st.client.Continue() // unless it is answered
	}
	n, err := st.client.Read(p)
	st.x.CaptureUpload(p[:n])
	return n, err
}
