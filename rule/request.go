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

// Checker is implemented by effects that cannot stand beside some others.
type Checker interface {
	Effect
	// Check adds mistakes below the pointer of the rule, which has all these effects.
	Check(at string, all []Effect, ps *document.Problems)
}

// HeaderSetter is implemented by effects that set or remove header fields. A rule has at most one.
type HeaderSetter interface {
	Sender
	// HeaderNames returns the names of the fields that are set, and of those that are removed, sorted and in canonical form.
	HeaderNames() (set, removed []string)
	// HeaderFields returns the fields with their values of now, sorted by name. The list must not be modified: without sources all requests
	// share one.
	HeaderFields(ctx context.Context, s Secrets) ([]Field, error)
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

// Placeholder is an environment variable that stands in for a secret: the box sees and sends a token, and the gateway replaces it by the value
// in requests to the hosts of the rule.
type Placeholder struct {
	Variable string // of the box's environment
	Token    string // what the box sees; "" in rules as written
	Value           // without prefix and suffix
}

// Equal reports whether two placeholders stand for the same value.
func (p Placeholder) Equal(o Placeholder) bool {
	return p.Variable == o.Variable && p.Token == o.Token && p.Value.Equal(o.Value)
}

// Replacer is implemented by effects that replace placeholders. A rule has at most one.
type Replacer interface {
	Sender
	Sourced
	// Placeholders returns those of the rule, sorted by variable. The list must not be modified.
	Placeholders() []Placeholder
	// Find returns the placeholder that a token stands for; nil if there is none.
	Find(token string) *Placeholder
	// Places returns where they may stand.
	Places() Places
	// WithTokens returns the effect with the tokens that a box with this key sees.
	WithTokens(key name.Secret) Effect
}

// Places are where the placeholders of a rule may stand in a request, besides header values.
type Places uint8

// The places.
const (
	InQuery     Places = 1 << iota // the value of a parameter in the query
	InForm                         // the value of a field in a body of application/x-www-form-urlencoded
	InJSON                         // a string in a JSON body that is not the name of a member
	InWebSocket                    // a text message of a WebSocket
)

// placeNames are in the order of the bits. A header value is always a place.
var placeNames = []string{"query", "form", "json", "websocket"}

const headerPlace = "header"

// Has reports whether all of some places are among them.
func (p Places) Has(some Places) bool { return p&some == some }

// Names returns the places as written in rules, header values included; nil if there is nothing else.
func (p Places) Names() []string {
	if p == 0 {
		return nil
	}
	names := []string{headerPlace}
	for i, name := range placeNames {
		if p.Has(1 << i) {
			names = append(names, name)
		}
	}
	return names
}

// PlaceNames returns the names of all places, that of header values first.
func PlaceNames() []string { return append([]string{headerPlace}, placeNames...) }

// PlacesOf is the inverse of [Places.Names].
func PlacesOf(names []string) (p Places, ok bool) {
	for _, name := range names {
		i := slices.Index(placeNames, name)
		if i < 0 && name != headerPlace {
			return 0, false
		}
		if i >= 0 {
			p |= 1 << i
		}
	}
	return p, true
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

// Request is what the effects of one rule do to requests and their responses. The zero Request changes nothing.
type Request struct {
	Headers   HeaderSetter   // nil: no header fields are set or removed
	Replacer  Replacer       // nil: there are no placeholders
	Places    Places         // of the placeholders, besides header values
	Query     QuerySetter    // nil: no parameters are set
	Signer    Signer         // nil: requests are not signed
	Responses []ResponseHead // that change the heads of responses

	// Sources are the names of the secrets that every request may be sent or signed with, and Swapped of those that only requests with a
	// placeholder in a header field are sent with.
	Sources, Swapped []string
	Later            bool          // some effect sends more than what is known when a request is judged
	Masked           []name.Secret // literals that responses must not show, whether or not they were sent
}

// Requests returns what effects do to requests and their responses.
func Requests(effects []Effect) (r Request) {
	for _, e := range effects {
		switch e := e.(type) {
		case HeaderSetter:
			r.Headers = e
		case Replacer:
			r.Replacer, r.Places = e, e.Places()
		case QuerySetter:
			r.Query = e
		case Signer:
			r.Signer = e
		}
		if h, ok := e.(ResponseHead); ok {
			r.Responses = append(r.Responses, h)
		}
		if s, ok := e.(Sender); ok {
			r.addSender(s)
		}
	}
	return r
}

// addSender notes what is known of an effect that sends texts.
func (r *Request) addSender(s Sender) {
	r.Later = r.Later || s.SendsLater()
	var sources []string
	if s, ok := s.(Sourced); ok {
		sources = s.Sources()
	}
	_, replaces := s.(Replacer)
	if replaces && r.Places == 0 {
		r.Swapped = append(r.Swapped, sources...)
	} else {
		r.Sources = append(r.Sources, sources...)
	}
	if replaces {
		s.EachSent(func(literal name.Secret, source string) {
			if source == "" {
				r.Masked = append(r.Masked, literal)
			}
		})
	}
}

// Sourced reports whether a request may need a secret of the configuration.
func (r *Request) Sourced() bool { return len(r.Sources)+len(r.Swapped) > 0 }

// Placeholder returns the placeholder that a token stands for; nil if there is none.
func (r *Request) Placeholder(token string) *Placeholder {
	if r.Replacer == nil {
		return nil
	}
	return r.Replacer.Find(token)
}

// WithTokens returns effects with the tokens that a box with this key sees. The result shares with effects what it does not change.
func WithTokens(effects []Effect, key name.Secret) []Effect {
	out := slices.Clone(effects)
	for i, e := range out {
		if r, ok := e.(Replacer); ok {
			out[i] = r.WithTokens(key)
		}
	}
	return out
}

// Rewrites reports whether more of a request than its header fields may be changed, or it is signed.
func (r *Request) Rewrites() bool { return r.Places != 0 || r.Query != nil || r.Signer != nil }

// Sends reports whether one of the effects sends texts in requests.
func Sends(effects []Effect) bool {
	return slices.ContainsFunc(effects, func(e Effect) bool { _, ok := e.(Sender); return ok })
}

// SetsValues reports whether one of the effects sends values of its own.
func SetsValues(effects []Effect) bool {
	return slices.ContainsFunc(effects, func(e Effect) bool {
		if h, ok := e.(HeaderSetter); ok {
			set, _ := h.HeaderNames()
			return len(set) > 0
		}
		_, ok := e.(Sender)
		return ok
	})
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

// Field is a header field that is set in a request instead of any that the client sent, or removed.
type Field struct {
	Name          string // canonical form
	Value         name.Secret
	Before, After int // how many bytes of Value are around the secret in it
	Remove        bool
}

// Bare returns the secret in the value, without what is around it.
func (f *Field) Bare() string {
	whole := f.Value.Reveal()
	return whole[f.Before : len(whole)-f.After]
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
