package lifecycle

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"boxgate/audit"
	"boxgate/certs"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// collectors are an OTLP collector and a webhook receiver on the internet of a test.
type collectors struct {
	t          *testing.T
	key, token string

	mu       sync.Mutex
	all      bool              // the webhook may also get allowed decisions
	seen     map[string]int    // by run and number: how often a webhook received the decision
	decided  map[string]string // decision → the run reported by webhooks
	records  map[string]int    // by body: how often OTLP received it
	problems []error
}

// collectorName is the host name of both.
const collectorName = "collector.example.com"

// serve starts the collectors, with a certificate of a CA that no other client trusts, and returns the CA's file.
func (c *collectors) serve(w *harness.World) (caFile string) {
	ca, err := certs.NewCA("collectors")
	if err != nil {
		c.t.Fatal(err)
	}
	issued, err := certs.NewIssued(ca, collectorName)
	if err != nil {
		c.t.Fatal(err)
	}
	caFile = filepath.Join(w.Dir, "collector-ca.pem")
	if err := errors.Join(os.WriteFile(caFile, ca.CertificatePEM(), 0o600), w.Net.AddHost(collectorName, "198.51.100.80")); err != nil {
		c.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /hook", c.webhook)
	mux.HandleFunc("POST /v1/logs", c.otlp)
	server := &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(tls.NewListener(w.ListenBeside("198.51.100.80:4318"), &tls.Config{GetCertificate: issued.GetCertificate}))
	c.t.Cleanup(func() { server.Close() })
	return caFile
}

// recordError keeps a problem, which the test reports.
func (c *collectors) recordError(err error) {
	if err != nil {
		c.problems = append(c.problems, err)
	}
}

func (c *collectors) webhook(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recordError(err)
	hook, err := standardwebhooks.NewWebhook(c.key)
	c.recordError(err)
	c.recordError(hook.Verify(body, r.Header))
	var p struct {
		Type string
		Data struct {
			Host, Run string
			Decisions []audit.Event
		}
	}
	c.recordError(json.Unmarshal(body, &p))
	if p.Type != "boxgate.decisions" || p.Data.Host == "" {
		c.recordError(fmt.Errorf("the payload is %s", body))
	}
	for _, e := range p.Data.Decisions {
		c.seen[fmt.Sprint(p.Data.Run, " ", e.Seq)]++
		if e.Verdict == policy.Allow && !c.all {
			c.recordError(fmt.Errorf("allowed: %+v", e))
		}
		c.decided[string(e.Box)+" "+string(e.Stage)+" "+e.Name] = p.Data.Run
	}
}

func (c *collectors) otlp(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recordError(err)
	var data logs.LogsData
	c.recordError(protojson.Unmarshal(body, &data))
	if got := r.Header.Get("Authorization"); got != c.token {
		c.recordError(fmt.Errorf("Authorization is %q", got))
	}
	for _, of := range data.ResourceLogs {
		for _, scope := range of.ScopeLogs {
			for _, record := range scope.LogRecords {
				c.records[record.Body.GetStringValue()]++
			}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte("{}"))
}

// run returns the run of the decision about a name at a stage that a webhook received, or "".
func (c *collectors) run(box, stage, name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.decided[box+" "+stage+" "+name]
}

// has reports whether OTLP has a record with that text.
func (c *collectors) has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.records[text] > 0
}

// TestDecisionsAreExported: denials arrive at a webhook, signed, and denials and allowed decisions at an OTLP
// collector, both with a certificate of the operator's CA. This also holds after another process has replaced the
// gateway. No decision arrives twice, a reload applies a new configuration, and the key and the header are never shown.
func TestDecisionsAreExported(t *testing.T) {
	t.Parallel()
	c := &collectors{
		t: t, key: "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("canary-k"), 4)), token: "Bearer canary-token",
		seen: map[string]int{}, decided: map[string]string{}, records: map[string]int{},
	}
	u := newUpgrading(t, func(cfg *config.Config) {
		cfg.Log.Export = config.Export{
			CAFiles: []string{filepath.Join(filepath.Dir(cfg.StateDir), "collector-ca.pem")},
			OTLP:    config.OTLP{Endpoint: "https://" + collectorName + ":4318", Headers: map[string]string{"Authorization": "token"}, Events: "all"},
			Webhook: config.Webhook{URL: "https://" + collectorName + ":4318/hook", Secret: "key", Events: "denied"},
		}
	})
	c.serve(u.World)
	u.Env = append(u.Env, harness.ResolverVariable+"="+u.Net.DNSServers()[0])
	u.secretFiles(map[string]string{"key": c.key, "token": c.token})
	if out := u.Run(0, nil, "", "check", "--json"); strings.Contains(out, "canary") {
		t.Errorf("check shows %s", out)
	}
	if err := u.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := u.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	first := u.denied(c, box, "one.example.com")
	u.mustReplace("upgrade")
	if second := u.denied(c, box, "two.example.com"); second == first {
		t.Error("both runs have one name")
	}
	u.exportAll(c, box)
	for what, text := range map[string]string{"the log": u.LogText(), "the metrics": string(u.Metrics()), "status": u.Run(0, nil, "", "status", "--json")} {
		if strings.Contains(text, "canary") || strings.Contains(text, strings.TrimPrefix(c.key, "whsec_")) {
			t.Errorf("%s shows a secret", what)
		}
	}
	u.terminate()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.problems...); err != nil {
		t.Error(err)
	}
	for which, n := range c.seen {
		if n != 1 {
			t.Errorf("decision %s came %d times", which, n)
		}
	}
}

