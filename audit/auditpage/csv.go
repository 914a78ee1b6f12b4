package auditpage

import (
	"encoding/csv"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"boxgate/audit/report"
	"boxgate/policy"
)

// columns are the columns of the CSV form. Each row of every table of a report is one line.
var columns = []string{
	"table", "box", "box_name", "first", "last", "destination", "port", "protocol", "action", "reason", "rule", "policy_version", "count", "bytes_out", "bytes_in",
	"headers", "secrets", "via", "key", "key_id", "role", "remote", "call", "status", "seq", "detail",
}

// line is one line of the CSV form, by column.
type line map[string]string

// WriteCSV writes all rows of a report as CSV (RFC 4180). A cell that a spreadsheet would take for a formula begins with an
// apostrophe.
func WriteCSV(w io.Writer, r report.Report) error {
	out := csv.NewWriter(w)
	out.UseCRLF = true
	if err := out.Write(columns); err != nil {
		return err
	}
	write := func(l line) {
		row := make([]string, len(columns))
		for i, c := range columns {
			row[i] = cell(l[c])
		}
		_ = out.Write(row) // Error reports it
	}
	for i := range r.Boxes {
		writeBox(&r.Boxes[i], write)
	}
	for _, c := range r.Changes {
		write(lineOfChange("change", c, "", ""))
	}
	for _, c := range r.Calls {
		write(lineOfCall(c, "", ""))
	}
	for _, n := range r.Notes {
		write(line{"table": "note", "detail": n})
	}
	out.Flush()
	return out.Error()
}

// formula matches the beginning of a formula after a semicolon, which separates cells in the languages with decimal commas: a spreadsheet
// there does not see the quotes around the cell.
var formula = regexp.MustCompile(`(;[ "]*)([=+\-@|%＝＋－＠])`)

// cell guards against formulas: spreadsheets evaluate cells that begin with one of these characters.
func cell(s string) string {
	s = formula.ReplaceAllString(text(s), "$1'$2")
	if s != "" && strings.ContainsRune("=+-@|%＝＋－＠", firstRune(s)) {
		return "'" + s
	}
	return s
}

func writeBox(b *report.Box, write func(line)) {
	id, name := string(b.ID), b.Name
	writeFlows("egress", b.Egress, id, name, write)
	writeFlows("refused", b.Refused, id, name, write)
	writeFlows("visit", b.Visits, id, name, write)
	for _, u := range b.Secrets {
		l := traffic("secret", id, name, u.Host, u.Port, u.Protocol, u.First, u.Last)
		l["rule"], l["policy_version"], l["count"] = u.Rule, number0(u.Version), number0(u.Count)
		l["bytes_out"], l["bytes_in"] = number0(u.BytesOut), number0(u.BytesIn)
		l["headers"], l["secrets"], l["via"], l["detail"] = strings.Join(u.Headers, " "), u.Secret, u.Via, u.Login
		write(l)
	}
	for _, v := range b.Policies {
		l := line{"table": "policy_version", "box": id, "box_name": name, "policy_version": number0(v.Version), "count": number0(v.Decisions)}
		if v.Change != nil {
			l = lineOfChange("policy_version", *v.Change, id, name)
			l["policy_version"], l["count"] = number0(v.Version), number0(v.Decisions)
		}
		write(l)
	}
	for _, a := range b.Approvals {
		l := traffic("approval", id, name, a.Entry, 0, "", a.Time, a.Time)
		l.by(a.By)
		l["reason"], l["policy_version"], l["seq"] = a.Answer, number0(a.Version), number0(a.Seq)
		l["detail"] = "asked: " + a.Asked + "; answer: " + a.Reason
		write(l)
	}
	for _, c := range b.Changes {
		write(lineOfChange("change", c, id, name))
	}
	for _, c := range b.Calls {
		write(lineOfCall(c, id, name))
	}
}

func writeFlows(table string, flows []report.Flow, id, name string, write func(line)) {
	for _, f := range flows {
		l := traffic(table, id, name, f.Host, f.Port, f.Protocol, f.First, f.Last)
		l["action"], l["reason"], l["rule"] = f.Action, string(f.Reason), f.Rule
		l["policy_version"], l["count"] = number0(f.Version), number0(f.Count)
		l["bytes_out"], l["bytes_in"] = number0(f.BytesOut), number0(f.BytesIn)
		l["headers"], l["secrets"], l["via"] = strings.Join(f.Headers, " "), strings.Join(f.Secrets, " "), f.Via
		if f.Lookup {
			l["detail"] = "look-up only"
		}
		write(l)
	}
}

// traffic returns a line about traffic.
func traffic(table, id, name, host string, port uint16, protocol policy.Protocol, first, last time.Time) line {
	l := line{"table": table, "box": id, "box_name": name, "destination": host, "protocol": string(protocol), "first": at(first), "last": at(last)}
	if port != 0 {
		l["port"] = strconv.Itoa(int(port))
	}
	return l
}

func lineOfChange(table string, c report.Change, id, name string) line {
	l := line{
		"table": table, "box": id, "box_name": name, "first": at(c.Time), "last": at(c.Time), "call": c.Call, "seq": number0(c.Seq), "status": number0(c.Status),
		"policy_version": number0(c.Version), "detail": strings.Join(c.What, "; "),
	}
	if c.Note != "" {
		l["detail"] = strings.TrimPrefix(l["detail"]+"; "+c.Note, "; ")
	}
	l.by(c.By)
	return l
}

func lineOfCall(c report.Call, id, name string) line {
	l := line{
		"table": "call", "box": id, "box_name": name, "first": at(c.First), "last": at(c.Last), "call": c.Call, "status": number0(c.Status), "count": number0(c.Count),
	}
	l.by(c.By)
	return l
}

func (l line) by(w report.Who) {
	l["key"], l["key_id"], l["role"], l["remote"] = w.Key, w.KeyID, w.Role, w.Remote
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// number0 formats a number, zero as an empty text.
func number0[T ~int | ~int64 | ~uint64](n T) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(int64(n), 10)
}

func firstRune(s string) rune {
	r, _ := utf8.DecodeRuneInString(s)
	return r
}
