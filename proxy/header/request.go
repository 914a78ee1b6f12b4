package header

import (
	"boxgate/relay"
	"boxgate/relay/h1"
	"boxgate/rule"
)

// AppendRequest appends the head of r for the upstream: origin-form target, one Host, the box's fields without
// hop-by-hop ones and without any variant of a header in set, then set. upgrade keeps an upgrade to WebSocket.
func AppendRequest(dst []byte, r *h1.Request, set []rule.Field, upgrade bool) []byte {
	return relay.AppendRequest(dst, r, upgrade, headerSetter(set))
}

// headerSetter is the list of headers that the gateway sets in a request.
type headerSetter []rule.Field

// AppendField implements [relay.RequestFields].
func (s headerSetter) AppendField(dst []byte, f *h1.Field) []byte {
	if IsSet(f.Name, s) {
		return dst
	}
	return h1.AppendField(dst, f)
}

// Announces implements [relay.RequestFields].
func (s headerSetter) Announces(list []byte) bool { return !listsSet(list, s) }

// AppendOwn implements [relay.RequestFields].
func (s headerSetter) AppendOwn(dst []byte) []byte {
	for i := range s {
		if !s[i].Remove {
			dst = h1.AppendPair(dst, s[i].Name, s[i].Value.Reveal())
		}
	}
	return dst
}

// Readdress changes the authority and target of a request.
func Readdress(r *h1.Request, authority, target string) {
	r.Path, r.Host = []byte(target), []byte(authority)
	for i := range r.Fields {
		if r.Fields[i].Kind == h1.Host {
			r.Fields[i].Value = r.Host
		}
	}
}
