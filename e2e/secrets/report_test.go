package secrets

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit/report"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/policy"
)

// workday is a world with the boxes, policies and people of a scripted day.
type workday struct {
	*harness.World
	secret  string            // file of the secret openai
	boxes   map[string]string // IDs by name
	carol   *api.Client       // an admin with a key of her own
	auditor string            // API key
}

const oldValue, newValue = "canary-old-key-Qz7Qz7", "canary-new-key-Qz7Qz7"

// newWorkday lets a day pass: five boxes under three policies; two temporary entries, one of which ends; a change of a named policy by
// Carol; a request for access that Rita approves; a box that is refused, and deleted at the end; and a secret that three boxes may use, and two do.
func newWorkday(t *testing.T) *workday {
	t.Helper()
	asking := func(c *config.Config) { c.Approvals.Enabled, c.Approvals.EveryBox = true, true }
	d := &workday{World: harness.NewStopped(t, lab.Options{Change: asking}), secret: filepath.Join(t.TempDir(), "openai"), boxes: map[string]string{}}
	if err := os.WriteFile(d.secret, []byte(oldValue+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	addConfig(d.World, "secrets:\n  openai: {file: "+d.secret+"}\n")
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.carol, d.auditor = api.NewClient(d.Socket, d.key("carol", "admin")), d.key("eve", "auditor")
	named := func(as *api.Client, name string, domains ...string) {
		d.do(as, http.MethodPut, "/v2/box/settings/network-policies/"+name, harness.Custom(domains...))
	}
	named(d.Client, "research", "api.example.com")
	named(d.Client, "build", "www.example.com")
	key := map[string]any{"api.example.com": map[string]any{"headers": map[string]any{"Authorization": map[string]string{"secret": "openai", "prefix": "Bearer "}}}}
	d.create("agent-1", map[string]any{"named": "research"}, key)
	d.create("agent-2", map[string]any{"named": "research"}, key)
	d.create("builder", map[string]any{"named": "build"}, key)
	d.create("batch", map[string]any{"named": "build"}, nil)
	d.create("quiet", map[string]any{"mode": "deny-all"}, nil)

	d.MustSh(d.boxes["agent-1"], `head -c 5000 /dev/zero | curl -sS -o /dev/null --data-binary @- https://api.example.com/v1/embeddings`)
	d.MustSh(d.boxes["agent-2"], `curl -sS -o /dev/null https://api.example.com/v1/models`)
	d.Sh(d.boxes["agent-2"], `curl -sS -o /dev/null https://git.example.com/`)
	named(d.carol, "research", "api.example.com", "git.example.com")
	d.MustSh(d.boxes["agent-2"], `curl -k -sS -o /dev/null https://git.example.com/`)
	d.Lease(d.boxes["batch"], "allow", time.Hour, "ws.example.com:443")
	d.do(d.carol, http.MethodPost, api.BoxPath(d.boxes["builder"], "config/network-policy/leases"), map[string]any{"action": "allow", "entries": []string{"git.example.com"}, "expires_in": 600})
	d.MustSh(d.boxes["builder"], `curl -k -sS -o /dev/null https://git.example.com/`)
	d.do(d.carol, http.MethodDelete, api.BoxPath(d.boxes["builder"], "config/network-policy/leases"), nil)
	d.Sh(d.boxes["quiet"], `curl -sS -o /dev/null https://www.example.com/`)
	d.MustDelete(d.boxes["quiet"])
	d.approve()
	return d
}

// approve lets a box ask for access, and Rita approve it with a key for that.
func (d *workday) approve() {
	d.T.Helper()
	const ask = `curl -sS -f -H 'Content-Type: application/json' -d '{"host":"www.example.com","port":80,"reason":"docs of the <i>task</i>"}' http://policy.boxgate.internal/v1/requests`
	var asked struct{ ID string }
	if err := json.Unmarshal([]byte(d.MustSh(d.boxes["agent-2"], ask)), &asked); err != nil {
		d.T.Fatal(err)
	}
	d.Run(0, []string{"BOXGATE_API_KEY=" + d.key("rita", "approver")}, "", "approvals", "approve", asked.ID, "--for", "10m", "--reason", "docs are fine", "--yes")
	d.MustSh(d.boxes["agent-2"], `curl -sS -f -o /dev/null http://www.example.com/`)
}

// assertApproval checks that the connection under an approval leads to Rita and both reasons, and that asking itself is no egress.
func (d *workday) assertApproval(b report.Box) {
	d.T.Helper()
	f := flowTo(b.Egress, "www.example.com")
	if len(b.Approvals) != 1 || f.Version == 0 {
		d.T.Fatalf("%+v %+v", f, b.Approvals)
	}
	a := b.Approvals[0]
	if a.By.Key != "rita" || a.By.Role != "approver" || a.Answer != "once" || a.Reason != "docs are fine" || a.Asked != "docs of the <i>task</i>" || a.Entry != "www.example.com:80" || a.Version != f.Version {
		d.T.Errorf("%+v, version %d", a, f.Version)
	}
	i := slices.IndexFunc(b.Policies, func(v report.Version) bool { return v.Version == f.Version })
	if i < 0 || b.Policies[i].Change == nil || b.Policies[i].Change.By.Key != "rita" || !strings.Contains(strings.Join(b.Policies[i].Change.What, " "), "added allow www.example.com:80 until") {
		d.T.Errorf("version %d: %+v", f.Version, b.Policies)
	}
	if slices.ContainsFunc(b.Egress, func(f report.Flow) bool { return f.Host == "policy.boxgate.internal" && !f.Lookup }) {
		d.T.Errorf("asking is listed as egress: %+v", b.Egress)
	}
}

// key makes an API key.
func (d *workday) key(name, role string) string {
	d.T.Helper()
	lines := strings.Split(strings.TrimSpace(d.Run(0, nil, "", "api-key", "create", "--name", name, "--role", role)), "\n")
	return lines[len(lines)-1]
}

func (d *workday) do(as *api.Client, method, path string, body any) {
	d.T.Helper()
	if err := as.Do(d.T.Context(), method, path, body, nil); err != nil {
		d.T.Fatal(method, path, err)
	}
}

func (d *workday) create(name string, policy, headers map[string]any) {
	d.T.Helper()
	body := map[string]any{"name": name, "network_policy": policy}
	if headers != nil {
		body["attach_headers"] = headers
	}
	d.boxes[name] = d.World.Create(body)
}

// ask runs a command of the gateway with the auditor's key.
func (d *workday) ask(want int, args ...string) string {
	d.T.Helper()
	return d.Run(want, []string{"BOXGATE_API_KEY=" + d.auditor}, "", args...)
}

// report returns the auditor's report.
func (d *workday) report(args ...string) (r report.Report) {
	d.T.Helper()
	out := d.ask(0, append([]string{"report", "--format", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out[strings.Index(out, "{"):]), &r); err != nil {
		d.T.Fatal(err, out)
	}
	return r
}

// boxOf returns the part of a report about a box.
func (d *workday) boxOf(r report.Report, name string) report.Box {
	d.T.Helper()
	i := slices.IndexFunc(r.Boxes, func(b report.Box) bool { return b.Name == name })
	if i < 0 {
		d.T.Fatalf("the report lacks %s", name)
	}
	return r.Boxes[i]
}

func flowTo(list []report.Flow, host string) (f report.Flow) {
	i := slices.IndexFunc(list, func(f report.Flow) bool { return f.Host == host && !f.Lookup })
	if i >= 0 {
		f = list[i]
	}
	return f
}

// TestAnAuditorsQuestionsAreAnsweredByTheReport: of a scripted day, the report with an auditor's key has what left and how much,
// under which version of the policy, who made that version and how, which secret was used where, and what was refused; in all
// three forms, without the secret's value, and for a box that was deleted.
func TestAnAuditorsQuestionsAreAnsweredByTheReport(t *testing.T) {
	t.Parallel()
	d := newWorkday(t)
	r := d.report("--since", "1h")
	if len(r.Boxes) != 5 || !r.Decisions.Complete && len(r.Notes) == 0 || r.Trail.Entries == 0 || len(r.Trail.Problems) > 0 || r.Decisions.OmittedRows > 0 {
		t.Errorf("%d boxes, %+v %+v %q", len(r.Boxes), r.Decisions, r.Trail, r.Notes)
	}
	t.Run("what left, how much, under which version", func(t *testing.T) {
		b := d.boxOf(r, "agent-1")
		f := flowTo(b.Egress, "api.example.com")
		if f.Count != 1 || f.Connections != 1 || f.BytesOut < 5000 || f.BytesOut > 9000 || b.BytesOut != f.BytesOut || b.Allowed != 1 || f.Version == 0 || f.Rule != "api.example.com" || !slices.Equal(f.Secrets, []string{"openai"}) || f.Headers[0] != "Authorization" {
			t.Errorf("%+v of %d bytes", f, b.BytesOut)
		}
	})
	t.Run("who changed the named policy", func(t *testing.T) { d.assertNamedChange(d.boxOf(r, "agent-2")) })
	t.Run("who approved, and why", func(t *testing.T) { d.assertApproval(d.boxOf(r, "agent-2")) })
	t.Run("temporary entries", func(t *testing.T) { d.assertLeases(r) })
	t.Run("what was refused", func(t *testing.T) {
		b := d.boxOf(r, "quiet")
		f := flowTo(b.Refused, "www.example.com")
		if b.Exists || f.Reason != "deny_all" || f.Count == 0 || b.BytesOut != 0 || len(b.Egress) != 0 || b.Denied == 0 {
			t.Errorf("%+v in %+v", f, b)
		}
		if alone := d.report("--since", "1h", "--box", "quiet"); len(alone.Boxes) != 1 || alone.Boxes[0].ID != b.ID || len(alone.Boxes[0].Policies) != 1 || alone.Boxes[0].Policies[0].Text == nil {
			t.Errorf("the deleted box alone: %+v", alone.Boxes)
		}
	})
	t.Run("other forms", func(t *testing.T) { d.assertForms() })
	if out := d.ask(1, "box", "list"); !strings.Contains(out, "auditor") {
		t.Error("the auditor lists boxes:", out)
	}
}

// assertNamedChange checks that the decision after the change of a named policy leads to Carol, and the one before to a refusal.
func (d *workday) assertNamedChange(b report.Box) {
	d.T.Helper()
	after, before := flowTo(b.Egress, "git.example.com"), flowTo(b.Refused, "git.example.com")
	if after.Version <= before.Version || before.Reason != "not_allowed" {
		d.T.Errorf("before %+v, after %+v", before, after)
	}
	i := slices.IndexFunc(b.Policies, func(v report.Version) bool { return v.Version == after.Version })
	if i < 0 || b.Policies[i].Change == nil || b.Policies[i].Text == nil || !strings.Contains(string(b.Policies[i].Text.RawMessage), `"allowed_domains":["api.example.com","git.example.com"]`) || b.Policies[i].Change.By.Key != "carol" || !strings.Contains(strings.Join(b.Policies[i].Change.What, " "), "added git.example.com") {
		d.T.Errorf("version %d: %+v", after.Version, b.Policies)
	}
}

// assertLeases checks that the connection under a temporary entry leads to it, and that its end is in the report.
func (d *workday) assertLeases(r report.Report) {
	d.T.Helper()
	b := d.boxOf(r, "builder")
	f := flowTo(b.Egress, "git.example.com")
	var what []string
	for _, v := range b.Policies {
		if v.Change != nil && v.Change.By.Key == "carol" {
			what = append(what, strings.Join(v.Change.What, " "))
		}
	}
	if f.Version == 0 || len(what) != 2 || !strings.Contains(what[0], "leases: added allow git.example.com until") || b.Policies[1].Text == nil || !strings.Contains(string(b.Policies[1].Text.RawMessage), `"entry":"git.example.com"`) || !strings.Contains(what[1], "leases: removed allow git.example.com until") {
		d.T.Errorf("%+v, changes %q", f, what)
	}
	batch := d.boxOf(r, "batch")
	if n := len(batch.Policies); n != 2 || !strings.Contains(strings.Join(batch.Policies[1].Change.What, " "), "added allow ws.example.com:443 until") {
		d.T.Errorf("%+v", batch.Policies)
	}
}

// assertForms checks the page and the CSV, which contain neither value of the secret nor anything that a browser loads or runs.
func (d *workday) assertForms() {
	d.T.Helper()
	file := filepath.Join(d.T.TempDir(), "report.html")
	d.ask(0, "report", "--since", "1h", "--output", file)
	page, err := os.ReadFile(file)
	if err != nil {
		d.T.Fatal(err)
	}
	harness.Contains(d.T, string(page), "default-src &#39;none&#39;; style-src &#39;sha256-", "agent-1", "carol (admin)", "added git.example.com", "deny all", "The audit trail is intact")
	for _, bad := range []string{"<script", "src=", "http://", "https://", "javascript:", oldValue} {
		if strings.Contains(string(page), bad) {
			d.T.Errorf("the page has %q", bad)
		}
	}
	out := d.ask(0, "report", "--since", "1h", "--format", "csv")
	rows, err := csv.NewReader(strings.NewReader(out[strings.Index(out, "table,"):])).ReadAll()
	if err != nil || len(rows) < 20 || strings.Contains(out, oldValue) {
		d.T.Errorf("%d rows: %v", len(rows), err)
	}
	d.ask(2, "report", "--since", "1h", "--until", "2h")
}

// TestALeakedSecretIsFoundAndReplaced: `gateway secret used` has every box that used a secret, where and for what, and none that
// only might have. One command replaces it for all of them, and from then on no request has the old value.
func TestALeakedSecretIsFoundAndReplaced(t *testing.T) {
	t.Parallel()
	d := newWorkday(t)
	var u report.Uses
	out := d.ask(0, "secret", "used", "openai", "--since", "1h", "--json")
	if err := json.Unmarshal([]byte(out), &u); err != nil {
		t.Fatal(err, out)
	}
	got := map[string]string{}
	for _, x := range u.Uses {
		got[x.BoxName] = x.Method + " " + x.Host + strings.Join(x.Paths, " ")
	}
	if len(u.Uses) != 2 || got["agent-1"] != "POST api.example.com/v1/embeddings" || got["agent-2"] != "GET api.example.com/v1/models" {
		t.Errorf("%q", got)
	}
	granted := 0
	for _, c := range u.Changes {
		if strings.Contains(strings.Join(c.What, " "), "api.example.com: openai") {
			granted++
		}
	}
	if granted != 3 {
		t.Errorf("%d changes gave a box the secret: %+v", granted, u.Changes)
	}
	if out := d.ask(1, "secret", "used", "unknown"); !strings.Contains(out, "no secret") {
		t.Error(out)
	}
	if out := d.Run(0, nil, newValue+"\n", "secret", "replace", "openai"); !strings.Contains(out, "has the new value") || strings.Contains(out, newValue) {
		t.Error(out)
	}
	for _, box := range []string{"agent-1", "builder"} {
		d.SetPolicy(d.boxes[box], harness.Custom("api.example.com"))
		d.MustSh(d.boxes[box], "curl -sS -o /dev/null https://api.example.com/after-"+box)
		sent := d.Intrude(d.boxes[box]).Requests("api.example.com", "/after-"+box)
		if len(sent) != 1 || sent[0].Header.Get("Authorization") != "Bearer "+newValue {
			t.Errorf("%s sent %+v", box, sent)
		}
	}
	if out := d.Run(1, nil, "bad\x01value\n", "secret", "replace", "openai"); !strings.Contains(out, "unchanged") {
		t.Error(out)
	}
	if b, err := os.ReadFile(d.secret); err != nil || string(b) != newValue+"\n" {
		t.Errorf("%q %v", b, err)
	}
	if !strings.Contains(d.Run(0, nil, "", "audit", "--since", "1h", "--json"), `"secret_refreshed":"openai"`) {
		t.Error("the trail lacks the replacement")
	}
	if policy.BoxID(d.boxes["agent-1"]) == "" || strings.Contains(d.LogText(), oldValue) || strings.Contains(d.LogText(), newValue) {
		t.Error("a value is in the log")
	}
}
