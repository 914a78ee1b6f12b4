package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"boxgate/audit/trail"
	"boxgate/policy"
)

// changes collects entries of the audit trail.
type changes struct {
	named   map[policy.BoxID]bool // boxes that had the name of the query
	all     []Change              // in the window
	calls   map[callKey]*Call
	pending map[uint64]trail.Entry // calls in the window without an answer so far
	made    map[versionKey]*Change // the entries that made the versions with decisions
	answers []boxApproval
	removed []trail.Entry // reports of removed entries
}

// callKey identifies the rows of calls.
type callKey struct {
	box    policy.BoxID
	by     Who
	call   string
	status int
}

// versionKey is a version of the policy of a box.
type versionKey struct {
	box     policy.BoxID
	version uint64
}

// boxApproval is an approval with its box.
type boxApproval struct {
	box policy.BoxID
	Approval
}

func newChanges() *changes {
	return &changes{
		named: map[policy.BoxID]bool{}, calls: map[callKey]*Call{}, pending: map[uint64]trail.Entry{}, made: map[versionKey]*Change{},
	}
}

// Name notes the name of a box from an entry of the audit trail. It is needed only for a query by name: call it with all
// entries before [Builder.Decision].
func (b *Builder) Name(e trail.Entry) {
	var made struct {
		Box struct{ Name string } `json:"box"`
	}
	if b.query.Name != "" && e.Box != "" && json.Unmarshal(e.Change.RawMessage, &made) == nil && made.Box.Name == b.query.Name {
		b.changes.named[e.Box] = true
	}
}

// Entry adds an entry of the audit trail. Entries before the window count too, if they made a version of a policy that decided
// in it.
func (b *Builder) Entry(e trail.Entry) {
	e = e.Origin()
	if e.Kind == trail.Removed {
		b.changes.removed = append(b.changes.removed, e)
	}
	if !b.concerns(e) {
		return
	}
	b.madeVersion(e)
	if e.Time.Before(b.query.Since) || !e.Time.Before(b.query.Until) {
		if e.Kind == trail.Answer {
			delete(b.changes.pending, e.Call)
		}
		return
	}
	switch e.Kind {
	case trail.Call:
		if len(b.changes.pending) < MaxRows {
			b.changes.pending[e.Seq] = e
		}
	case trail.Answer:
		delete(b.changes.pending, e.Call)
		if len(e.Change.RawMessage) == 0 {
			b.call(e, 1)
			return
		}
		b.change(e)
	case trail.Policy, trail.Start:
		b.change(e)
	case trail.Refused:
		b.call(e, e.Suppressed+1)
	}
}

// concerns reports whether an entry is about a box of the query. Of the entries about no box, a query for a box or a secret
// selects the ones that may affect it.
func (b *Builder) concerns(e trail.Entry) bool {
	q := &b.query
	switch {
	case q.Secrets != nil:
		return slices.ContainsFunc(q.Secrets, func(s string) bool { return mentions(e.Change.RawMessage, s) })
	case q.Box == "" && q.Name == "":
		return true
	case e.Box != "":
		return e.Box == q.Box || b.changes.named[e.Box] || q.Name != "" && b.boxes[e.Box] != nil
	}
	var what map[string]json.RawMessage
	if json.Unmarshal(e.Change.RawMessage, &what) != nil {
		return false
	}
	return what["headers"] != nil || what["named_policy"] != nil || what["secret_refreshed"] != nil
}

// mentions reports whether a change names a secret: as the whole of a text, or after a host pattern.
func mentions(change json.RawMessage, secret string) bool {
	quoted, err := json.Marshal(secret)
	if err != nil || len(change) == 0 {
		return false
	}
	text := string(change)
	return strings.Contains(text, string(quoted)) || strings.Contains(text, ": "+strings.TrimPrefix(string(quoted), `"`))
}

