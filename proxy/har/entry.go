package har

import (
	"strings"
	"sync"
	"time"

	"boxgate/audit"
	"boxgate/internal/memory"
)

// entryCost is the memory of an entry without fields and bodies, in bytes; fieldCost that of a field without its text.
const (
	entryCost = 2 << 10
	fieldCost = 64
)

// Field is a header or trailer field.
type Field struct{ Name, Value string }

// Request is the head of a request, as the box sent it.
type Request struct {
	Version string // HTTP/1.1
	Method  string
	Scheme  string
	Host    string // authority
	Path    string // with the query
	Size    int    // of the head in bytes; -1: not known
	Upgrade bool   // asks for a WebSocket
	Fields  []Field
}

// Entry is one exchange. Its methods record what was sent, and ignore it after [Entry.Finish]. A nil Entry has no effect. Safe for
// concurrent use.
type Entry struct {
	capture *Capture
	began   time.Time
	most    int64 // memory of all entries of the capture

	mu       sync.Mutex
	claim    memory.Claim
	size     int  // of claim
	short    bool // memory was short: parts are missing
	finished bool
	request  Request
	sets     []string // headers that the gateway sets
	removes  []string // headers that the gateway removes
	tokens   []string // placeholders that the gateway replaces
	sent     time.Time
	upload   content

	answered time.Time
	status   int
	version  string
	fields   []Field
	trailers []Field
	download content
	own      bool // the response is the gateway's

	outcome audit.Event
	took    time.Duration
}

// content is the beginning of a body.
type content struct {
	kept    bool // the body is recorded
	data    []byte
	cut     bool // there is more
	blocked bool // it is a stream, which is not recorded
}

// lock locks the entry, unless it is nil or finished. If the capture has ended, it drops the entry.
func (e *Entry) lock() bool {
	if e == nil {
		return false
	}
	e.mu.Lock()
	if !e.finished && e.capture.hasEnded() {
		e.finished = true
		e.release()
	}
	if e.finished {
		e.mu.Unlock()
		return false
	}
	return true
}

// release drops the contents of an entry with their memory. The exchange may keep the entry until the next one on its connection.
func (e *Entry) release() {
	e.request, e.upload, e.download, e.fields, e.trailers = Request{}, content{}, content{}, nil, nil
	e.outcome = audit.Event{}
	e.capture.held.Add(-int64(e.size))
	e.claim.Close()
}

// grow reserves memory.
func (e *Entry) grow(n int) bool {
	if e.short || !e.claim.Grow(n) {
		e.short = true
		return false
	}
	if !e.capture.reserve(n, e.most) {
		e.claim.Shrink(n)
		e.short = true
		return false
	}
	e.size += n
	return true
}

// keep returns the fields for which there is memory.
func (e *Entry) keep(fields []Field) []Field {
	for i := range fields {
		if !e.grow(fieldCost + len(fields[i].Name) + len(fields[i].Value)) {
			return fields[:i]
		}
	}
	return fields
}

// Request records the head of the request.
func (e *Entry) Request(r Request) {
	if !e.lock() {
		return
	}
	defer e.mu.Unlock()
	if !e.grow(len(r.Method) + len(r.Host) + len(r.Path)) {
		return
	}
	r.Fields = e.keep(r.Fields)
	e.request = r
	e.upload.begin(e.capture.options.Bodies, r.Fields)
}

// RequestBody records the next part of the body of the request, as the box sent it.
func (e *Entry) RequestBody(part []byte) {
	if e.lock() {
		defer e.mu.Unlock()
		e.upload.add(e, part)
	}
}

// Sends records that the request is sent to a server.
func (e *Entry) Sends(at time.Time) {
	if e.lock() {
		defer e.mu.Unlock()
		e.sent = at
	}
}

// Changes records the names of the headers that the gateway sets and removes in the request, and the placeholders that it replaces.
func (e *Entry) Changes(sets, removes, tokens []string) {
	if e.lock() {
		defer e.mu.Unlock()
		e.sets, e.removes, e.tokens = sets, removes, tokens
	}
}

// Response records the head of the response. Only the first one counts.
func (e *Entry) Response(at time.Time, version string, status int, fields []Field) {
	if !e.lock() {
		return
	}
	defer e.mu.Unlock()
	if e.status != 0 {
		return
	}
	e.answered, e.version, e.status, e.fields = at, version, status, e.keep(fields)
	e.download.begin(e.capture.options.Bodies, e.fields)
}

// Own records a whole response of the gateway's own, unless another one has begun.
func (e *Entry) Own(at time.Time, version string, status int, fields []Field, body []byte) {
	if !e.lock() {
		return
	}
	e.own = e.status == 0
	begins := e.own
	e.mu.Unlock()
	if begins {
		e.Response(at, version, status, fields)
		e.ResponseBody(body)
	}
}

// ResponseBody records the next part of the body of the response.
func (e *Entry) ResponseBody(part []byte) {
	if e.lock() {
		defer e.mu.Unlock()
		e.download.add(e, part)
	}
}

// Trailers records the trailers of the response.
func (e *Entry) Trailers(fields []Field) {
	if e.lock() {
		defer e.mu.Unlock()
		e.trailers = e.keep(fields)
	}
}

// Discard drops the entry.
func (e *Entry) Discard() {
	if e.lock() {
		defer e.mu.Unlock()
		e.finished = true
		e.release()
	}
}

// Finish ends the entry with the decision about its exchange.
func (e *Entry) Finish(outcome *audit.Event) {
	if !e.lock() {
		return
	}
	e.finished, e.outcome, e.took = true, *outcome, time.Since(e.began)
	e.mu.Unlock()
	e.capture.add(e)
}

func (c *content) begin(most int, fields []Field) {
	c.blocked = isStream(value(fields, "Content-Type"))
	c.kept = most > 0 && !c.blocked
}

// add appends a part, up to the limit of the capture.
func (c *content) add(e *Entry, part []byte) {
	if !c.kept || len(part) == 0 || c.cut {
		return
	}
	fits := part[:min(len(part), e.capture.options.Bodies-len(c.data))]
	if more := len(c.data) + len(fits); more > cap(c.data) {
		grown := min(max(more, 2*cap(c.data)), e.capture.options.Bodies)
		if !e.grow(grown - cap(c.data)) {
			c.cut = true
			return
		}
		c.data = append(make([]byte, 0, grown), c.data...)
	}
	c.data = append(c.data, fits...)
	c.cut = len(fits) < len(part)
}

// isStream reports whether bodies of a type are streams, which are not recorded: server-sent events, and messages of gRPC, gRPC-Web and
// Connect.
func isStream(contentType string) bool {
	kind, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	kind = strings.TrimSpace(kind)
	return kind == "text/event-stream" || strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect+")
}

// value returns the value of the first field with a name.
func value(fields []Field, name string) string {
	for i := range fields {
		if strings.EqualFold(fields[i].Name, name) {
			return fields[i].Value
		}
	}
	return ""
}