// exportAll makes the webhook also receive allowed decisions, by a reload.
func (u *upgrading) exportAll(c *collectors, box string) {
	u.T.Helper()
	c.mu.Lock()
	c.all = true
	c.mu.Unlock()
	text, err := os.ReadFile(u.Config)
	changed := strings.Replace(string(text), "events: denied", "events: all", 1)
	if err = errors.Join(err, os.WriteFile(u.Config, []byte(changed), 0o600)); err != nil {
		u.T.Fatal(err)
	}
	if r := u.replace(u.T.Context(), "reload"); len(r.Changes) != 1 || r.Changes[0].String() != "log.export.webhook.events: denied -> all" {
		u.T.Errorf("reload: %+v", r)
	}
	u.MustSh(box, "curl -sS -o /dev/null https://api.example.com/")
	u.Until("what was allowed arrives", func() bool { return c.run(box, "conn", "api.example.com") != "" })
}

// secretFiles writes secrets to files and adds them to the configuration.
func (u *upgrading) secretFiles(values map[string]string) {
	u.T.Helper()
	text, err := os.ReadFile(u.Config)
	text = append(text, "secrets:\n"...)
	for name, value := range values {
		file := filepath.Join(u.Dir, "secret-"+name)
		err = errors.Join(err, os.WriteFile(file, []byte(value+"\n"), 0o600))
		text = fmt.Appendf(text, "  %s: {file: %s}\n", name, file)
	}
	if err = errors.Join(err, os.WriteFile(u.Config, text, 0o600)); err != nil {
		u.T.Fatal(err)
	}
}

// denied makes a box try a denied name and an allowed one, and returns the run that the webhook reports for it.
func (u *upgrading) denied(c *collectors, box, name string) (run string) {
	u.T.Helper()
	u.Sh(box, "curl -sS --max-time 20 https://"+name+"/")
	u.MustSh(box, "curl -sS -o /dev/null https://api.example.com/")
	u.Until("the denials arrive", func() bool {
		run = c.run(box, "conn", name)
		return run != "" && c.run(box, "dns", name) == run && c.has("deny dns A udp/"+name+": not_allowed") && c.has("deny conn "+name+":443: not_allowed")
	})
	u.Until("what was allowed arrives", func() bool { return c.has("allow dns A udp/api.example.com: allowed_domain") })
	return run
}