// madeVersion notes the entry if it made a version of a policy that decided in the window, or if it made one in the window.
func (b *Builder) madeVersion(e trail.Entry) {
	if e.Box == "" || e.PolicyVersion == 0 || e.Kind != trail.Answer && e.Kind != trail.Policy || e.Status >= http.StatusBadRequest {
		return
	}
	x := b.boxes[e.Box]
	within := !e.Time.Before(b.query.Since) && e.Time.Before(b.query.Until)
	if x == nil && within && b.query.Secrets == nil {
		x = b.box(e.Box)
	}
	if x == nil || x.versions[e.PolicyVersion] == nil && !within {
		return
	}
	if x.versions[e.PolicyVersion] == nil {
		if !b.row() {
			b.omitted++
			return
		}
		x.versions[e.PolicyVersion] = &Version{Version: e.PolicyVersion}
	}
	key := versionKey{e.Box, e.PolicyVersion}
	if c := b.changes.made[key]; c == nil || e.Seq > c.Seq {
		made := changeOf(e)
		if !b.take(weight(made.What...)) {
			made.What = []string{"left out: the report is full"}
		}
		b.changes.made[key] = &made
	}
}

// change adds an entry that changed something.
func (b *Builder) change(e trail.Entry) {
	if a, ok := approvalOf(e); ok && b.take(1+weight(a.Asked, a.Reason)) {
		b.changes.answers = append(b.changes.answers, boxApproval{e.Box, a})
	}
	made := changeOf(e)
	if !b.take(1 + weight(made.What...)) {
		b.omitted++
		return
	}
	b.changes.all = append(b.changes.all, made)
}

// call adds calls that recorded no change.
func (b *Builder) call(e trail.Entry, n uint64) {
	key := callKey{e.Box, whoOf(e), e.Route, e.Status}
	c := b.changes.calls[key]
	if c == nil {
		if !b.row() {
			b.omitted++
			return
		}
		c = &Call{By: key.by, Call: e.Route, Status: e.Status, First: e.Time, Last: e.Time}
		b.changes.calls[key] = c
	}
	c.Count += n
	seen(&c.First, &c.Last, e.Time)
}

func whoOf(e trail.Entry) Who { return Who{Key: e.Key, KeyID: e.KeyID, Role: e.Role, Remote: e.Remote} }

func changeOf(e trail.Entry) Change {
	return Change{
		Seq: e.Seq, Time: e.Time, By: whoOf(e), Call: e.Route, Status: e.Status, Box: e.Box, Version: e.PolicyVersion,
		What: describe(e.Change.RawMessage), Note: e.Note,
	}
}

// approvalOf returns the answer to a box's request for access that an entry records.
func approvalOf(e trail.Entry) (Approval, bool) {
	var what struct {
		Approval *struct {
			Entry  string `json:"entry"`
			Asked  string `json:"asked"`
			Answer string `json:"answer"`
			Reason string `json:"reason"`
		} `json:"approval"`
	}
	if json.Unmarshal(e.Change.RawMessage, &what) != nil || what.Approval == nil {
		return Approval{}, false
	}
	a := what.Approval
	return Approval{
		Seq: e.Seq, Time: e.Time, By: whoOf(e), Entry: a.Entry, Asked: a.Asked, Answer: a.Answer, Reason: a.Reason, Version: e.PolicyVersion,
	}, true
}

// Limits of the description of one change.
const (
	maxLines = 64
	maxLine  = 1024
)

// describe returns the members of a change as lines, such as "policy allowed_domains: added a.example, b.example".
func describe(change json.RawMessage) []string {
	var what map[string]any
	if len(change) == 0 || json.Unmarshal(change, &what) != nil {
		return nil
	}
	var lines []string
	more := 0
	for _, key := range slices.Sorted(maps.Keys(what)) {
		describeMember(key, what[key], func(line string) {
			if len(lines) == maxLines {
				more++
				return
			}
			if len(line) > maxLine {
				line = strings.ToValidUTF8(line[:maxLine], "") + "..."
			}
			lines = append(lines, line)
		})
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more lines", more))
	}
	return lines
}

