package rule

import (
	"context"
	"slices"
	"strings"
	"time"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// This file has the stages at which effects act on the content of requests. [Requests] finds the effects for each stage once, when a policy is
// compiled. The order of the stages in a request is that of the fields of [Request].

// MaxBody is the size of the largest body that is changed or hashed, in bytes.
const MaxBody = 1 << 20

// Sender is implemented by effects that send texts in requests, which responses may show.
type Sender interface {
	Effect
	// EachSent calls visit with each value that requests may be sent with: a literal, or the name of its source.
	EachSent(visit func(literal name.Secret, source string))
	// SendsLater reports whether requests may be sent with more than what is known when they are judged.
	SendsLater() bool
	// ScrubsByDefault reports whether a rule masks its secrets in responses unless it says otherwise.
	ScrubsByDefault() bool
}

// Warner is implemented by effects that may not do what is meant.
type Warner interface {
	// Warn adds warnings, below the pointer of the rule. scrubs reports whether the rule masks its secrets in responses.
	Warn(at string, scrubs bool, ps *document.Problems)
}

// QuerySetter is implemented by effects that set parameters in the query of requests. A rule has at most one.
type QuerySetter interface {
	Sender
	// Parameters returns the names of the parameters.
	Parameters() []string
	// RemoveQuery returns a request target without those of the client, in any spelling that some server may take for them. own are the parts
	// that were removed and are spelled as the parameters themselves.
	RemoveQuery(target string) (rest string, own []string)
	// SetQuery returns the target with the parameters. It calls sent with each text of theirs that a response may show.
	SetQuery(ctx context.Context, s Secrets, target string, sent func(text string)) (string, error)
}

// Signer is implemented by effects that sign requests as they are forwarded. A rule has at most one.
type Signer interface {
	Sender
	// SetsHeader reports whether a signature sets the header, or removes that of the client.
	SetsHeader(name string) bool
	// HashesBody reports whether the whole body takes part in the signature, so that it must be read first. The error is a *[Refusal].
	HashesBody(m *Message) (bool, error)
	// Sign signs a request, whose body has been read if HashesBody asked for that. The error is a *[Refusal] if the request is to blame.
	Sign(ctx context.Context, s Secrets, m *Message) (Signed, error)
	// TooLarge returns the refusal of a request whose body is larger than [MaxBody] and would have to be hashed.
	TooLarge() *Refusal
}

// Request is what the effects of one rule do to requests. The zero Request changes nothing.
type Request struct {
	Query   QuerySetter // nil: none are set
	Signer  Signer      // nil: requests are not signed
	Later   bool        // some effect sends more than what is known when a request is judged
	Sources []string    // names of the secrets that requests are sent or signed with
}

// Requests returns what effects do to requests.
func Requests(effects []Effect) (r Request) {
	for _, e := range effects {
		switch s := e.(type) {
		case QuerySetter:
			r.Query = s
		case Signer:
			r.Signer = s
		}
		if s, ok := e.(Sender); ok {
			r.Later = r.Later || s.SendsLater()
			if s, ok := e.(Sourced); ok {
				r.Sources = append(r.Sources, s.Sources()...)
			}
		}
	}
	return r
}

// Rewrites reports whether more of a request than its header fields may be changed, or it is signed.
func (r *Request) Rewrites() bool { return r.Signer != nil || r.Query != nil }

// Sends reports whether one of the effects sends texts in requests.
func Sends(effects []Effect) bool {
	return slices.ContainsFunc(effects, func(e Effect) bool { _, ok := e.(Sender); return ok })
}

// ScrubsByDefault reports whether one of the effects has its rule mask secrets unless it says otherwise.
func ScrubsByDefault(effects []Effect) bool {
	return slices.ContainsFunc(effects, func(e Effect) bool { s, ok := e.(Sender); return ok && s.ScrubsByDefault() })
}

// EachSent calls visit with each value that effects may send.
func EachSent(effects []Effect, visit func(literal name.Secret, source string)) {
	for _, e := range effects {
		if s, ok := e.(Sender); ok {
			s.EachSent(visit)
		}
	}
}

// Message is a request as it will be forwarded, without what a signature adds and removes.
type Message struct {
	Method, Host string
	Target       string // path and query
	Fields       []match.Field
	Length       int64  // of the body; -1: not known in advance
	Body         []byte // if it was asked for
	Altered      bool   // the body is not the client's own: a hash that the client gave is not of this one
	Time         time.Time
}

// Values returns the values of a field.
func (m *Message) Values(name string) (values []string) {
	for i := range m.Fields {
		if strings.EqualFold(m.Fields[i].Name, name) {
			values = append(values, m.Fields[i].Value)
		}
	}
	return values
}

// Field is a header field that is set in a request in the place of any that the client sent, or removed.
type Field struct {
	Name   string // canonical form
	Value  name.Secret
	Remove bool
}

// Signed is what a signature changes in a request.
type Signed struct {
	Target string  // with the client's own signature removed
	Set    []Field // what is removed comes last
	Shown  string  // what is sent in the clear, so that responses that are errors may show it; "" if nothing is
}

// Refusal is the error of a request that cannot be forwarded as the rule asks, for a reason that the client is told.
type Refusal struct {
	Status int
	Reason name.Reason
	Detail string // a sentence for the client
}

// Error returns the sentence.
func (r *Refusal) Error() string { return r.Detail }
