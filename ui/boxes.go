package ui

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/policy"
)

// box is a box as the API describes it.
type box struct {
	ID             policy.BoxID  `json:"id"`
	Name           string        `json:"name"`
	Labels         []string      `json:"labels"`
	Status         api.Status    `json:"status"`
	Error          string        `json:"error"`
	Progress       string        `json:"progress"`
	Runtime        string        `json:"runtime"`
	Size           string        `json:"size"`
	IPv4           string        `json:"ipv4"`
	IPv6           string        `json:"ipv6"`
	Policy         policySummary `json:"network_policy"`
	PolicyVersion  uint64        `json:"policy_version"`
	NamedPolicy    string        `json:"named_policy"`
	CreatedBy      string        `json:"created_by"`
	CPU            int64         `json:"total_cpu_ns"`
	Usage          boxUsage      `json:"usage"`
	CreatedAt      int64         `json:"created_at"`
	ExpiresAt      int64         `json:"expires_at"` // 0: never
	LastActivityAt int64         `json:"last_activity_at"`
}

// policySummary is the part of a policy that lists show.
type policySummary struct {
	Mode           policy.Mode       `json:"mode"`
	AllowedDomains []string          `json:"allowed_domains"`
	DeniedDomains  []string          `json:"denied_domains"`
	AllowedCIDRs   []string          `json:"allowed_cidrs"`
	DeniedCIDRs    []string          `json:"denied_cidrs"`
	Rules          []json.RawMessage `json:"rules"`
}

// boxUsage is the usage of a box since it was created.
type boxUsage struct {
	Memory   int64  `json:"memory_bytes"`
	BytesIn  uint64 `json:"bytes_in"`
	BytesOut uint64 `json:"bytes_out"`
	Disk     int64  `json:"disk_bytes"`

	Models *modelUsage `json:"models"`
}

// modelUsage is the use of models by a box.
type modelUsage struct {
	modelSum
	AssumedTokens int64         `json:"assumed_tokens"`
	Models        []modelSum    `json:"models"`
	Budgets       []modelBudget `json:"budgets"`
}

// modelSum is the use of one model, or of several. Model is text of the box.
type modelSum struct {
	Model      string  `json:"model"`
	Requests   int64   `json:"requests"`
	Input      int64   `json:"input_tokens"`
	Output     int64   `json:"output_tokens"`
	CacheRead  int64   `json:"cache_read_tokens"`
	CacheWrite int64   `json:"cache_write_tokens"`
	USD        float64 `json:"cost_usd"`
}

// Tokens returns all tokens.
func (s modelSum) Tokens() int64 { return s.Input + s.Output + s.CacheRead + s.CacheWrite }

// Cost formats the cost.
func (s modelSum) Cost() string { return fmt.Sprintf("$%.4f", s.USD) }

// modelBudget is a limit of models with its use.
type modelBudget struct {
	Of     string  `json:"of"`
	Tokens int64   `json:"tokens"`
	USD    float64 `json:"usd"`
	Per    string  `json:"per"`
	Ratio  float64 `json:"used_ratio"`
	EndsAt int64   `json:"ends_at"`
}

// Used formats the used part of the limit.
func (b modelBudget) Used() string { return fmt.Sprintf("%.0f %%", 100*b.Ratio) }

// Host returns the ID of the host of the fleet that has the box, with which its own ID begins.
func (b box) Host() string { return string(b.ID[:min(len(b.ID), hostDigits)]) }

// hostDigits is the length of the ID of a host.
const hostDigits = 6

// Label returns the name of the box, or its ID.
func (b box) Label() string { return cmp.Or(b.Name, string(b.ID)) }

// boxHead is the part of a box above each of its pages.
type boxHead struct {
	ID     policy.BoxID
	Name   string
	Status api.Status // empty: the caller may not see it
	Tab    string     // that is current, if it is not the title of the page
	Tabs   []navItem
}

// Label returns the name of the box, or its ID.
func (b *boxHead) Label() string { return cmp.Or(b.Name, string(b.ID)) }

// boxTabs are the pages of a box. Their names are the titles of the pages.
var boxTabs = []struct {
	name, path string
	roles      []api.Role
}{
	{"Decisions", "", []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleReader, api.RoleBox, api.RoleAuditor}},
	{"Policy", "policy", []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleReader, api.RoleBox}},
	{"History", "history", []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleReader, api.RoleBox, api.RoleAuditor}},
	{"Header rules", "headers", []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleReader, api.RoleBox}},
	{"URLs", "urls", []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleReader, api.RoleBox}},
}

