package exchange

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"boxgate/internal/memory"
	"boxgate/llm"
	"boxgate/llm/wire"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/proxy/recovery"
	"boxgate/proxy/scrub"
	"boxgate/rule"
)

// This file meters requests to model APIs. Before a request is sent, the most that it may cost is reserved; the response is read as it
// passes; the end of the exchange settles. A request that cannot be read is refused: its cost would be unknown.

// MaxMetered is the largest body of a request that is metered, in bytes. It is the limit of the vendors' own.
const MaxMetered = 32 << 20

const (
	flawMetered = "the body is larger than 32 MiB"
	flawType    = "its Content-Type is not that of JSON in UTF-8"
)

// flawSize returns the flaw of a body that was not read to its end.
func (w *Rewriting) flawSize() string {
	if w.asks {
		return flawMetered
	}
	return flawSize
}

// ReadsResponse reports whether the body of the response is read: to mask secrets, or to count tokens.
func (r *Decision) ReadsResponse() bool { return r.Scrub != nil || r.header.OnRequests().Meter != nil }

// Details of refusals. They are for the client, as are the flaws of package wire.
const (
	noSocket   = "WebSockets are not open to this box on this host: their tokens could not be counted. Use requests over HTTP."
	noEndpoint = "This path is not open to this box: its tokens could not be counted."
	noMeter    = "The gateway cannot count the tokens of the request."
)

// beginMeter decides whether the request asks a model, so that its body must be read. If refused is not nil, the decision refuses.
func (w *Rewriting) beginMeter() (refused *problem.Problem) {
	meter := w.r.header.OnRequests().Meter
	if meter == nil {
		return nil
	}
	if w.Upgrades {
		return w.refuseCall(meter, http.StatusForbidden, name.ReasonModelDenied, noSocket, nil)
	}
	if w.Length == 0 {
		return nil // it asks no model
	}
	path, _, _ := strings.Cut(w.Target, "?")
	switch wire.EndpointOf(meter.Vendor(), path) {
	case wire.Free:
	case wire.Asks:
		w.asks = true
	default:
		return w.refuseCall(meter, http.StatusForbidden, name.ReasonModelDenied, noEndpoint, nil)
	}
	return nil
}

// refuseCall makes the decision refuse a request to a model, in the form of its vendor.
func (w *Rewriting) refuseCall(meter rule.Metered, status int, reason name.Reason, detail string, err error) *problem.Problem {
	r := w.r
	if err == nil {
		err = errors.New(detail)
	}
	r.Set, r.Swaps, r.err, r.rule, r.Reason = nil, nil, err, r.header.Pattern.String(), reason
	r.Refused = &problem.Problem{
		Status: status, Reason: reason, Detail: detail, Rule: r.rule, Host: r.Request.Name.String(),
		Own: wire.Refusal(meter.Vendor(), status, string(reason), "boxgate: "+detail), Fields: wire.RefusalFields(meter.Vendor(), status),
	}
	return r.Refused
}

// Reserve reserves the most that a request to a model may cost, if its rule meters. It must be called last before the request is sent, once. If
// refused is not nil, the decision refuses.
func (x *Exchange) Reserve(ctx context.Context, r *Decision, w *Rewriting) (refused *problem.Problem) {
	meter := r.header.OnRequests().Meter
	if meter == nil || !w.asks || w.Whole && len(w.Body) == 0 {
		return nil
	}
	asked, refused := w.readCall(ctx, meter)
	if refused != nil {
		return refused
	}
	x.Event.Messages = "model " + asked.Model
	for _, model := range asked.Models {
		if !meter.AllowsModel(model) {
			return w.refuseCall(meter, http.StatusForbidden, name.ReasonModelDenied, "The model "+model+" is not open to this box.", nil)
		}
	}
	if x.s.Core.Meter == nil {
		return w.refuseCall(meter, http.StatusForbidden, name.ReasonModelDenied, noMeter, nil)
	}
	held, err := x.s.Core.Meter.Reserve(string(x.s.Box.ID), r.header.Pattern.String(), asked.Call)
	if err != nil {
		return w.refuseBudget(meter, err)
	}
	x.meter = &metering{s: x.s, held: held, call: asked.Call}
	return nil
}

// readCall reads the request as it will be sent.
func (w *Rewriting) readCall(ctx context.Context, meter rule.Metered) (asked *wire.Asked, refused *problem.Problem) {
	var encodings, types []string
	for i := range w.Fields {
		switch f := &w.Fields[i]; {
		case strings.EqualFold(f.Name, "Content-Type"):
			types = append(types, f.Value)
		case strings.EqualFold(f.Name, "Content-Encoding"):
			encodings = append(encodings, f.Value)
		case strings.EqualFold(f.Name, "X-Goog-FieldMask") && meter.Vendor() == llm.Google:
			return nil, w.refuseUnread(meter, wire.ErrQuery.Error())
		}
	}
	if !isJSON(types) {
		return nil, w.refuseUnread(meter, flawType)
	}
	body, flaw, full := w.s.plainBody(ctx, w, encodings)
	switch {
	case full != nil:
		w.r.Refused, w.r.Reason = full, full.Reason
		return nil, full
	case flaw != "":
		return nil, w.refuseUnread(meter, flaw)
	}
	path, query, _ := strings.Cut(w.Target, "?")
	asked, err := wire.ReadCall(meter.Vendor(), path, query, body)
	if err != nil {
		return nil, w.refuseUnread(meter, err.Error())
	}
	return asked, nil
}

