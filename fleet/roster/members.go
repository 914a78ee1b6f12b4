package roster

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
)

// withCordon sets whether the host of a record takes new boxes.
func withCordon(text []byte, cordoned bool) (string, error) {
	host, err := fleet.Decode[fleet.Host](text)
	if err != nil || host.Cordoned == cordoned {
		return string(text), err
	}
	if !cordoned {
		return withField(text, "cordoned", nil)
	}
	return withField(text, "cordoned", json.RawMessage("true"))
}

// withAddress sets the address of the host of a record.
func withAddress(text []byte, address string) (string, error) {
	host, err := fleet.Decode[fleet.Host](text)
	if err != nil || host.Address == address {
		return string(text), err
	}
	if address == "" {
		return withField(text, "address", nil)
	}
	value, err := json.Marshal(address)
	if err != nil {
		return "", err
	}
	return withField(text, "address", value)
}

// withField changes one field of a record, or removes it, and keeps the others, including fields that a later version of boxgate has added.
func withField(text []byte, field string, value json.RawMessage) (string, error) {
	fields, err := fleet.Decode[map[string]json.RawMessage](text)
	if err != nil {
		return "", err
	}
	if delete(fields, field); value != nil {
		fields[field] = value
	}
	return fleet.Encode(fields)
}

// Member is a host of the fleet and the state of its gateway.
type Member struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Protocol int       `json:"protocol"`
	Joined   time.Time `json:"joined"`
	Cordoned bool      `json:"cordoned"`
	Present  bool      `json:"present"`           // its lease is valid
	Problem  string    `json:"problem,omitempty"` // its records cannot be read
	Version  string    `json:"version,omitempty"`
	Boxes    int       `json:"boxes"`
	Drained  bool      `json:"drained"` // the gateway knows that it is cordoned, and has no boxes
	Since    time.Time `json:"since,omitzero"`
	Address  string    `json:"address,omitempty"` // for calls of the other hosts
	Ingress  string    `json:"ingress,omitempty"` // for visitors from the other hosts
}

// Condition is the state of the host in one word: running, cordoned, drained, away or unreadable.
func (m Member) Condition() string {
	switch {
	case m.Problem != "":
		return "unreadable"
	case !m.Present:
		return "away"
	case m.Drained:
		return "drained"
	case m.Cordoned:
		return "cordoned"
	}
	return "running"
}

// State is the state of a fleet.
type State struct {
	Name     string    `json:"name"`
	ID       string    `json:"id"`
	Founded  time.Time `json:"founded"`
	Revision int64     `json:"revision"` // of etcd
	Hosts    []Member  `json:"hosts"`
}

// page is the number of records in one answer.
const page = 500

// State reads the fleet, at one revision.
func (r Roster) State(ctx context.Context) (State, error) {
	founding, err := r.Founding(ctx)
	if err != nil {
		return State{}, err
	}
	out := State{Name: r.Name, ID: founding.ID, Founded: founding.At}
	k, at := r.keys(), map[string]int{}
	out.Revision, err = r.each(ctx, k.Hosts(), 0, func(id string, text []byte) {
		h, err := fleet.Decode[fleet.Host](text)
		at[id] = len(out.Hosts)
		out.Hosts = append(out.Hosts, Member{ID: id, Name: h.Name, Protocol: h.Protocol, Joined: h.Joined, Cordoned: h.Cordoned, Address: h.Address, Ingress: h.Ingress, Problem: problem(err)})
	})
	if err != nil {
		return State{}, err
	}
	_, err = r.each(ctx, k.Presences(), out.Revision, func(id string, text []byte) {
		i, ok := at[id]
		if !ok {
			return
		}
		p, err := fleet.Decode[fleet.Presence](text)
		m := &out.Hosts[i]
		if m.Present = true; err != nil {
			m.Problem = problem(err)
			return
		}
		m.Version, m.Boxes, m.Since, m.Drained = p.Version, p.Boxes, p.Since, m.Cordoned && p.Cordoned && p.Boxes == 0
	})
	return out, err
}

// problem is the text of an error; empty without one.
func problem(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// each reads the records below a prefix in order, at a revision, 0: the latest. It returns the revision.
func (r Roster) each(ctx context.Context, prefix string, revision int64, do func(id string, text []byte)) (int64, error) {
	for from, end := prefix, clientv3.GetPrefixRangeEnd(prefix); ; {
		answer, err := r.Client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision))
		if err != nil {
			return 0, fleet.Unreachable(ctx, err)
		}
		if revision == 0 {
			revision = answer.Header.Revision
		}
		for _, kv := range answer.Kvs {
			do(strings.TrimPrefix(string(kv.Key), prefix), kv.Value)
		}
		if !answer.More {
			return revision, nil
		}
		from = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
}

// Member reads one host. [ErrNotMember]: there is none with this ID.
func (r Roster) Member(ctx context.Context, id string) (Member, error) {
	state, err := r.State(ctx)
	if err != nil {
		return Member{}, err
	}
	for _, m := range state.Hosts {
		if m.ID == id {
			return m, nil
		}
	}
	return Member{}, ErrNotMember
}
