package policy

import (
	"slices"

	"boxgate/policy/name"
)

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

// QueryParameter is a parameter that the gateway sets in the query of a matching request.
type QueryParameter struct {
	Name           string      // as it is after decoding
	Value          name.Secret // the literal; empty when Source is set
	Source         string      // name of a secret in the gateway's configuration; "" for a literal
	Prefix, Suffix string      // written around the value of Source
}