// isJSON reports whether servers read a body with these values of Content-Type as JSON in UTF-8. Most do so for plain text, and without a
// type. A form, or protocol buffers at Google, may contain another request in the bytes of one in JSON.
func isJSON(types []string) bool {
	if len(types) != 1 {
		return len(types) == 0
	}
	kind, parameters, err := mime.ParseMediaType(types[0])
	if charset, has := parameters["charset"]; err != nil || has && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "utf8") {
		return false
	}
	return kind == "application/json" || strings.HasSuffix(kind, "+json") || kind == "text/json" || kind == "text/plain"
}

// refuseUnread refuses a request that cannot be read.
func (w *Rewriting) refuseUnread(meter rule.Metered, flaw string) *problem.Problem {
	status := http.StatusBadRequest
	if flaw == flawMetered {
		status = http.StatusRequestEntityTooLarge
	}
	return w.refuseCall(meter, status, name.ReasonUnreadableContent, "The request cannot be metered: "+flaw+".", errors.New(flaw))
}

// patience is the longest wait that clients are asked to retry after by themselves.
const patience = time.Minute

// refuseBudget refuses a request that the meter refuses.
func (w *Rewriting) refuseBudget(meter rule.Metered, err error) *problem.Problem {
	var over *llm.Refusal
	if !errors.As(err, &over) {
		return w.refuseCall(meter, http.StatusForbidden, name.ReasonModelDenied, noMeter, err)
	}
	if over.Reason == string(name.ReasonModelDenied) {
		return w.refuseCall(meter, http.StatusForbidden, name.ReasonModelDenied, over.Message, err)
	}
	p := w.refuseCall(meter, http.StatusTooManyRequests, name.ReasonModelBudget, over.Message, err)
	if over.RetryAfter > 0 {
		seconds := (over.RetryAfter + time.Second - 1) / time.Second
		p.Fields = append(p.Fields, [2]string{"Retry-After", strconv.FormatInt(int64(seconds), 10)})
	}
	if over.RetryAfter <= 0 || over.RetryAfter > patience { // the vendors' libraries heed it
		p.Fields = append(p.Fields, [2]string{"X-Should-Retry", "false"})
	}
	return p
}

// metering is the metering of one request that may be sent.
type metering struct {
	s      *Session
	held   llm.Reservation
	call   llm.Call
	status int            // of the response; 0: none has begun
	blind  bool           // the body of the response cannot be read
	reader *wire.Reader   // of the body; nil if there is none
	coded  *io.PipeWriter // to the decoder of the body; nil without a coding
	done   chan struct{}  // closed when the decoder has ended
}

// Metered reports whether the request is metered.
func (x *Exchange) Metered() bool { return x.meter != nil }

// Answered takes the head of the final response of a metered request. field returns the values of a field; bodiless is set if there is no body.
func (x *Exchange) Answered(status int, bodiless bool, field func(string) []string) {
	m := x.meter
	if m == nil || m.status != 0 {
		return
	}
	if m.status = status; bodiless || !m.costs() {
		return
	}
	m.reader = wire.NewReader(m.call)
	codings, err := scrub.ParseCodings(strings.Join(field("Content-Encoding"), ","))
	if err != nil {
		m.blind = true
		return
	}
	if len(codings) > 0 {
		m.decode(codings)
	}
}

// costs reports whether a response costs something.
func (m *metering) costs() bool { return m.status < http.StatusMultipleChoices }

// Bounds of a decoded response. Times exceeds the maximum expansion of deflate.
var responseLimit = scrub.Limit{Between: 8 << 20, Plain: 1 << 30, Times: 1100}

// decode starts a goroutine that decodes the body for the reader. It ends after the body.
func (m *metering) decode(codings []string) {
	if m.blind = !m.s.Usage.Recodings.Enter(MaxRecodings); m.blind {
		return
	}
	holds := &memory.Claim{}
	holds.Open(m.s.Usage.Memory, memory.Recoding)
	free := func() { m.s.Usage.Recodings.Leave(); holds.Close() }
	if m.blind = !holds.Grow(scrub.Memory(codings)); m.blind {
		free()
		return
	}
	var in *io.PipeReader
	in, m.coded = io.Pipe()
	m.done = make(chan struct{})
	go func() {
		defer close(m.done)
		defer free()
		defer recovery.Panic(m.s.Core.Log, m.s.Box.ID, func() {})
		defer in.Close() // the rest of the body is not read
		plain, err := scrub.NewDecoder(codings, in, responseLimit)
		if err != nil {
			return
		}
		for buf := make([]byte, 8<<10); err == nil; {
			var n int
			n, err = plain.Read(buf)
			m.reader.Feed(buf[:n])
		}
	}()
}

// feed takes the next part of the body.
func (m *metering) feed(part []byte) {
	switch {
	case m.reader == nil || m.blind || len(part) == 0:
	case m.coded != nil:
		_, _ = m.coded.Write(part) // fails if the decoder has
	default:
		m.reader.Feed(part)
	}
}

// settle settles the reservation of the request, if there is one.
func (x *Exchange) settle() {
	m := x.meter
	if m == nil {
		return
	}
	x.meter = nil
	model, clean := m.call.Model, x.Event.Error == "" && x.Event.Verdict == policy.Allow
	if !x.sent || m.status != 0 && !m.costs() {
		m.held.Settle(llm.Usage{}, model, true)
		return
	}
	u := llm.Usage{Input: wire.EstimateInput(m.call), Requests: 1}
	complete := false
	if m.coded != nil {
		_ = m.coded.Close()
		<-m.done
	}
	switch {
	case m.blind:
		u.Output = m.call.Max
	case m.reader != nil:
		var answered string
		if u, answered, complete = m.reader.Result(clean); answered != "" {
			model = answered
		}
	}
	m.held.Settle(u, model, complete)
}
