// Package auditpage renders reports for auditors: as one HTML page that is complete in itself, and as CSV. Reports contain texts
// of boxes, which are escaped here for both.
package auditpage

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed" // the template and its style sheet
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"boxgate/audit/report"
	"boxgate/policy"
	"boxgate/policy/name"
)

var (
	//go:embed report.html
	source string
	//go:embed report.css
	style string
)

// maxShown bounds the rows of one table of the page. The other formats contain all.
const maxShown = 250

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"text": text, "bytes": bytesText, "number": number, "time": timeText, "day": day, "times": times, "host": host, "how": how,
	"reason": reason, "who": who, "join": join, "share": share, "head": head, "more": more, "title": title, "span": span,
	"secrets": secrets, "others": others, "outcome": outcome, "pretty": pretty,
}).Parse(source))

// view is what the template shows.
type view struct {
	report.Report
	Policy string // Content-Security-Policy
	Style  template.CSS
	Sum    report.Box // totals of all boxes

	SecretCount, ChangeCount, ApprovalCount int
}

// Policy is the Content-Security-Policy of the page. A server adds directives that a page cannot contain, such as frame-ancestors.
var Policy = func() string {
	hash := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'; base-uri 'none'; form-action 'none'"
}()

// WriteHTML writes a report as one page. The page loads no resource and runs no script: its own policy forbids both.
func WriteHTML(w io.Writer, r report.Report) error {
	v := view{Report: r, Style: template.CSS(style), Policy: Policy} //nolint:gosec // the embedded style sheet
	used := map[string]bool{}
	v.ChangeCount = len(r.Changes)
	for i := range r.Boxes {
		b := &r.Boxes[i]
		v.Sum.BytesOut += b.BytesOut
		v.Sum.BytesIn += b.BytesIn
		v.Sum.Allowed += b.Allowed
		v.Sum.Denied += b.Denied
		v.ChangeCount += len(b.Changes)
		v.ApprovalCount += len(b.Approvals)
		for _, u := range b.Secrets {
			used[u.Secret] = true
		}
	}
	v.SecretCount = len(used)
	return page.Execute(w, v)
}

// text makes text of any origin readable as it is: characters that are invisible, reorder other text or control a terminal are
// written as \u{NNNN}.
func text(v any) string {
	s := fmt.Sprint(v)
	if !strings.ContainsFunc(s, hides) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hides(r) {
			fmt.Fprintf(&b, `\u{%x}`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// hides reports whether a character may hide or reorder text, or is not one.
func hides(r rune) bool {
	return r == unicode.ReplacementChar || r != ' ' && !unicode.IsGraphic(r) || unicode.Is(unicode.Zs, r) && r != ' ' || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) ||
		unicode.Is(unicode.Variation_Selector, r)
}

func bytesText(n int64) string {
	const unit = 1000
	if n < unit {
		return strconv.FormatInt(n, 10) + " B"
	}
	value, i := float64(n)/unit, 0
	for value >= 999.95 && i < 4 {
		value /= unit
		i++
	}
	return strconv.FormatFloat(value, 'f', 1, 64) + " " + []string{"kB", "MB", "GB", "TB", "PB"}[i]
}

// number groups the digits of a whole number.
func number(v any) string {
	s := fmt.Sprint(v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func timeText(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// times shows two times, with the second one's date, on a line of its own, only if it differs.
func times(first, last time.Time) string {
	a, b := first.UTC(), last.UTC()
	switch {
	case a.Truncate(time.Second).Equal(b.Truncate(time.Second)):
		return timeText(a)
	case day(a) == day(b):
		return timeText(a) + " – " + b.Format("15:04:05")
	}
	return timeText(a) + " –\n" + timeText(b)
}

func host(h string, port uint16, protocol policy.Protocol) string {
	out := cmp.Or(text(h), "(several)")
	if port != 0 {
		out = net.JoinHostPort(out, strconv.Itoa(int(port)))
	}
	if protocol != "" && protocol != policy.TCP {
		out += "/" + text(protocol)
	}
	return out
}

// how describes how the gateway handled traffic.
func how(f report.Flow) string {
	if f.Lookup {
		return "looked up only"
	}
	known := map[string]string{
		"kernel": "forwarded", "splice": "passed unread", "intercept": "intercepted", "broker": "logged in", "forward": "plain HTTP", "answer": "answered by the gateway",
	}
	return cmp.Or(known[f.Action], text(f.Action))
}

func reason(r name.Reason) string { return strings.ReplaceAll(text(r), "_", " ") }

// who describes the caller of the API.
func who(w report.Who) string {
	if w == (report.Who{}) {
		return "the gateway"
	}
	out := cmp.Or(w.Key, w.KeyID, "no valid key")
	if w.Role != "" {
		out += " (" + w.Role + ")"
	}
	if w.Remote != "" {
		out += ", " + w.Remote
	}
	return text(out)
}

func join(list []string) string { return text(strings.Join(list, ", ")) }

// share returns the class of a bar whose length is a part of a whole.
func share(part, whole int64) string {
	if whole <= 0 {
		return "w0"
	}
	return "w" + strconv.FormatInt(min(max(part*25/whole, 1), 25), 10)
}

// head returns the rows of a table that are shown, or nil if the table is empty.
func head(list any) any {
	v := reflect.ValueOf(list)
	if v.Len() == 0 {
		return nil
	}
	return v.Slice(0, min(v.Len(), maxShown)).Interface()
}

// more returns a sentence about the rows that are not shown.
func more(list any) template.HTML {
	if n := reflect.ValueOf(list).Len() - maxShown; n > 0 {
		return template.HTML(`<p class="none">and ` + number(n) + ` more; --format csv and json have all.</p>`) //nolint:gosec // a number
	}
	return ""
}

func title(b report.Box) string { return text(cmp.Or(b.Name, string(b.ID))) }

// span describes a list of versions.
func span(list []report.Version) string {
	if len(list) == 0 {
		return ""
	}
	first, last := list[0].Version, list[len(list)-1].Version
	if first == last {
		return strconv.FormatUint(first, 10)
	}
	return fmt.Sprintf("%d–%d", first, last)
}

// secrets returns the names of the secrets that a box used.
func secrets(b report.Box) (names []string) {
	for _, u := range b.Secrets {
		if !slices.Contains(names, u.Secret) {
			names = append(names, u.Secret)
		}
	}
	return names
}

// others returns the changes that made no version of the policy that is shown.
func others(b report.Box) (list []report.Change) {
	for _, c := range b.Changes {
		if !slices.ContainsFunc(b.Policies, func(v report.Version) bool { return v.Change != nil && v.Change.Seq == c.Seq }) {
			list = append(list, c)
		}
	}
	return list
}

// pretty formats a policy in full.
func pretty(t *report.Text) string {
	var out bytes.Buffer
	if t == nil || json.Indent(&out, t.RawMessage, "", "  ") != nil {
		return ""
	}
	lines := strings.Split(out.String(), "\n")
	for i := range lines {
		lines[i] = text(lines[i])
	}
	return strings.Join(lines, "\n")
}

// outcome describes a status of the API.
func outcome(status int) string {
	switch {
	case status == 0:
		return "no answer was recorded"
	case status == 499:
		return "the caller disconnected"
	case status >= 400:
		return fmt.Sprintf("refused with %d", status)
	}
	return "done"
}
