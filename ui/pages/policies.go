package pages

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/spec"
	"boxgate/policy"
	"boxgate/policy/authority"
	"boxgate/policy/document"
	"boxgate/ui/preview"
)

// namedPolicy is a named policy, as the API shows it.
type namedPolicy struct {
	Name     string
	Policy   json.RawMessage
	Version  uint64
	Boxes    []boxName
	Warnings []problem
	Fleet    bool // it is the fleet's: a change is one of all hosts
}

// Path returns the path of the policy's page.
func (n namedPolicy) Path() string { return pathTo("policies", n.Name) }

// API returns the path of the policy in the API, for changes.
func (n namedPolicy) API() string {
	path := namedPath + "/" + url.PathEscape(n.Name)
	if n.Fleet {
		path += "?fleet=true"
	}
	return path
}

// Summary describes the policy in a few words: its mode, and the number of entries of each list.
func (n namedPolicy) Summary() string {
	var s policy.Spec
	if json.Unmarshal(n.Policy, &s) != nil {
		return ""
	}
	parts := []string{string(s.Mode)}
	for _, list := range []struct {
		count int
		name  string
	}{
		{len(s.AllowedDomains) + len(s.AllowedCIDRs), "allowed"}, {len(s.DeniedDomains) + len(s.DeniedCIDRs), "denied"}, {len(s.Rules), "request rules"},
	} {
		if list.count > 0 {
			parts = append(parts, strconv.Itoa(list.count)+" "+list.name)
		}
	}
	return strings.Join(parts, ", ")
}

func policyRoutes() []Route {
	return []Route{
		{"GET " + Prefix + "policies", policiesPage},
		{"GET " + Prefix + "policies/{name}", policyPage},
		{"POST " + Prefix + "policies/{name}", changePolicy},
		{"POST " + Prefix + "policies/{name}/delete", deletePolicy},
	}
}

// policyList is the data of the page of named policies.
type policyList struct {
	Policies []namedPolicy
	Pager    Pager
	MayEdit  bool
}

const namedPath = "/v2/box/settings/network-policies"

// policiesPage lists the named policies. Its form for a new one leads to the page of that name.
func policiesPage(v *Visit) (View, error) {
	if name := v.asked("create"); name != "" {
		return View{Location: pathTo("policies", name) + "?new=1"}, nil
	}
	data := policyList{MayEdit: v.is(api.RoleAdmin)}
	if err := v.get(namedPath, &data.Policies); err != nil {
		return View{}, err
	}
	data.Policies, data.Pager = paged(v, data.Policies)
	return View{Name: "policies", Title: "Named policies", Section: "Policies", Data: data}, nil
}

// policyForm is the data of the page of a named policy.
type policyForm struct {
	namedPolicy
	New     bool
	MayEdit bool
	Form    Form
	Text    string // of the policy, in the editor
	Checked string // identifies the text and version that were checked; "" if there was no check
	Effects []effect
	Source  []preview.SourceLine // the text with its problems
	More    int                  // followers beyond the effects
}

// Shown returns the lines of the policy, for readers.
func (p policyForm) Shown() []string { return strings.Split(p.Text, "\n") }

// effect is the effect of a candidate on a box.
type effect struct {
	Box    boxName
	Replay spec.Replay
}

