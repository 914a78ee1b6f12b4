package settings

import (
	"net/http"
	"net/netip"

	"boxgate/api/rest"
	"boxgate/api/spec"
)

type sourceBody struct {
	Addresses []string `json:"source_addresses" doc:"one IPv4 address, one IPv6 address, or both, from network.sources; empty: the host chooses"`
}

type sourceView struct {
	Message   string       `json:"message"`
	Addresses []netip.Addr `json:"source_addresses"`
}

// putSource handles PUT /v2/box/{id}/config/source-addresses.
func (e *Endpoints) putSource(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body sourceBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	source, err := spec.Source("/source_addresses", body.Addresses)
	if err != nil {
		return rest.Reply{}, err
	}
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	if box, err = e.Rules.SetSource(r.Context(), box.ID, source); err != nil {
		return rest.Reply{}, err
	}
	list := append([]netip.Addr{}, box.Source.Addrs()...)
	e.History.Log(box.ID, "info", "user", "source addresses set")
	return rest.Reply{
		Body: sourceView{"Source addresses updated", list}, Change: &rest.Change{Box: box.ID, What: map[string]any{"source_addresses": list}},
	}, nil
}
