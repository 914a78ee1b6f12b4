package clients

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
	"boxgate/internal/testnet"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/policy/name"
)

// service is the test of the section of docs/credentials.md with its name.
type service struct {
	serve func(*vendors)
	opens []string          // hosts besides those of the rules; the box's TLS to them is not intercepted
	files map[string]string // files in the box, in the working directory of the commands
	// run are commands for clients that are not on the page. Each prints "welcome".
	run []string
}

const sdk = "/opt/clients/node_modules/"

// services are the sections of the page.
var services = map[string]service{
	"GitHub": {serve: (*vendors).gitHub, run: []string{
		"git -C web log --format=%s",
		"git -C web -c user.name=A -c user.email=a@example.com commit -q --allow-empty -m more && git -C web push -q && echo welcome",
	}},
	"OpenAI": {serve: (*vendors).openAI, files: map[string]string{"agent.js": `
		const OpenAI = require("` + sdk + `openai");
		new OpenAI().chat.completions.create({model: "m", messages: [{role: "user", content: "hi"}]}).then(r => console.log(r.choices[0].message.content));`}},
	"Anthropic": {serve: (*vendors).anthropic, files: map[string]string{"agent.js": `
		const Anthropic = require("` + sdk + `@anthropic-ai/sdk");
		new Anthropic().messages.create({model: "m", max_tokens: 9, messages: [{role: "user", content: "hi"}]}).then(r => console.log(r.content[0].text));`}},
	"Google Cloud": {serve: (*vendors).googleCloud, run: []string{"node list.js"}, files: map[string]string{"list.js": `
		const {Storage} = require("` + sdk + `@google-cloud/storage"), {OAuth2Client} = require("` + sdk + `google-auth-library");
		const authClient = new OAuth2Client();
		authClient.setCredentials({access_token: "none"});
		new Storage({authClient, projectId: "p"}).bucket("bucket").getFiles().then(([files]) => console.log(files[0].name));`}},
	"AWS": {serve: (*vendors).aws},
	"Azure": {serve: (*vendors).azure, run: []string{"node --experimental-global-webcrypto list.js"}, files: map[string]string{"list.js": `
		const {SubscriptionClient} = require("` + sdk + `@azure/arm-resources-subscriptions");
		const credential = {getToken: async () => ({token: "none", expiresOnTimestamp: Date.now() + 3600e3})};
		new SubscriptionClient(credential).subscriptions.list().next().then(r => console.log(r.value.displayName));`}},
	"npm": {serve: (*vendors).npm, run: []string{`node -p 'require("@acme/private")'`, "cd mine && npm publish && echo welcome"},
		files: map[string]string{"mine/package.json": `{"name": "@acme/mine", "version": "1.0.0"}`}},
	"PyPI":              {serve: (*vendors).pyPI, files: map[string]string{"dist/" + wheelName: ""}},
	"Docker registries": {serve: (*vendors).docker, opens: []string{"registry-1.docker.io"}, run: []string{"test -s image/manifest.json && echo welcome"}},
}

// inGate are the services run in the gate: a source of tokens, a value, and signatures.
var inGate = map[string]bool{"GitHub": true, "OpenAI": true, "AWS": true}

// elsewhere are the sections of the page that other tests cover.
var elsewhere = map[string]bool{"PostgreSQL": true, "SSH": true} // TestPostgres, TestSSH

// example is a section of the page.
type example struct {
	service  string
	config   string
	hosts    []string // of the rules
	rules    map[string]json.RawMessage
	commands string
	box      string
}

// readExamples returns the sections of docs/credentials.md.
func readExamples(t *testing.T) (all []*example) {
	t.Helper()
	text, err := os.ReadFile("../../docs/credentials.md")
	if err != nil {
		t.Fatal(err)
	}
	block := func(section, language string) string {
		_, rest, _ := strings.Cut(section, "```"+language+"\n")
		code, _, _ := strings.Cut(rest, "```")
		return code
	}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		e := &example{config: block(section, "yaml"), commands: block(section, "sh")}
		e.service, _, _ = strings.Cut(section, "\n")
		if err := json.Unmarshal([]byte(block(section, "json")), &e.rules); err != nil || services[e.service].serve == nil && !elsewhere[e.service] {
			t.Fatalf("section %q of the page: no test tries it, or its rules are no JSON: %v", e.service, err)
		}
		for host := range e.rules {
			e.hosts = append(e.hosts, host)
		}
		all = append(all, e)
	}
	if len(all) != len(services)+len(elsewhere) {
		t.Fatalf("the page has %d services, the tests %d", len(all), len(services)+len(elsewhere))
	}
	return all
}

// page is a world with the complete page: its configuration, and its vendors.
type page struct {
	*harness.World
	*vendors
	files    string // directory of the gateway's files, with secrets
	examples []*example
	secrets  []string
}