// Headers returns the header rules that cover some of the names that the candidate opens.
func (e effect) Headers() (list []string) {
	for _, l := range e.Replay.Authority.Gained {
		list = append(list, l.Headers...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// isNarrow reports whether it is exact names on certain ports, without credentials of header rules.
func isNarrow(l authority.Line) bool {
	named := l.Kind == authority.KindName && len(l.Ports) > 0 || l.Kind == authority.KindQuery
	return named && !l.Wide && len(l.Headers) == 0 && !strings.Contains(l.Name, "*")
}

// Retype reports whether the name of the policy must be typed to apply it, because it opens more than exact names.
func (p policyForm) Retype() bool {
	return slices.ContainsFunc(p.Effects, func(e effect) bool {
		return slices.ContainsFunc(e.Replay.Authority.Gained, func(l authority.Line) bool { return !isNarrow(l) }) || e.Replay.Authority.More > 0
	})
}

// mostEffects bounds the boxes whose traffic is replayed for a check.
const mostEffects = 10

// newPolicy is the text of the editor for a new policy.
const newPolicy = "{\n  \"mode\": \"custom\",\n  \"allowed_domains\": [\"api.example.com\"]\n}"

// onePolicy reads the named policy of a visit. The policy of a page for a new one is empty.
func onePolicy(v *Visit) (data policyForm, err error) {
	data.MayEdit = v.is(api.RoleAdmin)
	err = v.get(namedPath+"/"+url.PathEscape(v.R.PathValue("name")), &data.namedPolicy)
	if isMissing(err) && data.MayEdit && v.R.URL.Query().Has("new") {
		data.New, data.namedPolicy = true, namedPolicy{Name: v.R.PathValue("name"), Policy: json.RawMessage(newPolicy)}
		err = nil
	}
	data.Text = indented(data.Policy)
	return data, err
}

// indented formats a document for reading.
func indented(text json.RawMessage) string {
	var out bytes.Buffer
	if json.Indent(&out, text, "", "  ") != nil {
		return string(text)
	}
	return out.String()
}

func policyPage(v *Visit) (View, error) {
	data, err := onePolicy(v)
	if err != nil {
		return View{}, err
	}
	return showPolicy(data, 0), nil
}

func showPolicy(data policyForm, status int) View {
	return View{Name: "policy-named", Title: "Policy " + data.Name, Section: "Policies", Status: status, Data: data}
}

// CheckOf identifies a text that was checked against a version. It protects people from applying a text that they have edited
// since, not the gateway: whoever can send the form can set the policy.
func CheckOf(text string, version uint64) string {
	sum := sha256.Sum256([]byte(strconv.FormatUint(version, 10) + "\n" + text))
	return hex.EncodeToString(sum[:])
}

// changePolicy checks the text of the editor, or applies the text that was checked. A text that was changed since then is checked
// again. A text for a version that was replaced is not applied; the API compares the versions as well.
func changePolicy(v *Visit) (View, error) {
	data, err := onePolicy(v)
	if err != nil {
		return View{}, err
	}
	now := data.Version
	data.Text = strings.ReplaceAll(v.R.PostForm.Get("policy"), "\r\n", "\n")
	data.Version, _ = strconv.ParseUint(v.field("version"), 10, 64)
	members, err := membersOf(data.Text)
	if err != nil {
		data.Version = now
		data.Form = Form{Problems: map[string]string{"policy": err.Error()}, Message: "The policy has a problem; see below."}
		return showPolicy(data, http.StatusUnprocessableEntity), nil
	}
	if data.Version != now {
		return changedElsewhere(data, now), nil
	}
	if err := check(v, &data, members); err != nil {
		return policyRefused(v, data, err)
	}
	data.Checked = CheckOf(data.Text, now)
	if v.field("do") != "apply" || v.field("checked") != data.Checked {
		return showPolicy(data, 0), nil
	}
	if data.Retype() && v.field("confirm") != data.Name {
		data.Form = Form{Problems: map[string]string{"apply": "type the name of the policy to apply it"}}
		return showPolicy(data, http.StatusUnprocessableEntity), nil
	}
	members["version"] = json.RawMessage(strconv.FormatUint(now, 10))
	err = v.send("PUT", data.API(), members, nil)
	refused, ok := errors.AsType[*api.ResponseError](err)
	switch {
	case err == nil:
		return View{Location: data.Path()}, nil
	case ok && refused.Status == http.StatusPreconditionFailed:
		return changedElsewhere(data, now), nil
	}
	return policyRefused(v, data, err)
}

// changedElsewhere shows a text again that is for another version than the one in force.
func changedElsewhere(data policyForm, now uint64) View {
	data.Version, data.Checked, data.Effects = now, "", nil
	data.Form = Form{Message: "The policy was changed in the meantime. Your text is below: compare it with the version in force, and check it again."}
	return showPolicy(data, http.StatusPreconditionFailed)
}

// policyRefused shows the problems of a policy with their JSON pointers.
func policyRefused(v *Visit, data policyForm, err error) (View, error) {
	f, status, other := v.refused(err)
	if other != nil {
		return View{}, other
	}
	data.Checked, data.Effects = "", nil
	if refused, ok := errors.AsType[*api.ResponseError](err); ok && len(refused.Problems) > 0 {
		f.Message, f.Problems["policy"] = "The policy has a problem; see below.", "is no policy; the problems are at their lines below"
		var notes []preview.Note
		for _, p := range refused.Problems {
			notes = append(notes, preview.Note{Pointer: p.Pointer, Message: p.Message, Problem: true})
		}
		data.Source = preview.Excerpt(preview.Source(data.Text, notes))
	}
	data.Form = f
	return showPolicy(data, status), nil
}

// membersOf returns the members of a policy in JSON, without the ones that the API adds when it shows a policy.
func membersOf(text string) (members map[string]json.RawMessage, err error) {
	if err := json.Unmarshal([]byte(text), &members); err != nil {
		var scalar string
		if json.Unmarshal([]byte(text), &scalar) == nil {
			return nil, errors.New(`write a mode as an object: {"mode": "allow-all"}`)
		}
		return nil, errors.New("is not a JSON object: " + err.Error())
	}
	if members == nil {
		return nil, errors.New("is not a JSON object")
	}
	delete(members, "version")
	delete(members, "warnings")
	return members, nil
}

// check compares a candidate with the policy in force for the boxes that follow it. Without followers, it looks for problems of the
// text alone.
func check(v *Visit, data *policyForm, members map[string]json.RawMessage) error {
	if len(data.Boxes) == 0 {
		text, err := json.Marshal(members)
		if err != nil {
			return err
		}
		_, err = spec.ParsePolicy(text)
		if invalid, ok := errors.AsType[*document.InvalidError](err); ok {
			return &api.ResponseError{Status: http.StatusUnprocessableEntity, Problems: invalid.Problems}
		}
		return err
	}
	for i, b := range data.Boxes {
		if i == mostEffects {
			data.More = len(data.Boxes) - i
			break
		}
		e := effect{Box: b}
		if err := v.send("POST", api.BoxPath(b.ID, "egress", "replay")+"?since=7d", members, &e.Replay); err != nil {
			return err
		}
		data.Effects = append(data.Effects, e)
	}
	return nil
}

func deletePolicy(v *Visit) (View, error) {
	data, err := onePolicy(v)
	if err != nil {
		return View{}, err
	}
	if v.field("delete") != data.Name {
		data.Form = Form{Problems: map[string]string{"delete": "type the name of the policy to delete it"}}
		return showPolicy(data, http.StatusUnprocessableEntity), nil
	}
	err = v.send("DELETE", data.API(), nil, nil)
	if err == nil {
		return View{Location: Prefix + "policies"}, nil
	}
	return policyRefused(v, data, err)
}
