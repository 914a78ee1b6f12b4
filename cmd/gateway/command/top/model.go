// Package top shows the activity of the boxes of a gateway live: rates per box and the latest denials, with keys to
// allow, deny and explain.
//
// A [Model] collects data and uses neither clock nor terminal. A [View] formats it as lines. [Run] shows both on a
// terminal.
package top

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/remedy"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Box is a box as the API returns it.
type Box struct {
	ID     policy.BoxID `json:"id"`
	Name   string       `json:"name"`
	Status string       `json:"status"`
	// AuditedUntil is when the policy is enforced again, in Unix seconds; 0: it is enforced.
	AuditedUntil int64 `json:"policy_audited_until"`

	Usage struct {
		BytesIn  uint64 `json:"bytes_in"`
		BytesOut uint64 `json:"bytes_out"`
	} `json:"usage"`

	InputTokens  uint64  `json:"total_input_tokens"` // of models
	OutputTokens uint64  `json:"total_output_tokens"`
	Cost         float64 `json:"total_token_cost_usd"`
}

// Row is the activity of one box, per second.
type Row struct {
	ID          policy.BoxID `json:"id"`
	Name        string       `json:"name,omitempty"`
	Status      string       `json:"status"`
	Connections float64      `json:"connections_per_second"`
	Requests    float64      `json:"requests_per_second"`
	Denials     float64      `json:"denials_per_second"`
	BytesIn     float64      `json:"bytes_in_per_second"`  // towards the box
	BytesOut    float64      `json:"bytes_out_per_second"` // from the box

	Tokens float64 `json:"model_tokens_per_second"`
	Cost   float64 `json:"model_cost_usd"` // since the box was created

	AuditedUntil int64 `json:"policy_audited_until,omitempty"` // as of [Box]
}

// Label returns the name of the box, or its ID if it has no name.
func (r Row) Label() string { return cmp.Or(r.Name, string(r.ID)) }

// maxDenials bounds the denials kept.
const maxDenials = 200

// Model is the data about the boxes. Rates cover the time between the last two calls of [Model.Boxes]. The zero value is
// empty.
type Model struct {
	Listed bool // only decisions about boxes of the last call of [Model.Boxes]

	rows    []Row
	denials []audit.Event // latest first

	since  time.Time // start of the counts
	counts map[policy.BoxID]*counts
	bytes  map[policy.BoxID]byteReading
}

type counts struct{ connections, requests, denials uint64 }

// byteReading is a reading of the counters of a box: bytes at its interface, and tokens of models.
type byteReading struct {
	at      time.Time
	in, out uint64
	tokens  uint64
}

// Event adds a decision.
func (m *Model) Event(e audit.Event) {
	if m.Listed && !m.since.IsZero() && !m.isListed(e) {
		return
	}
	denied := e.Verdict == policy.Deny
	if denied {
		m.denials = slices.Insert(m.denials, 0, e)
		m.denials = m.denials[:min(len(m.denials), maxDenials)]
	}
	if e.Box == "" || e.Phase == audit.PhaseEnd || e.Time.Before(m.since) {
		return // already counted at its start, or older than the counts
	}
	if m.counts == nil {
		m.counts = map[policy.BoxID]*counts{}
	}
	c := m.counts[e.Box]
	if c == nil {
		c = &counts{}
		m.counts[e.Box] = c
	}
	n := max(e.Count, 1)
	switch {
	case denied:
		c.denials += n
	case e.Stage == policy.StageHTTP:
		c.requests += n
	case e.Stage == policy.StageConn || e.Stage == policy.StageKernel:
		c.connections += n
	}
}

// Boxes replaces the boxes and computes the rates since the last call.
func (m *Model) Boxes(now time.Time, list []Box) {
	passed := now.Sub(m.since).Seconds()
	if m.since.IsZero() || passed <= 0 {
		passed = 0
	}
	before := m.bytes
	m.rows, m.bytes = nil, map[policy.BoxID]byteReading{}
	for _, b := range list {
		r := Row{ID: b.ID, Name: b.Name, Status: b.Status, AuditedUntil: b.AuditedUntil, Cost: b.Cost}
		if c := m.counts[b.ID]; c != nil && passed > 0 {
			r.Connections, r.Requests, r.Denials = float64(c.connections)/passed, float64(c.requests)/passed, float64(c.denials)/passed
		}
		m.bytes[b.ID] = byteReading{now, b.Usage.BytesIn, b.Usage.BytesOut, b.InputTokens + b.OutputTokens}
		if was, known := before[b.ID]; known {
			r.BytesIn, r.BytesOut = rate(was.in, b.Usage.BytesIn, now.Sub(was.at)), rate(was.out, b.Usage.BytesOut, now.Sub(was.at))
			r.Tokens = rate(was.tokens, b.InputTokens+b.OutputTokens, now.Sub(was.at))
		}
		m.rows = append(m.rows, r)
	}
	m.since, m.counts = now, nil
	if m.Listed { // denials from before the first call
		m.denials = slices.DeleteFunc(m.denials, func(e audit.Event) bool { return !m.isListed(e) })
	}
}

func (m *Model) isListed(e audit.Event) bool {
	return slices.ContainsFunc(m.rows, func(r Row) bool { return r.ID == e.Box })
}

// rate returns the growth per second, or 0 if the counter was reset.
func rate(was, is uint64, passed time.Duration) float64 {
	if is < was || passed <= 0 {
		return 0
	}
	return float64(is-was) / passed.Seconds()
}