// box reads the box of a page by the ID or name in its path, and returns it with its head. A role that may not see boxes gets the
// ID alone.
func (v *visit) box() (box, *boxHead, error) {
	var b box
	id := v.r.PathValue("id")
	seen, err := v.optional(api.BoxPath(id), &b)
	if err != nil {
		return b, nil, err
	}
	if !seen {
		b.ID = policy.BoxID(id)
	}
	head := &boxHead{ID: b.ID, Name: b.Name, Status: b.Status}
	for _, tab := range boxTabs {
		if slices.Contains(tab.roles, v.session.Caller.Role) {
			path := boxPath(b.ID)
			if tab.path != "" {
				path = boxPath(b.ID, tab.path)
			}
			head.Tabs = append(head.Tabs, navItem{Name: tab.name, Path: path})
		}
	}
	return b, head, nil
}

func (u *UI) boxesRoutes() []route {
	return []route{{"GET /ui/{$}", serveBoxes}, {"GET /ui/activity", serveActivity}}
}

// boxesPerPage is how many boxes one page lists.
const boxesPerPage = 250

// boxRow is a row of the page of boxes.
type boxRow struct {
	box
	Requests int    // open ones
	Denied   uint64 // in the last hour
	Latest   row    // decision; its Event has no time if there is none
}

// boxesPage is the input of the page of boxes.
type boxesPage struct {
	Rows           []boxRow
	Shown, All     int
	Query, State   string
	Label, Sort    string
	States, Labels []string
	Requests       bool // the caller may see requests
	Fleet          bool // boxes have a host
	OwnOnly        bool // the session reaches the boxes of this host only
	Pager          pager
}

// firstPages are the first pages of the roles that see no boxes.
var firstPages = map[api.Role]string{api.RoleAuditor: "trail", api.RoleApprover: "requests"}

// serveBoxes lists the boxes that the caller sees. Roles that see no boxes go to their first page.
func serveBoxes(v *visit) (view, error) {
	if page := firstPages[v.session.Caller.Role]; page != "" {
		return view{location: Prefix + page}, nil
	}
	var all []box
	if err := v.get("/v2/box", &all); err != nil {
		return view{}, err
	}
	requests, seen, err := v.openRequests()
	if err != nil {
		return view{}, err
	}
	activity, err := v.activity()
	if err != nil {
		return view{}, err
	}
	q := v.r.URL.Query()
	page := boxesPage{All: len(all), Query: q.Get("q"), State: q.Get("state"), Label: q.Get("label"), Sort: q.Get("sort"), Requests: seen, Fleet: v.ui.Fleet, OwnOnly: v.ui.Fleet && !v.session.Caller.Fleet}
	for _, b := range all {
		if !slices.Contains(page.States, string(b.Status)) {
			page.States = append(page.States, string(b.Status))
		}
		for _, l := range b.Labels {
			if !slices.Contains(page.Labels, l) {
				page.Labels = append(page.Labels, l)
			}
		}
		if page.selects(b) {
			a := activity[b.ID]
			page.Rows = append(page.Rows, boxRow{box: b, Requests: requests[b.ID], Denied: a.Denied, Latest: rowOf(a.Latest)})
		}
	}
	slices.Sort(page.States)
	slices.Sort(page.Labels)
	page.sort()
	page.Shown = len(page.Rows)
	page.Rows, page.Pager = paged(v, page.Rows, boxesPerPage)
	return view{name: "boxes", title: "Boxes", section: "Boxes", data: page}, nil
}

// openRequests counts the open requests of each box for access. seen is false if the caller may not see them.
func (v *visit) openRequests() (counts map[policy.BoxID]int, seen bool, err error) {
	var open []struct{ Box policy.BoxID }
	seen, err = v.optional("/v2/approvals?state=open", &open)
	counts = map[policy.BoxID]int{}
	for _, r := range open {
		counts[r.Box]++
	}
	return counts, seen, err
}

// boxActivity is the activity of a box, see [audit.Activity].
type boxActivity struct {
	Box    policy.BoxID `json:"box"`
	Denied uint64       `json:"denied_last_hour"`
	Latest audit.Event  `json:"latest"`
}

