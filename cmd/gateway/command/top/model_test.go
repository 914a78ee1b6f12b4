package top

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func box(id, name string, in, out uint64) Box {
	b := Box{ID: policy.BoxID(id), Name: name, Status: "running"}
	b.Usage.BytesIn, b.Usage.BytesOut = in, out
	return b
}

func TestRates(t *testing.T) {
	t.Parallel()
	var m Model
	m.Event(audit.Event{Box: "b1", Time: noon.Add(-time.Minute), Verdict: policy.Deny, Stage: policy.StageConn}) // a past denial, before the first reading
	m.Boxes(noon, []Box{box("b1", "one", 1000, 0), box("b2", "", 5, 5)})
	later := noon.Add(time.Second)
	for range 4 {
		m.Event(audit.Event{Box: "b1", Time: later, Verdict: policy.Allow, Stage: policy.StageConn, Phase: audit.PhaseOpen})
		m.Event(audit.Event{Box: "b1", Time: later, Verdict: policy.Allow, Stage: policy.StageConn, Phase: audit.PhaseEnd})
		m.Event(audit.Event{Box: "b1", Time: later, Verdict: policy.Allow, Stage: policy.StageHTTP})
	}
	m.Event(audit.Event{Box: "b1", Time: later, Verdict: policy.Deny, Stage: policy.StageDNS, Count: 6})
	m.Boxes(noon.Add(2*time.Second), []Box{box("b1", "one", 3000, 500), box("b2", "", 1, 1)})
	want := Row{ID: "b1", Name: "one", Status: "running", Connections: 2, Requests: 2, Denials: 3, BytesIn: 1000, BytesOut: 250}
	rows := m.Rows(ByDenials, "")
	if len(rows) != 2 || rows[0] != want || rows[1] != (Row{ID: "b2", Status: "running"}) {
		t.Errorf("%+v", rows)
	}
	if got := m.Rows(ByName, "on"); len(got) != 1 || got[0].Name != "one" {
		t.Errorf("filtered: %+v", got)
	}
	if got := m.Denials(""); len(got) != 2 || got[0].Count != 6 {
		t.Errorf("%+v", got)
	}
	m.Boxes(noon.Add(4*time.Second), nil)
	if len(m.Rows(ByBytes, "")) != 0 {
		t.Error("a deleted box is shown")
	}
}

// For hostile names and terminals of any size, lines fit the screen and contain only printable ASCII.
func TestLinesAreClean(t *testing.T) {
	t.Parallel()
	hostile := "\x1b[2J\x1b]0;owned\a\u202eevil\r\n\x9b31m"
	var m Model
	m.Boxes(noon, []Box{box(hostile, hostile, 0, 0), box("b1", strings.Repeat("long", 40), 1<<60, 0)})
	for i := range 300 {
		m.Event(audit.Event{Box: "b1", BoxName: hostile, Name: hostile + fmt.Sprint(i), Path: hostile, Method: hostile, Port: 443, Verdict: policy.Deny, Time: noon, Count: 1 << 40, Reason: name.ReasonNotAllowed})
	}
	m.Event(audit.Event{Box: "b1", Addr: netip.MustParseAddr("2001:db8::1"), Verdict: policy.Deny, Time: noon})
	for width := range 130 {
		for height := range 40 {
			v := View{Model: &m, Selected: height * 9, Filter: "", Message: hostile}
			lines := v.Lines(width, height)
			if len(lines) > height || width >= smallestWidth && height >= smallestHeight && len(lines) != height {
				t.Fatalf("%d lines on %dx%d", len(lines), width, height)
			}
			for _, l := range lines {
				if len(l.Text) > width || strings.ContainsFunc(l.Text, func(r rune) bool { return r < ' ' || r > '~' }) {
					t.Fatalf("%dx%d: %q", width, height, l.Text)
				}
			}
			if v.Selected < len(m.denials) && len(lines) > 8 && !slices.ContainsFunc(lines, func(l Line) bool { return l.Style == Selected }) {
				t.Fatalf("%dx%d: the selected denial %d is not shown", width, height, v.Selected)
			}
		}
	}
}

// TestListed: a model of listed boxes drops decisions about others, also from before the first list.
func TestListed(t *testing.T) {
	t.Parallel()
	m := Model{Listed: true}
	decide := func() {
		for _, id := range []policy.BoxID{"b1", "b2"} {
			m.Event(audit.Event{Box: id, Time: noon.Add(time.Second), Verdict: policy.Deny, Stage: policy.StageConn})
		}
	}
	decide()
	m.Boxes(noon, []Box{box("b1", "one", 0, 0)})
	decide()
	m.Boxes(noon.Add(2*time.Second), []Box{box("b1", "one", 0, 0)})
	if got, rows := m.Denials(""), m.Rows(ByName, ""); len(got) != 2 || got[0].Box != "b1" || got[1].Box != "b1" || len(rows) != 1 || rows[0].Denials != 0.5 {
		t.Errorf("%v %v", got, rows)
	}
}

// TestAuditedIsShown: the row of a box whose policy is audited shows that, and the JSON has the end.
func TestAuditedIsShown(t *testing.T) {
	t.Parallel()
	var m Model
	b := box("b1", "one", 0, 0)
	b.AuditedUntil = noon.Unix()
	m.Boxes(noon, []Box{b, box("b2", "two", 0, 0)})
	v := View{Model: &m, Sort: ByName}
	lines := v.Lines(100, 20)
	if !strings.Contains(lines[2].Text, "AUDITED") || strings.Contains(lines[3].Text, "AUDITED") {
		t.Errorf("%+v", lines[2:4])
	}
	if row := m.Rows(ByName, "")[0]; row.AuditedUntil != noon.Unix() || row.Status != "running" {
		t.Errorf("%+v", row)
	}
}
