package ui

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/audit"
	"boxgate/audit/remedy"
	"boxgate/policy"
	"boxgate/policy/name"
)

// wantText fails the test unless a page has all texts, in their order.
func wantText(t *testing.T, what, page string, texts ...string) {
	t.Helper()
	rest := page
	for _, text := range texts {
		_, after, found := strings.Cut(rest, text)
		if !found {
			t.Errorf("%s lacks %q after the others: %s", what, text, page)
			return
		}
		rest = after
	}
}

// TestListOfBoxes: the list has the denials and the latest decision of each box, is sorted by them, and has pages.
func TestListOfBoxes(t *testing.T) {
	t.Parallel()
	g := serve(t)
	for _, n := range []string{"quiet", "busy", "loud"} {
		id := policy.BoxID(g.host.Add(t, api.CreateRequest{Name: n}))
		for i := range map[string]int{"busy": 2, "loud": 3}[n] {
			e := apitest.Decision(id, time.Now().Unix()-int64(len(n)), "evil.example", policy.Deny)
			e.Port, e.Count = 443, uint64(1000*i)
			g.host.AddDecision(e)
		}
	}
	b := g.as(t, apitest.Key)
	_, page := b.get(t, "/ui/?sort=-denied")
	wantText(t, "the list", page, ">loud</a>", ">3,001</td>", "▲", "denied", ">evil.example:443</a>", ">busy</a>", ">1,001</td>", ">quiet</a>", `<td class="num denied"></td>`)
	_, page = b.get(t, "/ui/?sort=denied")
	wantText(t, "the list in ascending order", page, `aria-sort="ascending"`, ">quiet</a>", ">busy</a>", ">loud</a>")
	resp, text := b.get(t, "/ui/activity")
	var all map[string]struct {
		Denied uint64
		Latest row
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil || resp.Header.Get("Content-Type") != "application/json" || len(all) != 2 {
		t.Errorf("%v %s %s", err, resp.Header.Get("Content-Type"), text)
	}
	for range 300 {
		g.host.Add(t, api.CreateRequest{})
	}
	_, page = b.get(t, "/ui/")
	wantText(t, "the first page", page, "303 boxes", "1–250 of 303", `href="?page=2"`)
	for _, query := range []string{"?page=2", "?page=99"} {
		_, page = b.get(t, "/ui/"+query)
		wantText(t, "the last page", page, `href="?page=1"`, "251–303 of 303")
	}
	if _, page = b.get(t, "/ui/?page=-5&q=nothing+like+this"); !strings.Contains(page, "No box matches the filter.") {
		t.Errorf("no match: %s", page)
	}
}

// TestEndOfABoxOnItsPage: the page of a box with an end shows it, and no other does.
func TestEndOfABoxOnItsPage(t *testing.T) {
	t.Parallel()
	g := serve(t)
	b := g.as(t, apitest.Key)
	_, page := b.get(t, boxPath(g.host.Add(t, api.CreateRequest{Ephemeral: true, TTL: time.Hour})))
	wantText(t, "a box with an end", page, "<dt>Ends</dt>", "2023-11-14 23:13:20 UTC") // an hour after the creation
	if _, page = b.get(t, boxPath(g.host.Add(t, api.CreateRequest{}))); strings.Contains(page, "<dt>Ends</dt>") {
		t.Errorf("a box without an end: %s", page)
	}
}

// TestEmptyGateway: without boxes and without decisions, pages show what to do.
func TestEmptyGateway(t *testing.T) {
	t.Parallel()
	g := serve(t)
	b := g.as(t, apitest.Key)
	_, page := b.get(t, "/ui/")
	wantText(t, "the list", page, "There are no boxes yet.", "<code>gateway box create --name first</code>")
	id := g.host.Add(t, api.CreateRequest{Name: "first"})
	_, page = b.get(t, boxPath(id))
	wantText(t, "the box", page, "No decisions yet", "No denials in the latest decisions.")
}

// TestPageOfABox: the page has the latest decisions that the filter selects, the denials by registrable domain, and links to the pages
// that explain and allow them.
func TestPageOfABox(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := policy.BoxID(g.host.Add(t, api.CreateRequest{Name: "first", Policy: policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"api.example.com"}}}))
	for i, host := range []string{"a.evil.co.uk", "b.evil.co.uk", "one.github.io", "two.github.io", "a.evil.co.uk", "203.0.113.9", "api.example.com"} {
		e := apitest.Decision(id, time.Now().Unix()+int64(i), host, policy.Deny)
		if e.Port = 443; host == "api.example.com" {
			e.Verdict, e.Reason = policy.Allow, name.ReasonAllowedDomain
		}
		g.host.AddDecision(e)
	}
	b := g.as(t, apitest.Key)
	_, page := b.get(t, boxPath(id))
	wantText(t, "the page", page, "1 allowed", "7 decisions", ">api.example.com:443<", ">203.0.113.9:443<", "Denials by domain",
		">203.0.113.9<", ">evil.co.uk<", ">3</td>", "a.evil.co.uk:443</a>", `data-count="2"`, "/allow?host=a.evil.co.uk&amp;port=443", "b.evil.co.uk:443", ">two.github.io<", ">one.github.io<")
	_, page = b.get(t, boxPath(id)+"?"+url.Values{"verdict": {"deny"}, "host": {"B.evil"}}.Encode())
	wantText(t, "the filtered page", page, "1 decision<", ">b.evil.co.uk:443<")
	for i := range 150 {
		g.host.AddDecision(apitest.Decision(id, time.Now().Unix()+int64(i), "many.example", policy.Allow))
	}
	_, page = b.get(t, boxPath(id))
	if n := strings.Count(page, ">many.example<"); n != rowsAtFirst || !strings.Contains(page, `href="?all=1"`) {
		t.Errorf("%d rows", n)
	}
	if _, page = b.get(t, boxPath(id)+"?all=1"); strings.Count(page, ">many.example<") != 150 {
		t.Errorf("%d rows of all", strings.Count(page, ">many.example<"))
	}
}