// activity reads the activity of the boxes that the caller sees.
func (v *visit) activity() (map[policy.BoxID]boxActivity, error) {
	var list []boxActivity
	_, err := v.optional("/v2/egress/activity", &list)
	all := make(map[policy.BoxID]boxActivity, len(list))
	for _, a := range list {
		all[a.Box] = a
	}
	return all, err
}

// serveActivity serves the activity of all boxes to the script of the list, which asks every few seconds.
func serveActivity(v *visit) (view, error) {
	all, err := v.activity()
	if err != nil {
		return view{}, err
	}
	type line struct {
		Denied uint64 `json:"denied"`
		Latest row    `json:"latest"`
	}
	lines := make(map[policy.BoxID]line, len(all))
	for id, a := range all {
		lines[id] = line{a.Denied, rowOf(a.Latest)}
	}
	text, err := json.Marshal(lines)
	if err != nil {
		return view{}, err
	}
	v.w.Header().Set("Content-Type", "application/json")
	send(v.w, http.StatusOK, text)
	return view{written: true}, nil
}

// selects reports whether the filter of the page selects a box.
func (p *boxesPage) selects(b box) bool {
	word := strings.ToLower(p.Query)
	return (p.State == "" || string(b.Status) == p.State) && (p.Label == "" || slices.Contains(b.Labels, p.Label)) &&
		(word == "" || strings.Contains(strings.ToLower(b.Name), word) || strings.Contains(string(b.ID), word) || strings.Contains(strings.ToLower(b.NamedPolicy), word))
}

// sort orders the rows by the column that the page names, and then by name. A dash before the column reverses it.
func (p *boxesPage) sort() {
	column, descending := strings.CutPrefix(p.Sort, "-")
	by := func(a, b boxRow) int {
		switch column {
		case "host":
			return cmp.Compare(a.Host(), b.Host())
		case "state":
			return cmp.Compare(a.Status, b.Status)
		case "policy":
			return cmp.Or(cmp.Compare(a.NamedPolicy, b.NamedPolicy), cmp.Compare(a.Policy.Mode, b.Policy.Mode))
		case "requests":
			return cmp.Compare(a.Requests, b.Requests)
		case "denied":
			return cmp.Compare(a.Denied, b.Denied)
		case "latest":
			return a.Latest.Event.Time.Compare(b.Latest.Event.Time)
		}
		return 0
	}
	slices.SortStableFunc(p.Rows, func(a, b boxRow) int {
		named := cmp.Or(cmp.Compare(a.Label(), b.Label()), cmp.Compare(a.ID, b.ID))
		if column == "name" && descending {
			return -named
		}
		order := by(a, b)
		if descending {
			order = -order
		}
		return cmp.Or(order, named)
	})
}

// mostFirst are the columns that are sorted in descending order first.
var mostFirst = []string{"requests", "denied", "latest"}

// SortBy returns the query that sorts by a column, in the other direction if the page is sorted by it.
func (p boxesPage) SortBy(column string) string {
	sort := column
	if slices.Contains(mostFirst, column) && p.Sort != "-"+column || p.Sort == column {
		sort = "-" + column
	}
	return withQuery("q", p.Query, "state", p.State, "label", p.Label, "sort", sort)
}

// Sorted returns the value of aria-sort for a column.
func (p boxesPage) Sorted(column string) string {
	switch {
	case p.Sort == column, p.Sort == "" && column == "name":
		return "ascending"
	case p.Sort == "-"+column:
		return "descending"
	}
	return "none"
}

// pager links the pages of a long list.
type pager struct {
	Previous, Next string // queries, or empty
	Text           string // position in the list
}

// paged returns the part of a list that the query parameter "page" selects, and the links to its neighbours. A page beyond the end
// is the last one.
func paged[T any](v *visit, list []T, most int) ([]T, pager) {
	pages := max((len(list)+most-1)/most, 1)
	n, err := strconv.Atoi(v.r.URL.Query().Get("page"))
	if err != nil || n < 1 {
		n = 1
	}
	n = min(n, pages)
	first, last := (n-1)*most, min(n*most, len(list))
	p := pager{Text: number(first+1) + "–" + number(last) + " of " + number(len(list))}
	link := func(page int) string {
		q := v.r.URL.Query()
		q.Set("page", strconv.Itoa(page))
		return "?" + q.Encode()
	}
	if n > 1 {
		p.Previous = link(n - 1)
	}
	if n < pages {
		p.Next = link(n + 1)
	}
	return list[first:last], p
}
