package command

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy"
	"boxgate/policy/name"
)

// maxSummarized bounds the destinations that a summary distinguishes, since boxes choose the names. Denials of further
// ones are counted as others.
const maxSummarized = 10000

// maxSummaryShown is the number of rows printed for people; JSON contains all.
const maxSummaryShown = 20

// denialGroup identifies denials that a summary counts together.
type denialGroup struct {
	Box      policy.BoxID    `json:"box,omitempty"`
	Host     string          `json:"host,omitempty"` // name, or address if no name is known
	Port     uint16          `json:"port,omitempty"` // 0: a DNS look-up, or a protocol without ports
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Reason   name.Reason     `json:"reason"`
}

// denialCount counts the denials of one group.
type denialCount struct {
	denialGroup
	BoxName string    `json:"box_name,omitempty"`
	Count   uint64    `json:"count"`
	Last    time.Time `json:"last"`

	event audit.Event // the last one
}

// logSummary counts denials by box, destination and reason. The zero value is empty.
type logSummary struct {
	groups       map[denialGroup]*denialCount
	total, other uint64 // other: beyond maxSummarized
}

// add counts a line of the log; decision is false for lines that are none.
func (s *logSummary) add(e audit.Event, decision bool) {
	if !decision || e.Verdict != policy.Deny {
		return
	}
	n := max(e.Count, 1)
	s.total += n
	g := denialGroup{Box: e.Box, Host: e.Name, Port: e.Port, Protocol: e.Protocol, Reason: e.Reason}
	if g.Host == "" && e.Addr.IsValid() {
		g.Host = e.Addr.String()
	}
	if e.Stage == policy.StageDNS {
		g.Port, g.Protocol = 0, "" // they are the DNS server's
	}
	if s.groups == nil {
		s.groups = map[denialGroup]*denialCount{}
	}
	c := s.groups[g]
	if c == nil {
		if len(s.groups) >= maxSummarized {
			s.other += n
			return
		}
		c = &denialCount{denialGroup: g}
		s.groups[g] = c
	}
	c.Count += n
	if !e.Time.Before(c.Last) {
		c.Last, c.BoxName, c.event = e.Time, e.BoxName, e
	}
}

// rows returns the counts, the highest first.
func (s *logSummary) rows() []*denialCount {
	rows := make([]*denialCount, 0, len(s.groups))
	for _, c := range s.groups {
		rows = append(rows, c)
	}
	slices.SortFunc(rows, func(a, b *denialCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.box(), b.box()), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Reason, b.Reason))
	})
	return rows
}

func (c *denialCount) box() string { return cmp.Or(c.BoxName, string(c.Box), "-") }

// destination returns host and port for people.
func (c *denialCount) destination() string {
	text := audit.Escape(cmp.Or(c.Host, "-"), 100)
	if c.Port != 0 {
		text = net.JoinHostPort(text, strconv.Itoa(int(c.Port)))
	}
	if c.Protocol != "" && c.Protocol != policy.TCP {
		text += "/" + string(c.Protocol)
	}
	if c.event.Stage == policy.StageDNS {
		text += " (look-up)"
	}
	return text
}

// printSummary prints the summary, and a remedy for the most frequent denial of each reason.
func (r *logReader) printSummary() error {
	s, rows := r.summary, r.summary.rows()
	out := r.cmd.OutOrStdout()
	if r.o.JSON {
		return cli.WriteJSON(out, map[string]any{"denials": rows, "total": s.total, "other": s.other})
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "There are no denials.")
		return err
	}
	table := [][]string{{"COUNT", "BOX", "DESTINATION", "REASON", "LAST"}}
	shown := rows[:min(len(rows), maxSummaryShown)]
	rest := s.total
	for _, c := range shown {
		rest -= c.Count
		table = append(table, []string{strconv.FormatUint(c.Count, 10), audit.Escape(c.box(), 64), c.destination(), string(c.Reason), c.Last.Local().Format("2006-01-02 15:04:05")})
	}
	if err := cli.Table(out, table...); err != nil {
		return err
	}
	if rest > 0 {
		fmt.Fprintf(out, "and %s of other destinations; --json lists them\n", cli.Count(rest, "denial", "denials"))
	}
	for _, c := range shown {
		r.advise(c.event)
	}
	return r.failed()
}
