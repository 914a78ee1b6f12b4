package har_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/policy/match"
	"boxgate/proxy/har"
	"boxgate/proxy/proxytest"
)

// validate checks every part of an archive against the JSON schemas of HAR 1.2, as har-validator's command does.
const validate = `
const validator = require("har-validator"), archive = JSON.parse(require("fs").readFileSync(process.argv[2]));
validator.har(archive).then(() => Promise.all(archive.log.entries.map((e) => validator.entry(e)))).then(
	(all) => console.log(all.length + " valid entries"), (e) => { console.error(JSON.stringify(e.errors)); process.exit(1); });
`

// TestArchivesAreValid: a reader of HAR accepts archives with exchanges of every kind.
func TestArchivesAreValid(t *testing.T) {
	t.Parallel()
	nightly.Only(t)
	dir := t.TempDir()
	install := exec.Command("npm", "install", "--no-audit", "--no-fund", "--prefix", dir, "har-validator@5.1.5")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, h2 := range []bool{false, true} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		_, port := l.HTTPSServer(h2, mirror)
		spec := proxytest.AllowAll
		spec.Rules = []match.RequestRule{{Hosts: []string{"*"}, Methods: []string{"DELETE"}, Action: "deny"}}
		l.Policy(spec, proxytest.Intercepted(port))
		r := record(t, l, har.Options{Bodies: 10_000})
		client, url := l.HTTPClient(port, h2), "https://"+proxytest.HostPort(port)
		proxytest.Get(t, client, url+"/a?b=c&d&token=e", http.Header{"Cookie": {"a=b; c=d"}})
		proxytest.Send(t, client, "POST", url+"/post", http.Header{"Content-Type": {"application/json"}}, strings.NewReader("{}"))
		proxytest.Send(t, client, "POST", url+"/binary", http.Header{"X-Pack": {"1"}}, strings.NewReader("\x00\xff"))
		proxytest.Send(t, client, "DELETE", url+"/refused", nil, nil)
		proxytest.Send(t, client, "OPTIONS", url+"/%C3%A9", nil, nil)
		r.finish(5)
		path, script := filepath.Join(dir, "archive.har"), filepath.Join(dir, "validate.js")
		for name, text := range map[string][]byte{path: r.text.Bytes(), script: []byte(validate)} {
			if err := os.WriteFile(name, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("node", script, path)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "5 valid entries\n" {
			t.Errorf("%v: %s\n%s", err, out, r.text.String())
		}
	}
}
