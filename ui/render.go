package ui

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/ui/session"
)

// noTime is the zero time.
var noTime time.Time

// templates returns the pages by name. Each consists of the layout, the partials and its own file. They take megabytes, so
// they are read when the first page is requested.
var templates = sync.OnceValue(readTemplates)

// shared are the files of templates that every page can use.
var shared = []string{"templates/layout.html", "templates/partials.html", "templates/forms.html", "templates/preview.html"}

func readTemplates() map[string]*template.Template {
	base := template.Must(template.New("").Funcs(funcs).Funcs(previewFuncs).ParseFS(templateFiles, shared...))
	files, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		panic(err) // the pattern is constant
	}
	pages := map[string]*template.Template{}
	for _, file := range files {
		if !slices.Contains(shared, file) {
			pages[strings.TrimSuffix(path.Base(file), ".html")] = template.Must(template.Must(base.Clone()).ParseFS(templateFiles, file))
		}
	}
	return pages
}

// funcs are the functions of templates. Text of boxes and visitors goes through "text".
var funcs = template.FuncMap{
	"asset":    assetPath,
	"ago":      ago,
	"boxpath":  boxPath,
	"bytes":    size,
	"clock":    func(t time.Time) string { return t.UTC().Format("15:04:05") },
	"count":    number,
	"cpu":      func(ns int64) string { return time.Duration(ns).Round(time.Second).String() },
	"duration": func(d time.Duration) string { return d.Round(max(d/1000, time.Microsecond)).String() },
	"iso":      func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"join":     func(list []string) string { return Visible(strings.Join(list, ", ")) },
	"mark":     markOf,
	"pick":     pick,
	"short":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
	"text":     func(v any) string { return Visible(fmt.Sprint(v)) },
	"unix":     func(n int64) time.Time { return fromUnix(n) },
	"query":    withQuery,
}

// fromUnix returns the time of Unix seconds, or the zero time for 0, which the API uses for no time.
func fromUnix(n int64) time.Time {
	if n == 0 {
		return noTime
	}
	return time.Unix(n, 0)
}

// boxPath returns the path of a page below a box.
func boxPath(id any, below ...any) string {
	p := Prefix + "boxes/" + url.PathEscape(fmt.Sprint(id))
	for _, b := range below {
		p += "/" + url.PathEscape(fmt.Sprint(b))
	}
	return p
}

// pick returns a map of the arguments, which alternate between keys and values, for partials with several inputs.
func pick(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}

// withQuery returns a query string, from arguments that alternate between names and values. Empty values are left out.
func withQuery(pairs ...any) string {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if v := fmt.Sprint(pairs[i+1]); v != "" {
			q.Set(fmt.Sprint(pairs[i]), v)
		}
	}
	if len(q) == 0 {
		return "?"
	}
	return "?" + q.Encode()
}

// number formats a count with separators between groups of three digits.
func number(v any) string {
	s := fmt.Sprint(v)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// size formats a number of bytes with three digits and a decimal unit.
func size(v any) string {
	n, err := strconv.ParseFloat(fmt.Sprint(v), 64)
	if err != nil || n < 1000 {
		return fmt.Sprint(v) + " B"
	}
	units := []string{"kB", "MB", "GB", "TB", "PB", "EB"}
	unit := min(int(math.Log10(n)/3), len(units))
	n /= math.Pow(1000, float64(unit))
	return strconv.FormatFloat(n, 'g', 3, 64) + " " + units[unit-1]
}

// ago formats how long ago a time was, in the largest unit that fits.
func ago(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	d := time.Since(t)
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s ago"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min ago"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + " h ago"
	}
	return strconv.Itoa(int(d.Hours()/24)) + " d ago"
}

// mark is how a verdict is shown: with a shape and a word, and a class for its colour.
type mark struct{ Shape, Word, Class string }

// marks are all marks, for filters.
var marks = []mark{{"▲", "denied", "deny"}, {"●", "allowed", "allow"}, {"◆", "would deny", "would"}}