// describeMember describes one member of a change, and the members below it.
func describeMember(path string, value any, line func(string)) {
	switch v := value.(type) {
	case map[string]any:
		if text, ok := describeList(v); ok {
			line(path + ": " + text)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if !isCount(key) {
				describeMember(path+" "+key, v[key], line)
			}
		}
	case []any:
		if len(v) == 2 && isScalar(v[0]) && isScalar(v[1]) && isPair(path) {
			line(fmt.Sprintf("%s: %s, before: %s", path, orNone(v[1]), orNone(v[0])))
			return
		}
		line(path + ": " + joined(v))
	default:
		line(path + ": " + scalar(v))
	}
}

// isCount reports whether a member only repeats or counts others, or is a field of the [Change], such as the version.
func isCount(key string) bool { return key == "version" || key == "count" || key == "hosts" }

// isPair reports whether a list of two texts at a path is the state before and after.
func isPair(path string) bool {
	return strings.HasPrefix(path, "policy ") || strings.HasPrefix(path, "named_policy policy ")
}

// describeList describes the added, removed and changed entries of a list.
func describeList(v map[string]any) (string, bool) {
	var parts []string
	for _, kind := range []string{"added", "removed", "changed"} {
		list, ok := v[kind].([]any)
		if v[kind] != nil && !ok {
			return "", false
		}
		if len(list) > 0 {
			parts = append(parts, kind+" "+joined(list))
		}
	}
	if more, ok := v["more"].(float64); ok {
		parts = append(parts, fmt.Sprintf("and %d more", int(more)))
	}
	known := 0
	for _, kind := range []string{"added", "removed", "changed", "more"} {
		if _, has := v[kind]; has {
			known++
		}
	}
	return strings.Join(parts, "; "), len(parts) > 0 && known == len(v)
}

func joined(list []any) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = scalar(v)
	}
	return strings.Join(texts, ", ")
}

func isScalar(v any) bool {
	switch v.(type) {
	case string, float64, bool, nil:
		return true
	}
	return false
}

func scalar(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(text)
}

func orNone(v any) string { return cmp.Or(scalar(v), "none") }

// Facts are the contents of a report besides the records that its builder received.
type Facts struct {
	Gateway       string                  // version of the gateway
	Now           time.Time               // when the report is made
	Boxes         map[policy.BoxID]string // names of the existing boxes
	CompleteSince time.Time               // since when no decision is missing in the log
	Trail         Integrity
	Asked         string // the box as the caller named it
	// Text returns a version of the policy of a box, or nil if the gateway does not have it. It is called for at most [maxTexts]
	// versions. nil: there are no texts.
	Text func(box policy.BoxID, version uint64) json.RawMessage
}

// Report returns the report. The builder cannot be used afterwards.
func (b *Builder) Report(f Facts) Report {
	r := Report{
		Schema: Schema, GeneratedAt: f.Now, Gateway: f.Gateway, Since: b.query.Since, Until: b.query.Until, Box: f.Asked, Trail: f.Trail,
		Notes: b.notes(f), Boxes: []Box{},
	}
	for id, name := range f.Boxes {
		if b.query.Box == id || b.query.Box == "" && (b.query.Name == "" || b.query.Name == name) {
			if x := b.box(id); x != nil {
				x.Name, x.Exists = name, true
			}
		}
	}
	b.assign(&r)
	for _, x := range b.boxes {
		r.Boxes = append(r.Boxes, x.finish())
	}
	slices.SortFunc(r.Boxes, func(a, b Box) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	if n := addTexts(r.Boxes, f.Text); n > 0 && f.Text != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("The texts of %d versions of policies were left out, because of their number or size. Ask about one box, or a shorter time.", n))
	}
	r.Decisions = b.coverage(f)
	return r
}

// Bounds of the policies in a report.
const (
	maxTexts     = 1000
	maxTextBytes = 16 << 20
)

// addTexts adds the policies in full, and returns how many versions it did not ask for, because of the bounds.
func addTexts(boxes []Box, find func(policy.BoxID, uint64) json.RawMessage) (omitted int) {
	left, bytes := maxTexts, maxTextBytes
	for i := range boxes {
		for j := range boxes[i].Policies {
			v := &boxes[i].Policies[j]
			if find == nil || left == 0 || bytes <= 0 {
				omitted++
				continue
			}
			left--
			if text := find(boxes[i].ID, v.Version); text != nil {
				v.Text = &Text{text}
				bytes -= len(text)
			}
		}
	}
	return omitted
}