// Sort is an order of rows.
type Sort int

// The orders, in the sequence of the key s.
const (
	ByDenials Sort = iota
	ByConnections
	ByRequests
	ByBytes
	ByName
	sorts
)

// String returns the name of the order.
func (s Sort) String() string {
	return [sorts]string{"denials", "connections", "requests", "bytes", "name"}[s]
}

// Rows returns the boxes whose name or ID contains filter, in the given order; ties are sorted by name.
func (m *Model) Rows(by Sort, filter string) []Row {
	rows := slices.DeleteFunc(slices.Clone(m.rows), func(r Row) bool { return !matches(r.ID, r.Name, filter) })
	value := func(r Row) float64 {
		return [sorts]float64{r.Denials, r.Connections, r.Requests, r.BytesIn + r.BytesOut, 0}[by]
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(value(b), value(a)), cmp.Compare(a.Label(), b.Label()), cmp.Compare(a.ID, b.ID))
	})
	return rows
}

// Denials returns the denials of the boxes whose name or ID contains filter, latest first.
func (m *Model) Denials(filter string) []audit.Event {
	return slices.DeleteFunc(slices.Clone(m.denials), func(e audit.Event) bool { return !matches(e.Box, e.BoxName, filter) })
}

func matches(id policy.BoxID, name, filter string) bool {
	return strings.Contains(string(id), filter) || strings.Contains(name, filter)
}

// Interval is the interval at which the boxes are fetched.
const Interval = 2 * time.Second

// maxFresh is the maximum number of boxes that are fetched individually, with fresh byte counters. With more boxes,
// the numbers of the gateway's last reading are used.
const maxFresh = 32

// Boxes fetches the boxes of a gateway, or those with a label if it is not empty.
func Boxes(ctx context.Context, client *api.Client, label string) ([]Box, error) {
	var list []Box
	if err := client.Get(ctx, api.BoxesPath(label), &list); err != nil {
		return nil, err
	}
	if len(list) > maxFresh {
		return list, nil
	}
	for i := range list {
		var fresh Box
		if err := client.Get(ctx, api.BoxPath(string(list[i].ID)), &fresh); err == nil { // fails if the box was removed in the meantime
			list[i] = fresh
		}
	}
	return list, nil
}

// Follow calls each with the denials of the last ten minutes and with every new decision, until ctx ends. If the gateway
// stops, Follow reports that through say and waits for it; an error means that waiting is pointless.
func Follow(ctx context.Context, client *api.Client, each func(audit.Event), say func(string)) error {
	query := url.Values{"follow": {"true"}, "since": {time.Now().Add(-10 * time.Minute).UTC().Format(time.RFC3339)}}
	var seq uint64
	var run string
	for {
		begin := func(is string) {
			if run != is {
				run, seq = is, 0
			}
			say("")
		}
		err := client.Events(ctx, "/v2/egress?"+query.Encode(), begin, func(line []byte) error {
			var e audit.Event
			if json.Unmarshal(line, &e) == nil && !e.Time.IsZero() && e.Seq > seq {
				seq = e.Seq
				each(e)
			}
			return nil
		})
		if refused, ok := errors.AsType[*api.ResponseError](err); ctx.Err() != nil || ok && refused.Status < http.StatusInternalServerError {
			return err
		}
		say("the gateway does not answer; waiting for it")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// entryOf returns the policy entry that allows or denies the destination of a denial. An entry to allow is as narrow as
// possible; shown includes what else it would allow. If there is no such entry, entry is empty and shown is the reason.
func entryOf(e audit.Event, action string) (entry, shown string) {
	if e.Box == "" {
		return "", "this denial is about no box"
	}
	if action == "deny" {
		to := remedy.Destination(e)
		return to, cmp.Or(to, "this denial has no destination that a policy could deny")
	}
	o, ok := remedy.OpeningOf(e)
	if !ok {
		return "", remedy.For(e)
	}
	return o.Entry, o.Caveat(o.Entry)
}

// change adds a temporary entry to a policy and returns a message with the result.
func change(ctx context.Context, client *api.Client, box policy.BoxID, to, action string, lasts time.Duration) string {
	body := map[string]any{"action": action, "entries": []string{to}, "expires_in": int64(lasts / time.Second)}
	err := client.Do(ctx, "POST", api.BoxPath(string(box), "config/network-policy/leases"), body, nil)
	if err != nil {
		return "not changed: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return to + ": " + map[string]string{"allow": "allowed", "deny": "denied"}[action] + " for " + lasts.String()
}

// explain returns the reason of a denial, the decision of the current policy, and the remedy.
func explain(ctx context.Context, client *api.Client, e audit.Event) string {
	text := string(e.Reason) + ": " + remedy.For(e)
	body := map[string]any{"port": e.Port, "protocol": e.Protocol}
	switch _, err := name.Parse(e.Name); {
	case err == nil:
		body["host"], body["resolve"] = e.Name, true
	case e.Addr.IsValid():
		body["ip"] = e.Addr.String()
	default:
		return text
	}
	var now struct{ Verdict, Reason, Rule string }
	if e.Port == 0 || client.Do(ctx, "POST", api.BoxPath(string(e.Box), "egress/explain"), body, &now) != nil {
		return text
	}
	return strings.TrimSpace("now "+now.Verdict+" ("+now.Reason+") "+now.Rule) + "; " + text
}
