package solo

import (
	"encoding/json"
	"slices"

	"boxgate/policy"
	"boxgate/policy/name"
)

// report is the summary of a command as JSON.
type report struct {
	ExitStatus     int               `json:"exit_status"`
	Reached        []destinationView `json:"reached"`
	Refused        []destinationView `json:"refused"`
	Failed         []destinationView `json:"failed"`                    // allowed, but the server did not answer, or not properly
	RefusedSockets []string          `json:"refused_sockets,omitempty"` // quoted paths
	Policy         *policy.Spec      `json:"policy,omitempty"`          // allows all of Reached, and as much of Refused as a policy can
	Learned        json.RawMessage   `json:"learned,omitempty"`
	Incomplete     bool              `json:"incomplete"` // there was more than is listed
}

// destinationView is a destination that a command reached or was refused.
type destinationView struct {
	Host     string          `json:"host,omitempty"` // a name, or an address; empty: unknown
	Port     uint16          `json:"port,omitempty"` // 0: only resolved
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Count    uint64          `json:"count"`
	Reason   name.Reason     `json:"reason,omitempty"`
	Allow    string          `json:"allow,omitempty"` // the policy entry that allows it
}

// WriteJSON prints the summary as one line of JSON.
func (r *Record) WriteJSON(status int, learned bool) {
	var spec json.RawMessage
	if learned {
		spec = r.Learned()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := report{
		ExitStatus: status, Reached: views(r.reached, false), Refused: views(r.refused, true), Failed: views(r.failed, true), RefusedSockets: r.sockets, Learned: spec,
		Incomplete: r.truncated || r.lost > 0,
	}
	if spec, ok := r.wider(); ok {
		out.Policy = &spec
	}
	line, err := json.Marshal(out)
	if err != nil {
		r.printf("gateway: %v\n", err)
		return
	}
	r.printf("%s\n", line)
}

func views(of map[destination]*outcome, refused bool) []destinationView {
	out := []destinationView{}
	for _, d := range sorted(of) {
		o := of[d]
		v := destinationView{Host: d.name, Port: d.port, Protocol: d.protocol, Count: o.count}
		if d.name == "" && d.addr.IsValid() {
			v.Host = d.addr.String()
		}
		if refused {
			v.Reason = o.reason
			if o.opens && (d.protocol == "" || d.protocol == policy.TCP) {
				spec := specOf([]destination{d})
				v.Allow = slices.Concat(spec.AllowedDomains, spec.AllowedCIDRs, []string{""})[0]
			}
		}
		out = append(out, v)
	}
	return out
}