func newPage(t *testing.T) *page {
	t.Helper()
	p := &page{World: harness.NewStopped(t, lab.Options{Change: withClients(t)}), vendors: newVendors(t), files: t.TempDir(), examples: readExamples(t)}
	p.examples = slices.DeleteFunc(p.examples, func(e *example) bool {
		return elsewhere[e.service] || !nightly.Enabled() && !inGate[e.service]
	})
	for name, content := range p.fileContents() {
		if err := os.WriteFile(filepath.Join(p.files, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.Env = []string{"CREDENTIALS_DIRECTORY=" + p.files, harness.ResolverVariable + "=" + p.Net.DNSServers()[0], "NPM_TOKEN=" + p.credential("npm")}
	p.configure()
	for _, e := range p.examples {
		services[e.service].serve(p.vendors)
	}
	i := 0
	for host, handler := range p.hosts {
		i++
		p.open(host, "198.51.100."+strconv.Itoa(130+i), handler)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// fileContents returns the files named in the configuration.
func (p *page) fileContents() map[string]string {
	robot, err := json.Marshal(map[string]string{"client_email": "robot@example.com", "private_key": p.keyPEM(), "private_key_id": "1"})
	if err != nil {
		p.T.Fatal(err)
	}
	return map[string]string{
		"github-app.pem": p.keyPEM(), "robot.json": string(robot), "azure.pem": p.certificatePEM(),
		"aws.json":   `{"Version": 1, "AccessKeyId": "AKIAREALKEY", "SecretAccessKey": "` + p.credential("aws") + `"}`,
		"openai.key": p.credential("openai"), "pypi.token": p.credential("pypi"), "connect.token": p.credential("connect"), "vault-secret-id": p.credential("vault-id"),
	}
}

// configure adds the entries of all sections to the configuration.
func (p *page) configure() {
	p.T.Helper()
	var all struct{ Secrets map[string]any }
	for _, e := range p.examples {
		text := strings.ReplaceAll(e.config, "/etc/boxgate", p.files)
		if err := yaml.Unmarshal([]byte(text), &all); err != nil { // merges the maps
			p.T.Fatal(err)
		}
	}
	for name := range all.Secrets {
		p.secrets = append(p.secrets, name)
	}
	slices.Sort(p.secrets)
	text, err := yaml.Marshal(map[string]any{"secrets": all.Secrets})
	if err != nil {
		p.T.Fatal(err)
	}
	f, err := os.OpenFile(p.Config, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(text)
		_ = f.Close()
	}
	if err != nil {
		p.T.Fatal(err)
	}
}

// open makes a handler answer for a host, optionally with a port after a colon. "gateway" is the gateway's host.
func (p *page) open(host, addr string, handler http.Handler) {
	p.T.Helper()
	host, port, other := strings.Cut(host, ":")
	var err error
	switch {
	case host == "gateway":
		var ln net.Listener
		if ln, err = p.Net.Gateway().Listen("tcp4", "127.0.0.1:"+port); err == nil {
			s := &http.Server{Handler: handler} //nolint:gosec // a server of the test
			p.T.Cleanup(func() { _ = s.Close() })
			go func() { _ = s.Serve(ln) }()
		}
	case other:
		var n int
		if n, err = strconv.Atoi(port); err == nil {
			err = p.Net.AddHost(host, addr)
		}
		if err == nil {
			err = p.Net.ServeHTTPSAt(host, uint16(n), handler)
		}
	default:
		if err = p.Net.AddHost(host, addr); err == nil {
			err = p.Net.ServeHTTP(host, handler)
		}
	}
	if err != nil {
		p.T.Fatal(err)
	}
}

// TestCredentials runs the examples of docs/credentials.md for each service (in the gate, a few) unchanged, from boxes
// without real credentials, against servers under the real names that accept only the right credential. Then the
// issuers of credentials fail, and every request is refused. No credential is ever shown.
func TestCredentials(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	t.Run("services", func(t *testing.T) {
		for _, e := range p.examples {
			t.Run(e.service, func(t *testing.T) {
				t.Parallel()
				p.runSection(p.On(t), e)
			})
		}
	})
	if t.Failed() {
		return
	}
	p.failIssuers()
	p.assertNotShown()
}

// runSection runs the commands of a section in a new box.
func (p *page) runSection(w *harness.World, e *example) {
	s := services[e.service]
	e.box = w.Create(map[string]any{
		"runtime": "clients", "attach_headers": e.rules, "network_policy": harness.Custom(append(append([]string{"www.example.com"}, e.hosts...), s.opens...)...),
	})
	for name, content := range s.files {
		if content == "" {
			content = string(wheel(w.T))
		}
		w.MustSh(e.box, "mkdir -p $(dirname "+name+") && echo "+base64.StdEncoding.EncodeToString([]byte(content))+" | base64 -d >"+name)
	}
	if len(s.opens) > 0 {
		spec := launcher.ExecSpec{User: "root", Args: []string{"sh", "-c", "cat >>/etc/ssl/certs/ca-certificates.crt"}, Stdin: bytes.NewReader(p.Net.CAPEM())}
		if out, code := launch(w, w.T, e.box, spec); code != 0 {
			w.T.Fatal(out)
		}
	}
	out := w.MustSh(e.box, "set -e\n"+e.commands)
	for _, line := range s.run {
		more := w.MustSh(e.box, line)
		harness.Contains(w.T, more, "welcome")
		out += more
	}
	for _, host := range e.hosts {
		p.mu.Lock()
		if p.accepted[host] == 0 {
			w.T.Errorf("%s accepted no request: %s", host, out)
		}
		p.mu.Unlock()
		w.Event(e.box, func(d audit.Event) bool {
			return d.Name == host && d.Verdict == policy.Allow && d.Rule != "" && len(d.Headers) > 0
		})
	}
	w.MustSh(e.box, p.ask(e, "www.example.com", "-k "))
	if strings.Contains(out, p.mark) {
		w.T.Errorf("a credential is in the box: %s", out)
	}
	search := strings.Replace(lab.SearchLine(p.mark), " / ", " /workspace /tmp /var/tmp /run /etc ", 1)
	if found := strings.Fields(harness.Output(w.Sh(e.box, search))); strings.Join(found, " ") != "0 0 0" {
		w.T.Errorf("matches in the box: %v", found)
	}
}

// ask returns a line that sends a request to a host with the box's placeholders for it, or with all placeholders to a
// host without a rule.
func (p *page) ask(e *example, host, flags string) string {
	line := "curl -sS " + flags
	for at, text := range e.rules {
		var rule struct{ Placeholders map[string]any }
		if err := json.Unmarshal(text, &rule); err != nil {
			p.T.Fatal(err)
		}
		for name := range rule.Placeholders {
			if at == host || e.rules[host] == nil {
				line += `-u "user:$` + name + `" -H "X-Key: $` + name + `" `
			}
		}
	}
	return line + "https://" + host + "/asked"
}

// failIssuers lets all that issues credentials fail.
func (p *page) failIssuers() {
	p.down.Store(true)
	for name := range p.fileContents() {
		if err := os.Remove(filepath.Join(p.files, name)); err != nil {
			p.T.Fatal(err)
		}
	}
	for _, name := range p.secrets {
		if out, exit := p.GatewayCommand("secret", "refresh", name); exit == 0 {
			p.T.Errorf("secret %s was refreshed: %s", name, out)
		}
	}
	for _, e := range p.examples {
		if e.service != "npm" { // a variable is read once
			p.refused(e, "")
		}
	}
	if !nightly.Enabled() {
		return // the rest is npm's
	}
	if err := p.Stop(); err != nil {
		p.T.Fatal(err)
	}
	p.Env = slices.DeleteFunc(p.Env, func(v string) bool { return strings.HasPrefix(v, "NPM_TOKEN=") })
	if err := p.Start(p.T.Context()); err != nil {
		p.T.Fatal(err)
	}
	for _, e := range p.examples {
		if e.service == "npm" {
			p.refused(e, "variable NPM_TOKEN: it is not set")
		}
	}
}

// refused checks that no host of a section's rules receives a request, and that the log contains the reason.
func (p *page) refused(e *example, cause string) {
	p.T.Helper()
	p.mu.Lock()
	before := fmt.Sprint(p.accepted)
	p.mu.Unlock()
	for _, host := range e.hosts {
		harness.Contains(p.T, p.MustSh(e.box, p.ask(e, host, "")), "secret_unavailable")
		p.Event(e.box, func(d audit.Event) bool {
			return d.Reason == name.ReasonSecretUnavailable && d.Status == http.StatusBadGateway && d.Rule == host && strings.Contains(d.Error, `secret "`) && strings.Contains(d.Error, cause)
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if after := fmt.Sprint(p.accepted); after != before {
		p.T.Errorf("%s: requests were accepted without a source: %s, then %s", e.service, before, after)
	}
}

// assertNotShown searches for credentials in all output and files of the gateway, and at another host.
func (p *page) assertNotShown() {
	seen := map[string]string{"log": p.LogText(), "metrics": string(p.Metrics())}
	for _, args := range [][]string{{"secret", "list"}, {"secret", "list", "--json"}, {"check", "--json"}, {"box", "list", "--json"}} {
		seen[strings.Join(args, " ")], _ = p.GatewayCommand(args...)
	}
	for _, e := range p.examples {
		seen["decisions of "+e.service] = fmt.Sprintf("%+v", p.Events(e.box))
		seen["rules of "+e.service], _ = p.GatewayCommand("headers", "list", "--box", e.box, "--json")
	}
	asked := p.Net.Received("www.example.com", testnet.Path("/asked"))
	if len(asked) != len(p.examples) {
		p.T.Errorf("the other host was asked %d times", len(asked))
	}
	seen["the other host"] = fmt.Sprintf("%+v", asked)
	for where, text := range seen {
		if i := strings.Index(text, p.mark); i >= 0 {
			p.T.Errorf("%s shows a credential: …%.300s", where, text[max(0, i-150):])
		}
	}
	err := filepath.WalkDir(p.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // files that boxes are still changing
		}
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), p.mark) {
			p.T.Errorf("%s holds a credential", path)
		}
		return nil
	})
	if err != nil {
		p.T.Error(err)
	}
}