// TestOneDecision: the page of a decision has its reason, the remedy, the entry that nearly allows it, and a link to allow it.
func TestOneDecision(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := policy.BoxID(g.host.Add(t, api.CreateRequest{Name: "first", Policy: policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"example.com"}}}))
	e := apitest.Decision(id, 1_700_000_000, "api.example.com", policy.Deny)
	e.Seq, e.Port, e.BoxName, e.Version = 5, 443, "first", 1
	g.host.AddDecision(e)
	b := g.as(t, apitest.Key)
	at := boxPath(id, "decisions") + "/" + rowOf(e).Link()
	_, page := b.get(t, at)
	wantText(t, "the page", page, `aria-current="true"`, "denied", "api.example.com:443", "No entry of the policy allows the destination.", "not_allowed",
		"To allow it: <code>gateway policy allow first api.example.com:443</code>.", "does not cover names below it", "/allow?host=api.example.com&amp;port=443", "Now", "The policy in force")
	for _, other := range []string{strings.Replace(at, "/5?", "/6?", 1), strings.Split(at, "?")[0], at + "1", boxPath(id, "decisions", "x") + "?at=1"} {
		if resp, _ := b.get(t, other); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", other, resp.Status)
		}
	}
}

// TestAdvice: of each remedy, the command is apart from the sentence around it.
func TestAdvice(t *testing.T) {
	t.Parallel()
	commands := 0
	for _, reason := range name.Reasons() {
		e := audit.Event{Box: "box-1", Stage: policy.StageHTTP, Name: "a.example", Port: 443, Protocol: policy.TCP, Reason: reason, Rule: "a.example:443"}
		a := adviceOf(remedy.For(e))
		if a.Before == "" || !strings.HasSuffix(a.Before+a.Command+a.After, ".") {
			t.Errorf("%s: %+v", reason, a)
		}
		if a.Command == "" {
			continue
		}
		if commands++; !strings.HasPrefix(a.Command, "gateway ") || strings.ContainsAny(a.Command, "(;,") || strings.HasSuffix(a.Command, ".") {
			t.Errorf("%s: %+v", reason, a)
		}
	}
	if commands < 10 {
		t.Errorf("%d commands", commands)
	}
	if a := adviceOf(""); a != (advice{}) {
		t.Errorf("%+v", a)
	}
}
