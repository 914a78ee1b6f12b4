package pages

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"boxgate/audit/trail"
)

func trailRoutes() []Route { return []Route{{"GET " + Prefix + "trail", trailPage}} }

// trailRow is an entry of the audit trail. An answer stands for its call.
type trailRow struct{ trail.Entry }

// By returns the name of the key or person, with its role.
func (r trailRow) By() string {
	by := cmp.Or(r.Key, r.KeyID)
	if by == "" && r.Kind == trail.Refused {
		by = "no valid key"
	}
	if r.Role != "" {
		by += " (" + r.Role + ")"
	}
	return by
}

// Endpoint returns the endpoint, or an action of the gateway.
func (r trailRow) Endpoint() string {
	if r.Route != "" {
		return r.Route
	}
	texts := map[trail.Kind]string{
		trail.Start: "the gateway started", trail.Removed: "older entries were removed", trail.Policy: "the policy of the box changed",
	}
	return cmp.Or(texts[r.Kind], string(r.Kind))
}

// Outcome describes the result in words.
func (r trailRow) Outcome() string {
	switch {
	case r.Kind == trail.Call:
		return "no answer yet"
	case r.Status == 499:
		return "caller disconnected"
	case r.Kind == trail.Refused, r.Status >= 400:
		return fmt.Sprintf("refused, %d", r.Status)
	case r.Status != 0:
		return "done"
	}
	return ""
}

// Details returns the lines of the change of the entry as indented JSON. It may contain text of callers and boxes.
func (r trailRow) Details() []string {
	if len(r.Change.RawMessage) == 0 {
		return nil
	}
	return strings.Split(indented(r.Change.RawMessage), "\n")
}

// trailQuery is the filter.
type trailQuery struct {
	Key, Box, Since, Until string
	Before                 uint64 // only entries before this one; 0: all
}

// trailData is the data of the page of the audit trail.
type trailData struct {
	trailQuery
	Rows     []trailRow
	Pager    Pager
	Form     Form
	Verified *trail.Report // result of the check, if it was asked for
	Windows  []choice
}

// trailWindows are the values of the filter by time.
var trailWindows = append(slices.Clone(windows), choice{Text: "all"})

// trailPage shows a part of the trail, the latest entries first.
func trailPage(v *Visit) (View, error) {
	data := trailData{trailQuery: trailQuery{Key: v.asked("key"), Box: v.asked("box"), Since: v.asked("since"), Until: v.asked("until")}}
	if !v.R.URL.Query().Has("since") {
		data.Since = "7d"
	}
	data.Before, _ = strconv.ParseUint(v.asked("before"), 10, 64)
	data.Windows = selected(trailWindows, data.Since)
	if !slices.ContainsFunc(data.Windows, func(c choice) bool { return c.Selected }) {
		data.Windows = append(data.Windows, choice{data.Since, "since " + data.Since, true})
	}
	if v.R.URL.Query().Has("verify") {
		data.Verified = &trail.Report{}
		if err := v.get("/v2/audit/verify", data.Verified); err != nil {
			return View{}, err
		}
	}
	rows, more, err := readTrail(v, data.trailQuery)
	status := 0
	if err != nil {
		if data.Form, status, err = v.refused(err); err != nil {
			return View{}, err
		}
	}
	data.Rows = rows
	data.Pager = trailPager(v, data.Before, rows, more)
	return View{Name: "trail", Title: "Audit trail", Section: "Trail", Status: status, Data: data}, nil
}

// trailPager leads to the latest and to older entries.
func trailPager(v *Visit, before uint64, rows []trailRow, more bool) (p Pager) {
	if before != 0 {
		p.Previous = v.here("before", "")
	}
	if more {
		p.Next = v.here("before", strconv.FormatUint(rows[len(rows)-1].Seq, 10))
	}
	if len(rows) > 0 {
		p.Text = fmt.Sprintf("entries %d to %d", rows[len(rows)-1].Seq, rows[0].Seq)
	}
	return p
}

// line is a line of the trail whose entry is decoded only if it is shown.
type line struct {
	seq  uint64
	text []byte
}

// maxTrailBytes bounds the lines of a page, which has fewer entries if they are long: one with the change of a large policy may have
// megabytes.
const maxTrailBytes = 4 << 20

func bytesOf(list []line) (n int) {
	for _, l := range list {
		n += len(l.text)
	}
	return n
}

// readTrail reads the latest entries that the query selects, the latest first, and whether there are older ones. A call is left
// out if its answer follows, which contains everything that the call does.
func readTrail(v *Visit, q trailQuery) (rows []trailRow, more bool, err error) {
	query := url.Values{}
	for name, value := range map[string]string{"key": q.Key, "box": q.Box, "since": q.Since, "until": q.Until} {
		if value != "" {
			query.Set(name, value)
		}
	}
	before := q.Before
	if before == 0 {
		before = math.MaxUint64
	}
	var list []line
	err = v.Client.Lines(v.R.Context(), "/v2/audit?"+query.Encode(), func(text []byte) error {
		var e struct {
			Seq, Call uint64
			Kind      trail.Kind
		}
		if json.Unmarshal(text, &e) != nil {
			return nil // the check of the trail reports it
		}
		if e.Kind == trail.Answer {
			list = slices.DeleteFunc(list, func(l line) bool { return l.seq == e.Call })
		}
		if e.Seq < before {
			list = append(list, line{e.Seq, bytes.Clone(text)})
		}
		drop := max(0, len(list)-2*pageSize) // more than a page stay, because answers remove calls
		for size := bytesOf(list[drop:]); drop < len(list)-1 && size > maxTrailBytes; drop++ {
			size -= len(list[drop].text)
		}
		if drop > 0 {
			list, more = slices.Delete(list, 0, drop), true
		}
		return nil
	})
	if len(list) > pageSize {
		list, more = list[len(list)-pageSize:], true
	}
	for _, l := range slices.Backward(list) {
		var e trail.Entry
		if json.Unmarshal(l.text, &e) == nil {
			seq := e.Seq
			e = e.Origin()
			e.Seq = seq
			rows = append(rows, trailRow{e})
		}
	}
	return rows, more && len(rows) > 0, err
}

// Filtered reports whether the filter leaves entries out besides those before its time.
func (q trailQuery) Filtered() bool { return strings.TrimSpace(q.Key+q.Box+q.Until) != "" }
