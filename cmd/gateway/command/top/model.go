// Package top shows the activity of the boxes of a gateway live: rates per box and the latest denials, with keys to
// allow, deny and explain.
//
// A [Model] collects data and uses neither clock nor terminal. A [View] formats it as lines. [Run] shows both on a
// terminal.
package top

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"boxgate/audit"
	"boxgate/policy"
)

// Box is a box as the API returns it.
type Box struct {
	ID     policy.BoxID `json:"id"`
	Name   string       `json:"name"`
	Status string       `json:"status"`
	Usage  struct {
		BytesIn  uint64 `json:"bytes_in"`
		BytesOut uint64 `json:"bytes_out"`
	} `json:"usage"`
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

// byteReading is a reading of the byte counters of a box's interface.
type byteReading struct {
	at      time.Time
	in, out uint64
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
		r := Row{ID: b.ID, Name: b.Name, Status: b.Status}
		if c := m.counts[b.ID]; c != nil && passed > 0 {
			r.Connections, r.Requests, r.Denials = float64(c.connections)/passed, float64(c.requests)/passed, float64(c.denials)/passed
		}
		m.bytes[b.ID] = byteReading{now, b.Usage.BytesIn, b.Usage.BytesOut}
		if was, known := before[b.ID]; known {
			r.BytesIn, r.BytesOut = rate(was.in, b.Usage.BytesIn, now.Sub(was.at)), rate(was.out, b.Usage.BytesOut, now.Sub(was.at))
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
