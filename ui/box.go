package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/remedy"
	"boxgate/policy"
)

func (u *UI) boxRoutes() []route {
	return []route{
		{"GET /ui/boxes/{id}", serveBox},
		{"GET /ui/boxes/{id}/live", serveLive},
	}
}

// row is a decision as a table shows it. All its texts are safe to show, see [Visible].
type row struct {
	Seq     uint64 `json:"seq"`
	Nanos   string `json:"at"` // Unix time; a string, since scripts would round a number
	Verdict string `json:"verdict"`
	Stage   string `json:"stage"`
	Method  string `json:"method,omitempty"`
	Host    string `json:"host"`
	Port    uint16 `json:"port,omitempty"`
	Path    string `json:"path,omitempty"`
	Reason  string `json:"reason"`
	Rule    string `json:"rule,omitempty"`
	Count   uint64 `json:"count,omitempty"`
	Domain  string `json:"domain,omitempty"` // registrable, of a denial

	Event audit.Event `json:"-"`
}

// rowOf returns the row of a decision.
func rowOf(e audit.Event) row {
	domain := ""
	if e.Verdict != policy.Allow {
		domain = Visible(domainOf(e))
	}
	return row{
		Domain: domain, Seq: e.Seq, Nanos: strconv.FormatInt(e.Time.UnixNano(), 10), Verdict: markOf(e).Class, Stage: Visible(string(e.Stage)), Method: Visible(e.Method),
		Host: Visible(hostOf(e)), Port: e.Port, Path: Visible(e.Path), Reason: Visible(string(e.Reason)), Rule: Visible(e.Rule), Count: e.Count, Event: e,
	}
}

// hostOf returns the name of a decision, or its address.
func hostOf(e audit.Event) string {
	if e.Name == "" && e.Addr.IsValid() {
		return e.Addr.String()
	}
	return e.Name
}

// Link returns the path of the page about the decision, below the path of the decisions of its box.
func (r row) Link() string { return strconv.FormatUint(r.Seq, 10) + "?at=" + r.Nanos }

// group is the denials of the hosts of one registrable domain.
type group struct {
	Domain  string
	Count   uint64
	Last    row // the latest
	Reasons []string
	Hosts   []host
	More    bool // there are more hosts
}

// host is the denials of one host and port.
type host struct {
	Latest row
	Count  uint64
	Allow  string // path of the page that allows it; empty: no entry of a policy does, or another host has the same path
}

// Limits of the page of a box: rows unless it is asked for all, groups of denials, and hosts in each.
const (
	rowsAtFirst = 100
	maxGroups   = 40
	maxHosts    = 12
)

// boxPage is the input of the page of a box.
type boxPage struct {
	Box      box
	Seen     bool // the caller may see the box
	Rows     []row
	All      string // query of the page with all rows; empty: it has them
	Groups   []group
	More     int    // groups that are not shown
	Newest   uint64 // number of the latest decision that the groups count
	Run      string // of the gateway, which the number belongs to
	Filter   filter
	Verdicts []mark
	Stages   []policy.Stage
	Stream   string // path of the live decisions
	URLs     []publicURL
	URLsSeen bool
	Requests int
	MayAllow bool
}

// Entries describes the size of the policy.
func (p boxPage) Entries() string {
	var parts []string
	for _, part := range []struct {
		n    int
		what string
	}{
		{len(p.Box.Policy.AllowedDomains) + len(p.Box.Policy.AllowedCIDRs), "allowed"}, {len(p.Box.Policy.DeniedDomains) + len(p.Box.Policy.DeniedCIDRs), "denied"},
		{len(p.Box.Policy.Rules), "request rules"},
	} {
		if part.n > 0 {
			parts = append(parts, number(part.n)+" "+part.what)
		}
	}
	return strings.Join(parts, ", ")
}

// publicURL is a public URL of a box.
type publicURL struct {
	URL  string `json:"url"`
	Port uint16 `json:"port"`
}

// filter selects decisions by the query of the page.
type filter struct{ Verdict, Host, Stage string }

func (f filter) selects(r row) bool {
	return (f.Verdict == "" || r.Verdict == f.Verdict) && (f.Stage == "" || r.Stage == f.Stage) && (f.Host == "" || strings.Contains(strings.ToLower(r.Host), strings.ToLower(f.Host)))
}

// stages are the stages of decisions that the filter offers.
var stages = []policy.Stage{policy.StageDNS, policy.StageKernel, policy.StageConn, policy.StageHTTP, policy.StageDial, policy.StageURL}

