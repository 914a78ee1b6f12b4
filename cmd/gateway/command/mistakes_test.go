package command

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/server"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/policy"
)

// goText matches texts that only Go programmers would understand.
var goText = regexp.MustCompile("strconv|unmarshal|Unmarshal|!!|dial |json:|(^|[^.])yaml:|open /|read /|lookup |invalid syntax|syscall|0x[0-9a-f]|runtime error|parse \"|x509: |&\\{|%!|\\*[a-z]+\\.[A-Z]")

// TestMistakesAreExplained: for every mistake, the message is in terms of the command line, includes the correction, and
// contains no texts of Go's own.
func TestMistakesAreExplained(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	t.Cleanup(srv.Close)
	t.Setenv("BOXGATE_API_KEY", "key")
	t.Setenv("BOXGATE_ADMIN", filepath.Join(dir, "none.sock"))
	for _, c := range []struct {
		args, want string
		status     int
	}{
		{"policy explain demo a.example --port 70000", `--port: "70000" is not a number from 0 to 65535`, cli.ExitUsage},
		{"policy explain demo a.example --port https", `--port: "https" is not a number`, cli.ExitUsage},
		{"box attach --pid init", `--pid: "init" is not a whole number`, cli.ExitUsage},
		{"box rm --all=perhaps", `--all: "perhaps" is not true or false`, cli.ExitUsage},
		{"box rm", "arguments missing", cli.ExitUsage},
		{"box rm demo --all", "not both", cli.ExitUsage},
		{"log --since yesterday", `--since: "yesterday" is not a time`, cli.ExitUsage},
		{"log --since 1h --until 2h", "is not after --since", cli.ExitUsage},
		{"audit --since 2999-01-01", "is in the future", cli.ExitUsage},
		{"policy allow demo a.example --for -1h", `--for: "-1h" is not a duration such as 10m, or 7d`, cli.ExitUsage},
		{"log --reason because", `no reason "because"`, cli.ExitUsage},
		{"log --denyed", "unknown flag --denyed; did you mean --denied?", cli.ExitUsage},
		{"log -q", "-q", cli.ExitUsage},
		{"polic get demo", `unknown command "polic" for "gateway"; did you mean policy?`, cli.ExitUsage},
		{"policy alow demo a.example", `"alow" for "gateway policy"; did you mean allow?`, cli.ExitUsage},
		{"policy set demo {", "a policy is JSON, @FILE", cli.ExitUsage},
		{"policy set demo @" + dir + "/none.json", "there is no file " + dir + "/none.json", cli.ExitFailed},
		{"policy set demo preset:npn", `no preset "npn"`, cli.ExitUsage},
		{"policy set demo @" + dir, "is a directory", cli.ExitFailed},
		{"policy convert --from vercel " + dir + "/none.json", "there is no file", cli.ExitFailed},
		{"headers set {", "JSON or YAML", cli.ExitUsage},
		{"headers set a.example --header X-Key=@" + dir + "/none", "there is no file", cli.ExitFailed},
		{"box create --env X", "NAME=VALUE", cli.ExitUsage},
		{"box create --placement spread --from-snapshot snap_1", "leave out --placement", cli.ExitUsage},
		{"box list", dir + "/none.sock: nothing listens there", cli.ExitFailed},
		{"box list --admin http://127.0.0.1:1", "nothing listens there", cli.ExitFailed},
		{"box list --admin http://[::1", "neither the URL nor the socket", cli.ExitFailed},
		{"box list --admin " + srv.URL, "does not come from a gateway", cli.ExitFailed},
		{"box get demo --admin " + srv.URL, "does not come from a gateway", cli.ExitFailed},
		{"status --admin " + srv.URL, "does not come from a gateway", cli.ExitFailed},
		{"policy get demo --admin " + srv.URL, "does not come from a gateway", cli.ExitFailed},
		{"serve --config " + dir + "/none.yaml", "there is no file", cli.ExitFailed},
		{"serve --config " + file("type.yaml", "limits: {connections: many}"), "line 1: text is given where a whole number belongs", cli.ExitFailed},
		{"serve --config " + file("list.yaml", "dns:\n  upstreams: 5"), "line 2: a number is given where a list belongs", cli.ExitFailed},
		{"serve --config " + file("duration.yaml", "proxy:\n  idle_timeout: soon"), "a duration such as 30m belongs", cli.ExitFailed},
		{"serve --config " + file("size.yaml", "limits:\n  memory: lots"), "256MiB", cli.ExitFailed},
		{"serve --config " + file("key.yaml", "dsn: {}"), `did you mean "dns"?`, cli.ExitFailed},
		{"serve --config " + file("tab.yaml", "dns:\n\t- x"), "line 2", cli.ExitFailed},
		{"serve --config " + file("section.yaml", "dns: no"), "a section of keys belongs", cli.ExitFailed},
	} {
		out, status := runCommandLine(t, strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(out, c.want) || goText.MatchString(out) {
			t.Errorf("%s: exit %d, want %d and %q\n%s", c.args, status, c.status, c.want, out)
		}
	}
}

// helped is a wrong command line, a part of its error message, and the command that helps: either a command in the
// message, or "WORD => OTHER" for the same line with WORD replaced as the message proposes. {dir} stands for a directory
// of the test.
type helped struct{ args, said, helps string }

// mistakesOfPolicies lists mistakes with policies, their entries and named policies.
var mistakesOfPolicies = []helped{
	{"policy set demo allow_all", `"allow_all" is no policy; did you mean allow-all?`, "allow_all => allow-all"},
	{"policy set demo denyall", "did you mean deny-all? A policy is JSON, @FILE, -, preset:NAME,…, named:NAME, allow-all or deny-all", "denyall => deny-all"},
	{"policy set demo github,pypi", "did you mean preset:github,pypi?", "github,pypi => preset:github,pypi"},
	{"policy set demo preset=github", "did you mean preset:github?", "preset=github => preset:github"},
	{"policy set demo presets:github", "did you mean preset:github?", "presets:github => preset:github"},
	{"policy set demo preset:npn", `no preset "npn"`, "gateway policy set --help"},
	{"policy set demo preset:npmm", `no preset "npmm" (did you mean npm?)`, "npmm => npm"},
	{"policy set demo npmm", "did you mean preset:npm?", "npmm => preset:npm"},
	{"policy set demo https://a.example/x,b.example:8443", `did you mean '{"mode":"custom","allowed_domains":["a.example","b.example:8443"]}'?`, "gateway policy set --help"},
	{"policy set demo nonsense", `"nonsense" is no policy`, "gateway policy set --help"},
	{"policy allow demo https://a.example/x,b..example", `"https://a.example/x" is a URL; use "a.example"; "b..example" has an empty label`, "gateway policy allow --help"},
	{"headers set --box demo https://a.example/x --header X=y", `HOST: "https://a.example/x" is a URL; use "a.example"`, "gateway headers set --help"},
	{"box rm demoo demooo", `no box has the ID or name "demooo"`, "gateway box list"},
	{"docker run", "IMAGE is missing", "gateway docker run --help"},
	{"policy set demo {dir}/good.json", "did you mean @{dir}/good.json?", "{dir}/good.json => @{dir}/good.json"},
	{"policy set demo @{dir}/bad.json", "bad.json is not JSON: line 2, column 10", "gateway policy set --help"},
	{"policy set demo @{dir}/none.json", "there is no file {dir}/none.json", "gateway policy set --help"},
	{"policy set demo named:none", "POLICY: there is no named policy none", "gateway policy named list"},
	{`policy set demo '{"mode":"nope"}'`, `/mode: "nope" is no mode`, "gateway policy set --help"},
	{`policy set demo '{"mode":"custom","allowed_domains":["https://a.com/x","*.*.b"],"alowed_cidrs":[]}'`, "3 mistakes:", "gateway policy set --help"},
	{`policy set demo '{"mode":"custom","allowed_domains":["https://a.com/x","*.*.b"]}'`, `  /allowed_domains/1: "*.*.b" has a *`, "gateway policy set --help"},
	{"policy set demoo deny-all", `no box has the ID or name "demoo"`, "gateway box list"},
	{"policy get demoo", `no box has the ID or name "demoo"`, "gateway box list"},
	{"policy alow demo a.example", `"alow" for "gateway policy"; did you mean allow?`, "alow => allow"},
	{"policy allow demo a.example --for 10000h", "--for: must be between 1s and 30d", "gateway policy allow --help"},
	{"policy allow demo a.example --for 10", `--for: "10" is not a duration such as 10m, or 7d`, "10 => 10m"},
	{"policy allow demo https://a.example/x", `"https://a.example/x" is a URL; use "a.example"`, "https://a.example/x => a.example"},
	{"policy deny demo a.b..c", "has an empty label", "gateway policy deny --help"},
	{"policy end demo a.example", "a.example", "gateway policy leases demo"},
	{"policy end demo", "arguments missing", "gateway policy end --help"},
	{"policy diff demo {", "this is not JSON", "gateway policy diff --help"},
	{"policy explain demo a.example --protocol sctp", "--protocol: must be tcp, udp or icmp", "gateway policy explain --help"},
	{"policy explain demo 'a b'", "HOST: ", "gateway policy explain --help"},
	{"policy explain demo a.example --port https", `--port: "https" is not a number from 0 to 65535`, "gateway policy explain --help"},
	{"policy named get web", `there is no named policy "web"`, "gateway policy named list"},
	{"policy named set We%b deny-all", "is no name for a policy", "gateway policy named set --help"},
	{"log --reason deny", "did you mean denied_cidr, denied_domain, deny_all", "deny => deny_all"},
	{"log --reason notallowed", "did you mean not_allowed?", "notallowed => not_allowed"},
	{"log --reason because", `there is no reason "because"`, "gateway log --denied"},
	{"log --denyed", "unknown flag --denyed; did you mean --denied?", "--denyed => --denied"},
	{"log --since yesterday", `--since: "yesterday" is not a time (2026-01-02T15:04:05Z), a date (2026-01-02)`, "gateway log --help"},
	{"log --box nope", `no box has the ID or name "nope"`, "gateway box list"},
	{"log -f --host a.example", "leave out -f", "gateway log --help"},
}

// mistakesOfRules lists mistakes with header rules, secrets, public URLs and keys.
var mistakesOfRules = []helped{
	{"headers set --box demo api.github.com --secret openai=Authorization", "openai is one, so did you mean --secret HEADER=openai?", "openai=Authorization => Authorization=openai"},
	{"headers set --box demo api.github.com --placeholder openai=TOKEN", "did you mean --placeholder VARIABLE=openai?", "openai=TOKEN => TOKEN=openai"},
	{"headers set --box demo api.github.com --secret Authorization=gh", "--secret Authorization: there is no secret of this name", "gateway secret list"},
	{"headers set --box demo api.github.com --header 'Bad Name=x'", "--header Bad…: ", "gateway headers set --help"},
	{"headers set --box demo api.github.com --header Host=x", `--header Host: "Host" names the destination`, "gateway headers set --help"},
	{"headers set --box demo api.github.com", `no rule given for "api.github.com"`, "gateway headers set --help"},
	{"headers set --box demo {", "not a set of rules in JSON or YAML", "gateway headers set --help"},
	{"headers set --box nope api.github.com --header X-A=b", `no box has the ID or name "nope"`, "gateway box list"},
	{"headers rm --box demo nope.example", "there is no header rule", "gateway headers list --box demo"},
	{`box create --headers '{"a.com":{"headers":{"X-Key":{"secret":"nope"}}}}'`, "--headers: /a.com/headers/X-Key/secret: there is no secret", "gateway secret list"},
	{"secret refresh nope", `no secret "nope"`, "gateway secret list"},
	{"url create demo 8000 --expires-in 9999d", "--expires-in: must be between 1s and 3650d", "gateway url create --help"},
	{"url create demo 70000", `"70000" is not a port`, "gateway url create --help"},
	{"url create demo 8000 --protocol gopher", "--protocol: must be one of auto, http1, h2c, tcp", "gateway url create --help"},
	{"url create demo 8000 --origin nope", "--origin: is not an origin", "gateway url create --help"},
	{"url rm demo 99", "no public URL", "gateway url list demo"},
	{"url sign nope 99", `no box has the ID or name "nope"`, "gateway box list"},
	{"url craete demo 80", "did you mean create?", "craete => create"},
	{"api-key create --name ci --role king", "--role: must be admin, box-creator, read-only, one-box or auditor", "gateway api-key create --help"},
	{"api-key create --name ci --role read-only --expires 99999d", "--expires: must be a duration from 0s to 3660d", "gateway api-key create --help"},
	{"api-key create --name ci --role one-box", "--box: names the box", "gateway box list"},
	{"api-key create --name ci --role read-only --quota nope=1", "the names are connections", "gateway api-key create --help"},
	{"api-key rm nope", "", "gateway api-key list"},
	{"api-key rotate a b", "2 arguments given", "gateway api-key rotate --help"},
}

// mistakesOfBoxes lists mistakes with boxes, snapshots, files and the gateway itself.
var mistakesOfBoxes = []helped{
	{"box create --snapshot nope", "unknown flag --snapshot; did you mean --from-snapshot?", "gateway box create --help"},
	{"box create --size huge", "--size: must be small, medium or large", "huge => small"},
	{"box create --env 1X=y", "--env 1X: the name must be", "gateway box create --help"},
	{"box create --limit connections=-3", "--limit connections: must be 1 to 1000000", "gateway box create --help"},
	{"box create --limit memory=1", "--limit memory: must be 16MiB to 1TiB", "memory=1 => memory=16MiB"},
	{"box create --policy allowall", "--policy: \"allowall\" is no policy; did you mean allow-all?", "allowall => allow-all"},
	{`box create --policy '{"mode":"nope"}'`, "--policy: /mode: ", "gateway box create --help"},
	{"box create --source 1.2.3", "--source: ", "gateway box create --help"},
	{"snapshot list --box nope", "nope", "gateway box list"},
	{"box attach --netns /run/netns/x --name agent", "its sandbox has ended", "gateway box detach agent"},
	{"box attach --netns /run/netns/x --name demo", "demo", "gateway box get demo"},
	{"box attach --netns /run/netns/x --pid 1", "give one of --netns, --pid and --container", "gateway box attach --help"},
	{"box get nope", `no box has the ID or name "nope"`, "gateway box list"},
	{"box exec nope -- true", `no box has the ID or name "nope"`, "gateway box list"},
	{"box limits demo connections=-1", "LIMIT connections: must be 1 to 1000000", "gateway box limits --help"},
	{"box source demo 300.1.1.1", "ADDRESS: ", "gateway box source --help"},
	{"box cp {dir}/none demo:/tmp/x", "there is no file {dir}/none", "gateway box cp --help"},
	{"box get", "0 arguments given", "gateway box get --help"},
	{"box rm demo nope", `no box has the ID or name "nope"`, "gateway box list"},
	{"box cp nope:/etc/hosts {dir}/x", `no box has the ID or name "nope"`, "gateway box list"},
	{"box list --admin {dir}/none.sock", "nothing listens there", "gateway serve"},
	{"snapshot rm nope", "nope", "gateway snapshot list"},
	{"store backup {dir}/none/x", "{dir}/none/x cannot be written: there is no directory {dir}/none", "mkdir -p {dir}/none"},
	{"polic get demo", "did you mean policy?", "polic => policy"},
	{"box create --api-key sk-1", "unknown flag --api-key: other users can read the arguments of a process", "--api-key-file"},
	{"box create --ttl 1h", "--ttl needs --ephemeral", "gateway box create --help"},
	{"box create --agent codex --harness x", "leave out --agent codex", "gateway box create --help"},
	{"box exec --timeout 0s demo -- true", "--timeout: must be between 1ms and 7d", "0s => 1m"},
	{"box exec --timeout 1m -i demo -- true", "--timeout is for commands without -i", "-i demo => demo"},
	{"box rm demo /tmp/x", `"/tmp/x" is no box, and nothing was removed; a file of a box is demo:/tmp/x`, "gateway box rm --help"},
	{"box rm demo demo:x", "give boxes or files (BOX:PATH), not both; nothing was removed", "gateway box rm --help"},
	{"box ls demoo:/tmp", `no box has the ID or name "demoo"`, "gateway box list"},
	{"box cat demo", `"demo" is not BOX:PATH`, "gateway box cat --help"},
	{"box mv demo:a other:b", "both files must be in one box", "gateway box mv --help"},
	{"box code demo", "give the language", "code demo => code demo --help"},
	{"box run get demo run_1", "has no run", "gateway box runs demo"},
	{"box runs demoo", `no box has the ID or name "demoo"`, "gateway box list"},
	{"box logs demo --limit -1", "--limit", "gateway box logs --help"},
	{"box schedule exec demo -- true", "give --cron, such as --cron '*/5 * * * *'", "demo => demo --cron @daily"},
	{"box schedule rm demo nope", "no such schedule", "gateway box schedule list demo"},
	{"box schedule exec demo --cron @daily --timeout 8d -- true", "--timeout: must be between 1ms and 7d", "8d => 7d"},
	{"box skill rm demo acme/none", `no skill "acme/none"`, "gateway box skill list demo"},
	{"box env unset NOPE", "NOPE", "gateway box env list"},
	{"box env set", "give NAME=VALUE, or --file", "gateway box env set --help"},
	{"box git config demo", "give --name, --email, or both", "demo => demo --name Ann"},
	{"box git clone demo ext::sh", "REPO: names a program that git would run", "gateway box git clone --help"},
	{"box git pr demo", "--title: is missing", "gateway box git pr --help"},
	{"box agent run demoo x", `no box has the ID or name "demoo"`, "gateway box list"},
	{"box agent run demo x --webhook-headers {}", "--webhook-headers needs --webhook-url", "gateway box agent run --help"},
	{"box init-command demo a b", "give one COMMAND, in quotes", "gateway box init-command --help"},
	{"runs demo", "did you mean `gateway box runs`?", "runs demo => box runs demo"},
	{"schedule list demo", "did you mean `gateway box schedule`?", "schedule list => box schedule list"},
	{"status extra", "1 argument given", "gateway status --help"},
}

// mistakesOfRecords lists mistakes with versions of policies, audits, diagnoses, approvals and records.
var mistakesOfRecords = []helped{
	{"policy show demo@x", `"x" is not a version of a policy: after @ belongs a number`, "demo@x => demo"},
	{"policy show demo@99", "99", "gateway policy history demo"},
	{"policy diff demo@99 deny-all", "99", "gateway policy history demo"},
	{"policy show demo --at yesterday", `--at: "yesterday" is not a time`, "gateway policy show --help"},
	{"policy show demo@1 --at 1h", "give a version or --at, not both", "gateway policy show --help"},
	{"policy history demoo", `no box has the ID or name "demoo"`, "gateway box list"},
	{"policy audit demo --for 25h", "--for: give between a second and 24 hours", "25h => 24h"},
	{"policy audit demoo", `no box has the ID or name "demoo"`, "gateway box list"},
	{"policy learn demoo", `no box has the ID or name "demoo"`, "gateway box list"},
	{"policy replay demo", "1 argument given", "gateway policy replay --help"},
	{"policy replay demo deny_all", "did you mean deny-all?", "deny_all => deny-all"},
	{"policy lint demoo", `no box has the ID or name "demoo"`, "gateway box list"},
	{"doctor demo https://a.example/x", `HOST[:PORT]: "https://a.example/x" is a URL; use "a.example"`, "https://a.example/x => a.example"},
	{"doctor demo a.example:99999", `"99999" is not a port: a number from 1 to 65535`, "gateway doctor --help"},
	{"doctor demo a.example --idle 99s", "--idle: must be between 0s and 10s", "99s => 10s"},
	{"doctor demo a.example --path x", "--path: must begin with /", "--path x => --path /x"},
	{"doctor demoo a.example", `no box has the ID or name "demoo"`, "gateway box list"},
	{"box traffic demo --since x", `--since: "x" is not a time`, "gateway box traffic --help"},
	{"audit --policy-version 3", "--policy-version needs --box", "gateway audit --help"},
	{"approvals show nope", `no request has the ID "nope"`, "gateway approvals list --all"},
	{"approvals list --box demoo", `no box has the ID or name "demoo"`, "gateway box list"},
	{"approvals grant 1", `"grant" for "gateway approvals"`, "gateway approvals --help"},
	{"secret replace nope", `the configuration has no secret "nope"`, "gateway secret list"},
	{"snapshot create demo", `unknown command "create" for "gateway snapshot"; its commands are list`, "gateway snapshot --help"},
	{"explain demo b.example", "did you mean `gateway policy explain`?", "explain => policy explain"},
	{"exec demo -- true", "did you mean `gateway box exec`", "exec demo => box exec demo"},
	{"deny demo a.example", "did you mean `gateway approvals deny` or `gateway policy deny`?", "deny => policy deny"},
	{"report --format xml", `"xml" is not one of html, json or csv`, "gateway report --help"},
}

// TestMistakesNameWhatHelps: every error message explains the mistake in terms of the command line and names one command
// that helps. The test runs that command against the API with boxes in memory; it must succeed.
func TestMistakesNameWhatHelps(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"good.json": `{"mode":"deny-all"}`, "bad.json": "{\n \"mode\": custom}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := slices.Concat(mistakesOfPolicies, mistakesOfRules, mistakesOfBoxes, mistakesOfRecords)
	if len(all) < 60 {
		t.Errorf("only %d mistakes", len(all))
	}
	for _, m := range all {
		args, said, helps := strings.ReplaceAll(m.args, "{dir}", dir), strings.ReplaceAll(m.said, "{dir}", dir), strings.ReplaceAll(m.helps, "{dir}", dir)
		t.Run(m.args, func(t *testing.T) {
			serveInMemory(t)
			out, status := runCommandLine(t, shellWords(args)...)
			word, right, corrects := strings.Cut(helps, " => ")
			if status == cli.ExitOK || !strings.Contains(out, said) || !corrects && !strings.Contains(out, helps) || goText.MatchString(out) {
				t.Errorf("exit %d, want %q and %q in\n%s", status, said, helps, out)
			}
			if corrects {
				helps = "gateway " + strings.Replace(args, word, right, 1)
			}
			if help, failed := runNamed(t, helps); failed {
				t.Errorf("%s does not help: %s\n%s", helps, help, out)
			}
		})
	}
}

// serveInMemory starts the API for the commands of a test, with a box named demo, and one named agent whose sandbox has
// ended.
func serveInMemory(t *testing.T) *apitest.Host {
	t.Helper()
	host := apitest.NewHost(t)
	services := server.Services{
		Boxes: host, Life: host, Lifecycle: host, Commands: host, Sessions: host, Files: host, Git: host, Rules: host, BoxRules: host,
		Explain: host, Settings: host, Decisions: host, Versions: host, URLs: host, Schedules: host, Webhooks: host, Snapshots: host, SelfTests: host, Samples: host, Doctor: host, Captures: host,
		Keys: host, KeySecrets: host, TrailReader: host, Health: host, Store: host, Secrets: host, Authorities: host, Approvals: host, Models: host,
	}
	a, err := server.New(server.Config{Services: services, FindKey: host.FindKey, HasSecret: func(name string) bool { return name == "openai" }})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(a)
	srv.Config = a.Server()
	srv.Start()
	t.Cleanup(srv.Close)
	t.Cleanup(host.End)
	spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"b.example"}}
	id := policy.BoxID(host.Add(t, api.CreateRequest{Name: "demo", Policy: spec}))
	host.Versions = map[policy.BoxID][]api.PolicyDocument{id: {{Box: id, Policy: spec, PolicyVersion: api.PolicyVersion{Version: 1, Cause: "create", Result: "in_force"}}}}
	gone, err := host.AttachBox(t.Context(), api.AttachRequest{Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	host.ByID[gone.ID].Status = api.StatusGone
	t.Setenv("BOXGATE_API_KEY", apitest.Key)
	t.Setenv("BOXGATE_ADMIN", srv.URL)
	return host
}

// runNamed runs a command named in a message. A command that would act on this host is only looked up.
func runNamed(t *testing.T, line string) (out string, failed bool) {
	t.Helper()
	args := shellWords(line)
	switch {
	case args[0] == "gateway" && args[1] == "serve":
		args = append(args, "--help")
	case args[0] == "mkdir":
		said, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		return string(said), err != nil
	}
	out, status := runCommandLine(t, args[1:]...)
	return out, status != cli.ExitOK
}

// shellWords splits a command line at spaces outside single quotes.
func shellWords(line string) (words []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}

// TestKeysThatDoNotDo: missing, unknown and insufficient keys have separate messages. If the gateway does not run, the
// message reports that instead of a missing key.
func TestKeysThatDoNotDo(t *testing.T) {
	host := serveInMemory(t)
	socket, stateDir := filepath.Join(t.TempDir(), "admin.sock"), t.TempDir()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := "state_dir: " + stateDir + "\nadmin:\n  socket: " + socket + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	host.Keys = map[string]api.Key{"reader": {Caller: api.Caller{Name: "ci", Role: api.RoleReader}}}
	t.Setenv("BOXGATE_API_KEY", "reader")
	if out, _ := runCommandLine(t, "box", "rm", "demo"); !strings.Contains(out, "has the role read-only, which may not do this") || !strings.Contains(out, "gateway api-key create") {
		t.Error(out)
	}
	t.Setenv("BOXGATE_API_KEY", "wrong")
	if out, _ := runCommandLine(t, "box", "list"); !strings.Contains(out, "does not accept the API key in BOXGATE_API_KEY") || !strings.Contains(out, "gateway api-key create") {
		t.Error(out)
	}
	t.Setenv("BOXGATE_API_KEY", "")
	t.Setenv("BOXGATE_ADMIN", "")
	if out, _ := runCommandLine(t, "box", "list", "--config", file); !strings.Contains(out, socket+": nothing listens there") || strings.Contains(out, "key") {
		t.Error(out)
	}
	if os.Geteuid() != 0 {
		return // other users may be members of admin.group, who need no key
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if out, _ := runCommandLine(t, "box", "list", "--config", file); !strings.Contains(out, "there is no file "+stateDir+"/api-key, but the gateway runs: name its configuration with --config") {
		t.Error(out)
	}
}

// TestEveryMistakeAtOnce: text and JSON errors list every mistake in a document, whether the command or the gateway found
// them.
func TestEveryMistakeAtOnce(t *testing.T) {
	serveInMemory(t)
	const doc = `{"mode":"custom","allowed_domains":["https://a.com/x","*.*.b","c.com:99999"]}`
	for _, line := range [][]string{{"box", "create", "--policy", doc}, {"policy", "set", "demo", doc}, {"policy", "diff", "demo", doc}} {
		out, _ := runCommandLine(t, line...)
		for _, part := range []string{"3 mistakes:\n", `/allowed_domains/0: "https://a.com/x" is a URL`, "/allowed_domains/1: ", "/allowed_domains/2: "} {
			if !strings.Contains(out, part) {
				t.Errorf("%v: %q is not in\n%s", line, part, out)
			}
		}
		_, raw, _ := reported(t, append(line, "--json"))
		var got struct {
			Problems []struct{ Pointer, Message string }
		}
		if err := json.Unmarshal([]byte(raw), &got); err != nil || len(got.Problems) != 3 || !strings.HasSuffix(got.Problems[2].Pointer, "/allowed_domains/2") {
			t.Errorf("%v: %v %s", line, err, raw)
		}
	}
}

// TestSocketBehindALinkInACircle: gateway run --socket PATH reports a loop of links, without hanging.
func TestSocketBehindALinkInACircle(t *testing.T) {
	t.Parallel()
	circle := filepath.Join(t.TempDir(), "circle")
	if err := os.Symlink(circle, circle); err != nil {
		t.Fatal(err)
	}
	if _, err := realPaths([]string{circle}); err == nil || err.Error() != circle+" cannot be read: too many levels of symbolic links" {
		t.Error(err)
	}
}

// TestMistakesAsJSON: with --json, errors are JSON, even if the command line could not be parsed to its end.
func TestMistakesAsJSON(t *testing.T) {
	t.Setenv("BOXGATE_API_KEY", "key")
	for _, args := range [][]string{{"--json", "box", "list", "--admin", "/none.sock"}, {"policy", "explain", "--port", "x", "--json"}, {"nothing", "--json"}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		stderr := os.Stderr
		os.Stderr = w
		status := Run(args)
		os.Stderr = stderr
		w.Close()
		var got struct {
			Error      string
			ExitStatus int `json:"exit_status"`
		}
		if err := json.NewDecoder(r).Decode(&got); err != nil || got.Error == "" || got.ExitStatus != status || status == 0 {
			t.Errorf("%v: %+v %v", args, got, err)
		}
		r.Close()
	}
}

// TestRemoveAll: without a terminal, --all needs --yes. It continues after a failure.
func TestRemoveAll(t *testing.T) {
	var removed []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			removed = append(removed, filepath.Base(r.URL.Path))
		}
		if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "b1") {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"error":"busy"}`)
			return
		}
		fmt.Fprint(w, `[{"id":"b1","name":"one"},{"id":"b2"}]`)
	}))
	t.Cleanup(srv.Close)
	t.Setenv("BOXGATE_API_KEY", "key")
	t.Setenv("BOXGATE_ADMIN", srv.URL)
	if out, code := runCommandLine(t, "box", "rm", "--all"); code != cli.ExitUsage || !strings.Contains(out, "--yes") || removed != nil {
		t.Errorf("without a terminal: exit %d, %v: %s", code, removed, out)
	}
	if out, code := runCommandLine(t, "box", "rm", "--all", "--yes"); code != cli.ExitFailed || !strings.Contains(out, "b1: busy") || strings.Join(removed, " ") != "b1 b2" {
		t.Errorf("exit %d, %v: %s", code, removed, out)
	}
}