// coverage returns which decisions the report is made from.
func (b *Builder) coverage(f Facts) Coverage {
	return Coverage{Read: b.read, CompleteSince: f.CompleteSince, Complete: !f.CompleteSince.After(b.query.Since), OmittedRows: b.omitted}
}

// assign adds the changes, calls and answers to the boxes that they are about.
func (b *Builder) assign(r *Report) {
	for _, e := range b.changes.pending {
		b.call(e, 1)
	}
	slices.SortFunc(b.changes.all, compareChanges)
	for _, c := range b.changes.all {
		if x := b.boxOf(c.Box); x != nil {
			x.Changes = append(x.Changes, c)
		} else {
			r.Changes = append(r.Changes, c)
		}
	}
	for key, c := range b.changes.calls {
		if x := b.boxOf(key.box); x != nil {
			x.Calls = append(x.Calls, *c)
		} else {
			r.Calls = append(r.Calls, *c)
		}
	}
	slices.SortFunc(r.Calls, compareCalls)
	for _, a := range b.changes.answers {
		if x := b.boxOf(a.box); x != nil {
			x.Approvals = append(x.Approvals, a.Approval)
		}
	}
	for key, c := range b.changes.made {
		if x := b.boxes[key.box]; x != nil && x.versions[key.version] != nil {
			x.versions[key.version].Change = c
		}
	}
	for _, x := range b.boxes {
		slices.SortFunc(x.Calls, compareCalls)
		slices.SortFunc(x.Approvals, func(a, b Approval) int { return cmp.Compare(a.Seq, b.Seq) })
	}
}

// boxOf returns the part of a box; nil for none, and if there are too many boxes.
func (b *Builder) boxOf(id policy.BoxID) *box {
	if id == "" {
		return nil
	}
	return b.box(id)
}

func compareChanges(a, b Change) int {
	return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Seq, b.Seq))
}

func compareCalls(a, b Call) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Call, b.Call), cmp.Compare(a.By.KeyID, b.By.KeyID), cmp.Compare(a.By.Remote, b.By.Remote),
		cmp.Compare(a.Status, b.Status))
}

// notes returns the limits of the report as sentences.
func (b *Builder) notes(f Facts) (notes []string) {
	if f.CompleteSince.After(b.query.Since) {
		notes = append(notes, "Decisions before "+f.CompleteSince.UTC().Format(time.RFC3339)+" may be missing: the gateway did not run, or its log no longer has them.")
	}
	if n := len(b.changes.removed); n > 0 {
		last := b.changes.removed[n-1]
		notes = append(notes, fmt.Sprintf("The audit trail begins with entry %d: older entries were removed on %s.", last.First, last.Time.UTC().Format(time.DateOnly)))
	}
	if len(f.Trail.Problems) > 0 {
		notes = append(notes, "The audit trail was changed or damaged: do not rely on the parts about changes.")
	}
	if b.omitted > 0 {
		notes = append(notes, fmt.Sprintf("%d rows were left out, because a report has at most %d. Ask about one box, or a shorter time.", b.omitted, MaxRows))
	}
	return notes
}

// Uses returns the uses of the secrets of the query, the latest first. The builder cannot be used afterwards.
func (b *Builder) Uses(f Facts) Uses {
	u := Uses{Secret: b.query.Secrets[0], Since: b.query.Since, Until: b.query.Until, Decisions: b.coverage(f), Notes: b.notes(f), Uses: []Use{}}
	u.Derived = b.query.Secrets[1:]
	for _, x := range b.boxes {
		u.Uses = append(u.Uses, x.sortedUses()...)
	}
	slices.SortStableFunc(u.Uses, func(a, b Use) int { return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(a.Box, b.Box)) })
	slices.SortFunc(b.changes.all, compareChanges)
	u.Changes = b.changes.all
	return u
}