// serveBox shows a box: its latest decisions, which a script continues with new ones, denials by domain, and its rules.
func serveBox(v *visit) (view, error) {
	b, head, err := v.box()
	if err != nil {
		return view{}, err
	}
	q := v.r.URL.Query()
	page := boxPage{
		Box: b, Seen: head.Status != "", Verdicts: marks, Stages: stages, Stream: boxPath(b.ID, "live"), Filter: filter{q.Get("verdict"), q.Get("host"), q.Get("stage")},
		MayAllow: mayChange(v.session.Caller.Role),
	}
	var events []audit.Event
	page.Run, err = readEvents(v.r.Context(), v.client, api.BoxPath(string(b.ID), "egress"), func(e audit.Event) { events = append(events, e) })
	if err != nil {
		return view{}, err
	}
	slices.Reverse(events)
	for _, e := range events {
		if r := rowOf(e); page.Filter.selects(r) {
			page.Rows = append(page.Rows, r)
		}
	}
	if len(page.Rows) > rowsAtFirst && !q.Has("all") {
		page.Rows, page.All = page.Rows[:rowsAtFirst], withQuery("verdict", page.Filter.Verdict, "host", page.Filter.Host, "stage", page.Filter.Stage, "all", "1")
	}
	page.Groups, page.More = groupsOf(events)
	if len(events) > 0 {
		page.Newest = events[0].Seq
	}
	if page.Seen {
		var list struct {
			Previews []publicURL `json:"previews"`
		}
		if page.URLsSeen, err = v.optional(api.BoxPath(string(b.ID), "preview"), &list); err != nil {
			return view{}, err
		}
		page.URLs = list.Previews
		var open []json.RawMessage
		if _, err := v.optional(api.BoxPath(string(b.ID), "approvals")+"?state=open", &open); err != nil {
			return view{}, err
		}
		page.Requests = len(open)
	}
	return view{name: "box", title: "Decisions", section: "Boxes", box: head, data: page}, nil
}

// mayChange reports whether a role can change policies, so that buttons that change them are shown. The API decides.
func mayChange(r api.Role) bool {
	return r == api.RoleAdmin || r == api.RoleCreator || r == api.RoleBox
}

// readEvents calls each for the decisions at a path of the API, oldest first, and returns the ID of the gateway's run.
func readEvents(ctx context.Context, c *api.Client, path string, each func(audit.Event)) (run string, err error) {
	err = c.Events(ctx, path, func(id string) { run = id }, func(line []byte) error {
		var e audit.Event
		if json.Unmarshal(line, &e) == nil && !e.Time.IsZero() {
			each(e)
		}
		return nil
	})
	return run, err
}

// groupsOf groups denials by registrable domain, the domain with the latest first. more is the number of domains beyond maxGroups.
// The events are the latest first.
func groupsOf(events []audit.Event) (groups []group, more int) {
	byDomain := map[string]*group{}
	var order []*group
	for _, e := range events {
		if e.Verdict == policy.Allow {
			continue
		}
		domain := domainOf(e)
		g := byDomain[domain]
		if g == nil {
			if len(order) == maxGroups {
				more++
				g = &group{}
				byDomain[domain] = g
				continue
			}
			g = &group{Domain: Visible(domain), Last: rowOf(e)}
			byDomain[domain], order = g, append(order, g)
		}
		g.add(e)
	}
	for _, g := range order {
		slices.SortStableFunc(g.Hosts, func(a, b host) int { return cmp.Compare(b.Count, a.Count) })
		groups = append(groups, *g)
	}
	return groups, more
}

// add counts a denial.
func (g *group) add(e audit.Event) {
	n := max(e.Count, 1)
	g.Count += n
	if reason := Visible(string(e.Reason)); !slices.Contains(g.Reasons, reason) {
		g.Reasons = append(g.Reasons, reason)
	}
	for i := range g.Hosts {
		if h := &g.Hosts[i]; hostOf(h.Latest.Event) == hostOf(e) && h.Latest.Port == e.Port {
			h.Count += n
			return
		}
	}
	if g.More = len(g.Hosts) == maxHosts; !g.More {
		allow := allowPath(e)
		if slices.ContainsFunc(g.Hosts, func(h host) bool { return h.Allow == allow }) {
			allow = "" // a look-up and a connection of one name need the same entry
		}
		g.Hosts = append(g.Hosts, host{Latest: rowOf(e), Count: n, Allow: allow})
	}
}

// domainOf returns the registrable domain of a decision, or its address.
func domainOf(e audit.Event) string {
	h := hostOf(e)
	if domain, err := publicsuffix.EffectiveTLDPlusOne(strings.TrimSuffix(h, ".")); err == nil && e.Name != "" {
		return domain
	}
	return cmp.Or(h, "unknown")
}

// allowPath returns the path of the page that allows the destination of a denial, or "" if no entry of a policy lifts it.
func allowPath(e audit.Event) string {
	o, ok := remedy.OpeningOf(e)
	if !ok {
		return ""
	}
	q := url.Values{"host": {o.Entry}}
	if !o.IsAddress() {
		q = url.Values{"host": {strings.TrimSuffix(o.Entry, ":"+strconv.Itoa(int(o.Port)))}, "port": {strconv.Itoa(int(o.Port))}}
	} else {
		q.Set("port", "")
	}
	return boxPath(e.Box, "allow") + "?" + q.Encode()
}
