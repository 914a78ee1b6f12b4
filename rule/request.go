package rule

import (
	"context"
	"slices"
	"strings"
	"time"

	"boxgate/llm"
	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// This file defines the stages at which effects act on the content of requests. [Requests] assigns effects to stages once, when a policy is
// compiled. A request passes the stages in the order of the fields of [Request].

// MaxBody is the size of the largest body that is changed or hashed, in bytes.
const MaxBody = 1 << 20

// Sender is implemented by effects that add texts to requests, which responses may show.
type Sender interface {
	Effect
	// EachSent calls visit with each value that requests may contain: a literal, or the name of its source.
	EachSent(visit func(literal name.Secret, source string))
	// SendsLater reports whether some values become known only after the request was judged.
	SendsLater() bool
	// ScrubsByDefault reports whether a rule without the member scrub masks its secrets in responses.
	ScrubsByDefault() bool
}

// Warner is implemented by effects that may have unintended consequences.
type Warner interface {
	// Warn adds warnings below the pointer of the rule. scrubs reports whether the rule masks its secrets in responses.
	Warn(at string, scrubs bool, ps *document.Problems)
}

// Checker is implemented by effects that are incompatible with some others.
type Checker interface {
	Effect
	// Check adds mistakes below the pointer of the rule, given all of its effects.
	Check(at string, all []Effect, ps *document.Problems)
}

// HeaderSetter is implemented by effects that set or remove header fields. A rule has at most one.
type HeaderSetter interface {
	Sender
	// HeaderNames returns the sorted names of the fields that are set and that are removed, in canonical form.
	HeaderNames() (set, removed []string)
	// HeaderFields returns the fields with their current values, sorted by name. The list must not be modified: requests share it if no
	// value has a source.
	HeaderFields(ctx context.Context, s Secrets) ([]Field, error)
}

// QuerySetter is implemented by effects that set parameters in the query of requests. A rule has at most one.
type QuerySetter interface {
	Sender
	// Parameters returns the names of the parameters.
	Parameters() []string
	// RemoveQuery removes the client's parameters of these names from a request target, in every spelling that some server may accept. own
	// are the removed pairs that are spelled like the parameters.
	RemoveQuery(target string) (rest string, own []string)
	// SetQuery appends the parameters to a target. It calls sent with each text that a response may show.
	SetQuery(ctx context.Context, s Secrets, target string, sent func(text string)) (string, error)
}

// Placeholder is an environment variable with a token. The box sends the token, and the gateway replaces it by the value in requests to the
// hosts of the rule.
type Placeholder struct {
	Variable string // of the box's environment
	Token    string // content of the variable; "" in rules as written
	Value           // without prefix and suffix
}

// Equal reports whether two placeholders have the same variable, token and value.
func (p Placeholder) Equal(o Placeholder) bool {
	return p.Variable == o.Variable && p.Token == o.Token && p.Value.Equal(o.Value)
}

// Replacer is implemented by effects that replace placeholders. A rule has at most one.
type Replacer interface {
	Sender
	Sourced
	// Placeholders returns the placeholders of the rule, sorted by variable. The list must not be modified.
	Placeholders() []Placeholder
	// Find returns the placeholder with a token, or nil.
	Find(token string) *Placeholder
	// Places returns the parts of requests in which placeholders are replaced.
	Places() Places
	// WithTokens returns the effect with the tokens of the box that has this key.
	WithTokens(key name.Secret) Effect
}

// Places is a set of parts of requests in which placeholders are replaced, in addition to header values.
type Places uint8

// The places.
const (
	InQuery     Places = 1 << iota // the value of a parameter in the query
	InForm                         // the value of a field in a body of application/x-www-form-urlencoded
	InJSON                         // a string in a JSON body that is not the name of a member
	InWebSocket                    // a text message of a WebSocket
)

// placeNames are in the order of the bits. Header values are always included and have no bit.
var placeNames = []string{"query", "form", "json", "websocket"}

const headerPlace = "header"

// Has reports whether p contains all of some.
func (p Places) Has(some Places) bool { return p&some == some }

// Names returns the places as written in rules, including header values. The empty set returns nil.
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

// PlaceNames returns the names of all places, header values first.
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
	// HashesBody reports whether the signature covers the whole body, which then must be read first. The error is a *[Refusal].
	HashesBody(m *Message) (bool, error)
	// Sign signs a request, whose body has been read if HashesBody reported true. If the request is to blame, the error is a *[Refusal].
	Sign(ctx context.Context, s Secrets, m *Message) (Signed, error)
	// TooLarge returns the refusal of a request whose body exceeds [MaxBody] and would have to be hashed.
	TooLarge() *Refusal
}

