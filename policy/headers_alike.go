package policy

import (
	"slices"

	"boxgate/policy/name"
)

// SendsAlike reports whether a rule adds to requests what another does, and sends them to the same place, so that one that began under the other may be sent
// under it.
func (r *HeaderRule) SendsAlike(o *HeaderRule) bool {
	return r.Places == o.Places && slices.EqualFunc(r.Headers, o.Headers, Header.equal) &&
		slices.EqualFunc(r.Placeholders, o.Placeholders, Placeholder.Equal) && slices.EqualFunc(r.Query, o.Query, QueryParameter.equal) &&
		r.Sign.equal(o.Sign) && r.Forward.url() == o.Forward.url() && (r.Client == nil) == (o.Client == nil) && (r.Client == nil || *r.Client == *o.Client)
}

func (h Header) equal(o Header) bool {
	same := h.Value.Equal(o.Value)
	h.Value, o.Value = name.Secret{}, name.Secret{}
	return same && h == o
}

// Equal reports whether two placeholders stand for the same value.
func (p Placeholder) Equal(o Placeholder) bool {
	same := p.Value.Equal(o.Value)
	p.Value, o.Value = name.Secret{}, name.Secret{}
	return same && p == o
}

func (q QueryParameter) equal(o QueryParameter) bool {
	same := q.Value.Equal(o.Value)
	q.Value, o.Value = name.Secret{}, name.Secret{}
	return same && q == o
}

func (s Signing) equal(o Signing) bool {
	switch {
	case s.AWS != nil && o.AWS != nil:
		return s.AWS.Credentials.equal(o.AWS.Credentials) && slices.Equal(s.AWS.Regions, o.AWS.Regions) && slices.Equal(s.AWS.Services, o.AWS.Services)
	case s.HMAC != nil && o.HMAC != nil:
		a, b := *s.HMAC, *o.HMAC
		same := a.Key.equal(b.Key)
		a.Key, b.Key = Key{}, Key{}
		return same && a == b
	}
	return s == o
}

func (k Key) equal(o Key) bool { return k.Source == o.Source && k.Value.Equal(o.Value) }