// markOf returns the mark of a decision.
func markOf(e audit.Event) mark {
	switch {
	case e.Verdict != policy.Allow:
		return marks[0]
	case e.Reason == name.ReasonWouldDeny:
		return marks[2]
	}
	return marks[1]
}

// document is the input of the layout.
type document struct {
	Title   string // of the page
	Head    string // the whole title of the window
	Section string
	Box     *boxHead
	Nav     []navItem
	Session session.Session
	Token   string // for forms
	Path    string // of the page with its query
	Data    any
}

// render writes a page.
func (u *UI) render(w http.ResponseWriter, r *http.Request, s session.Session, page view) {
	doc := document{
		Title: page.title, Head: page.title + " – boxgate", Section: page.section, Box: page.box, Nav: u.navFor(s.Caller.Role), Session: s,
		Token: s.Token, Path: r.URL.RequestURI(), Data: page.data,
	}
	if page.box != nil {
		doc.Head = page.title + " – " + Visible(page.box.Label()) + " – boxgate"
	}
	u.write(w, page.name, cmp.Or(page.status, http.StatusOK), doc)
}

// write executes a template and sends the result.
func (u *UI) write(w http.ResponseWriter, name string, status int, doc document) {
	var b bytes.Buffer
	page, ok := templates()[name]
	if !ok {
		panic("no such template: " + name)
	}
	if err := page.ExecuteTemplate(&b, "layout", doc); err != nil {
		u.Log.Error("a page of the dashboard cannot be rendered", zap.String("page", name), zap.Error(err))
		http.Error(w, "The page cannot be shown. The log of the gateway has the reason.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	send(w, status, b.Bytes())
}

// send sends a response whose browser has sendTime to receive it.
func send(w http.ResponseWriter, status int, content []byte) {
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	_ = rc.SetWriteDeadline(time.Now().Add(sendTime))
	w.WriteHeader(status)
	_, _ = w.Write(content)
	_ = rc.Flush() // within the deadline: the server would send the rest without one
	_ = rc.SetWriteDeadline(noTime)
}

// navItem is an entry of the navigation.
type navItem struct {
	Name, Path string
	roles      []api.Role // that see it; nil: all
}

// navigation lists the pages that are not about one box. It leaves out pages whose calls a role may not make; the API
// refuses their calls in any case.
var navigation = []navItem{
	{"Boxes", Prefix, []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleReader, api.RoleBox}},
	{"Requests", Prefix + "requests", []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleReader, api.RoleBox, api.RoleApprover}},
	{"Policies", Prefix + "policies", []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleReader}},
	{"Header rules", Prefix + "rules", []api.Role{api.RoleAdmin, api.RoleReader}},
	{"URLs", Prefix + "urls", []api.Role{api.RoleAdmin, api.RoleCreator, api.RoleReader, api.RoleBox}},
	{"Secrets", Prefix + "secrets", []api.Role{api.RoleAdmin, api.RoleReader, api.RoleAuditor}},
	{"Keys", Prefix + "keys", []api.Role{api.RoleAdmin}},
	{"Trail", Prefix + "trail", []api.Role{api.RoleAdmin, api.RoleAuditor}},
	{"Report", Prefix + "report", []api.Role{api.RoleAdmin, api.RoleAuditor}},
	{"Gateway", Prefix + "gateway", []api.Role{api.RoleAdmin, api.RoleReader}},
	{fleetSection, Prefix + "fleet", []api.Role{api.RoleAdmin, api.RoleReader}},
}

// fleetSection is the entry of the navigation that only a gateway in a fleet has.
const fleetSection = "Fleet"

// navFor returns the navigation of a role.
func (u *UI) navFor(role api.Role) (list []navItem) {
	for _, item := range navigation {
		if (u.Fleet || item.Name != fleetSection) && slices.Contains(item.roles, role) {
			list = append(list, item)
		}
	}
	return list
}