// Metered is implemented by effects that count the tokens of requests to a model API. A rule has at most one.
type Metered interface {
	Effect
	// Vendor returns the shape of the API.
	Vendor() llm.Vendor
	// AllowsModel reports whether requests may ask a model of this name.
	AllowsModel(name string) bool
}

// Request is the plan of one rule for requests and their responses: its effects by stage. The zero Request has no effect.
type Request struct {
	Headers   HeaderSetter   // nil: no header fields are set or removed
	Replacer  Replacer       // nil: there are no placeholders
	Places    Places         // of the placeholders, besides header values
	Query     QuerySetter    // nil: no parameters are set
	Signer    Signer         // nil: requests are not signed
	Meter     Metered        // nil: tokens are not counted
	Responses []ResponseHead // that change the heads of responses

	// Sources names the secrets that any request may be sent or signed with. Swapped names the secrets that are sent only with requests
	// that have a placeholder in a header field.
	Sources, Swapped []string
	Later            bool          // some values become known only after the request was judged
	Masked           []name.Secret // literals of placeholders, which are masked in responses even if they were not sent
}

// Requests returns the plan of effects for requests.
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
		case Metered:
			r.Meter = e
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

// addSender adds the secrets and literals of an effect.
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

// Sourced reports whether some requests need a secret of the configuration.
func (r *Request) Sourced() bool { return len(r.Sources)+len(r.Swapped) > 0 }

// Placeholder returns the placeholder with a token, or nil.
func (r *Request) Placeholder(token string) *Placeholder {
	if r.Replacer == nil {
		return nil
	}
	return r.Replacer.Find(token)
}

// WithTokens returns effects with the tokens of the box that has this key. The result shares its other effects with the argument.
func WithTokens(effects []Effect, key name.Secret) []Effect {
	out := slices.Clone(effects)
	for i, e := range out {
		if r, ok := e.(Replacer); ok {
			out[i] = r.WithTokens(key)
		}
	}
	return out
}

// Rewrites reports whether requests are metered, signed, or changed in more than their header fields.
func (r *Request) Rewrites() bool {
	return r.Places != 0 || r.Query != nil || r.Signer != nil || r.Meter != nil
}

// Sends reports whether one of the effects is a [Sender].
func Sends(effects []Effect) bool {
	return slices.ContainsFunc(effects, func(e Effect) bool { _, ok := e.(Sender); return ok })
}

// SetsValues reports whether one of the effects adds values to requests, rather than only removing header fields.
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

// ScrubsByDefault reports whether a rule with these effects and without the member scrub masks its secrets in responses.
func ScrubsByDefault(effects []Effect) bool {
	return slices.ContainsFunc(effects, func(e Effect) bool { s, ok := e.(Sender); return ok && s.ScrubsByDefault() })
}

// EachSent calls visit with each value that effects may add to requests.
func EachSent(effects []Effect, visit func(literal name.Secret, source string)) {
	for _, e := range effects {
		if s, ok := e.(Sender); ok {
			s.EachSent(visit)
		}
	}
}

// Message is a request as it will be forwarded, before the signature changes it.
type Message struct {
	Method, Host string
	Target       string // path and query
	Fields       []match.Field
	Length       int64  // of the body; -1: not known in advance
	Body         []byte // if HashesBody reported true
	Altered      bool   // the body was changed, so that a hash given by the client is wrong
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

// Field is a header field that replaces every variant sent by the client or, with Remove, only removes them.
type Field struct {
	Name          string // canonical form
	Value         name.Secret
	Before, After int // bytes of Value before and after the secret in it
	Remove        bool
}

// Bare returns the value without prefix and suffix.
func (f *Field) Bare() string {
	whole := f.Value.Reveal()
	return whole[f.Before : len(whole)-f.After]
}

// Signed contains the changes that sign a request.
type Signed struct {
	Target string  // without the client's signature
	Set    []Field // removed fields come last
	Shown  string  // a text sent in the clear, which error responses may show; "" if there is none
}

// Refusal is the error of a request that cannot be forwarded as the rule requires, for a reason that the client may see.
type Refusal struct {
	Status int
	Reason name.Reason
	Detail string // a sentence for the client
}

// Error returns the sentence.
func (r *Refusal) Error() string { return r.Detail }
