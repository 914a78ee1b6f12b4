package ui

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/policy/amend"
)

func (u *UI) historyRoutes() []route {
	return []route{{"GET /ui/boxes/{id}/history", serveHistory}}
}

// versionsPerPage is how many versions of a policy one page lists.
const versionsPerPage = 50

// historyPage is the input of the history of a policy.
type historyPage struct {
	Box      box
	List     api.PolicyVersions
	Older    string // link to the next page
	A, B     string // versions to compare, as given
	Wrong    string // with A or B
	Compared *comparison
}

// comparison is the difference of two versions of a policy.
type comparison struct {
	Before, After api.PolicyDocument
	Diff          []amend.Difference
	Entries       []amend.Difference // temporary ones
}

// Cause describes the cause of a version.
func (historyPage) Cause(v api.PolicyVersion) string { return strings.ReplaceAll(v.Cause, "_", " ") }

// Previous returns the query that compares a version with the one before it in a list, or "" if it is the first.
func (p historyPage) Previous(i int) string {
	if i+1 >= len(p.List.Versions) {
		return ""
	}
	return "?" + url.Values{"a": {version(p.List.Versions[i+1].Version)}, "b": {version(p.List.Versions[i].Version)}}.Encode()
}

func version(n uint64) string { return strconv.FormatUint(n, 10) }

// serveHistory lists the versions of the policy of a box, and compares two of them.
func serveHistory(v *visit) (view, error) {
	b, head, err := v.box()
	if err != nil {
		return view{}, err
	}
	q := v.r.URL.Query()
	p := historyPage{Box: b, A: strings.TrimSpace(q.Get("a")), B: strings.TrimSpace(q.Get("b"))}
	query := url.Values{"limit": {strconv.Itoa(versionsPerPage)}}
	if before := q.Get("before"); before != "" {
		query.Set("before", before)
	}
	if err := v.get(api.BoxPath(string(b.ID), "egress/policy-history")+"?"+query.Encode(), &p.List); err != nil {
		return view{}, err
	}
	if n := len(p.List.Versions); p.List.More && n > 0 {
		p.Older = "?" + url.Values{"before": {version(p.List.Versions[n-1].Version)}}.Encode()
	}
	status := http.StatusOK
	if p.A != "" || p.B != "" {
		if err := v.compare(&p); err != nil {
			return view{}, err
		}
		if p.Wrong != "" {
			status = http.StatusNotFound
		}
	}
	return view{name: "history", title: "History", section: "Boxes", box: head, data: p, status: status}, nil
}

// compare fills in the difference of the two versions of the query.
func (v *visit) compare(p *historyPage) error {
	c := comparison{}
	for _, one := range []struct {
		number string
		doc    *api.PolicyDocument
	}{{p.A, &c.Before}, {p.B, &c.After}} {
		err := v.get(api.BoxPath(string(p.Box.ID), "egress/policy-history", url.PathEscape(one.number)), one.doc)
		if refused, ok := err.(*api.ResponseError); ok && refused.Status == http.StatusNotFound {
			p.Wrong = refused.Message
			return nil
		}
		if err != nil {
			return err
		}
	}
	c.Diff, c.Entries = amend.Diff(c.Before.Policy, c.After.Policy), entriesDiff(c.Before.Entries, c.After.Entries)
	p.Compared = &c
	return nil
}

// entriesDiff returns the temporary entries that only one of two versions has.
func entriesDiff(before, after []api.PastLease) (list []amend.Difference) {
	key := func(l api.PastLease) string { return strings.TrimSpace(l.Action + " " + l.Entry) }
	only := func(in, other []api.PastLease, added bool) {
		has := map[string]bool{}
		for _, l := range other {
			has[key(l)] = true
		}
		for _, l := range in {
			if !has[key(l)] {
				list = append(list, amend.Difference{Added: added, Field: "temporary", Entry: key(l)})
			}
		}
	}
	only(before, after, false)
	only(after, before, true)
	return list
}
