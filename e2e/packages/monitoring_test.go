package packages

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
)

// promtool is where `make promtool` unpacks it.
const promtool = "/var/lib/boxgate/prometheus/usr/bin/promtool"

// scrape returns the metrics that Prometheus would scrape.
func scrape(w *harness.World) string {
	w.T.Helper()
	text, err := w.Net.Gateway().Run(w.T.Context(), "curl", "-sS", "--fail", "http://127.0.0.1:9600/metrics")
	if err != nil {
		w.T.Fatal(err, text)
	}
	return text
}

var (
	family   = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	ofDocs   = regexp.MustCompile("(?m)^\\| `(boxgate_[a-z_]+)")
	anywhere = regexp.MustCompile(`(?:^|[^.\w])((?:boxgate|process|go)_[a-z0-9_]+)`) // but not keys of a configuration
)

// later are metrics that a gateway shows only after their first event: certificates of issuers, secrets, requests to
// public URLs and to models, self-tests, its membership in a fleet, a store of snapshots.
var later = []string{
	"boxgate_certificates_failing", "boxgate_certificates_failed_total", "boxgate_certificates_obtained_total",
	"boxgate_secret_refreshes_total", "boxgate_secret_refresh_failures_total", "boxgate_secret_read_timestamp_seconds", "boxgate_secret_expiry_timestamp_seconds",
	"boxgate_url_requests_total", "boxgate_selftest_decisions_total", "boxgate_boxes_ended_total",
	"boxgate_model_requests_total", "boxgate_model_tokens_total", "boxgate_model_cost_usd_total", "boxgate_model_refused_total",
	"boxgate_fleet_fenced", "boxgate_fleet_lease_seconds", "boxgate_fleet_hosts", "boxgate_fleet_revision", "boxgate_fleet_current_timestamp_seconds",
	"boxgate_fleet_listings_total", "boxgate_fleet_certificate_expiry_timestamp_seconds",
	"boxgate_fleet_shared_objects", "boxgate_fleet_shared_pending", "boxgate_fleet_peer_calls_total", "boxgate_fleet_refused_calls_total",
	"boxgate_fleet_unreachable_hosts", "boxgate_fleet_visitors_total",
	"boxgate_fleet_certificate_cache_reads_total", "boxgate_fleet_certificate_writes_refused_total",
	"boxgate_snapshot_store_up", "boxgate_snapshot_store_unreadable",
}

// inSources reports whether the sources contain a metric of that name.
func inSources(t *testing.T, name string) bool {
	t.Helper()
	return exec.Command("grep", "-rqF", "--include=*.go", "--exclude=*_test.go", `"`+name+`"`, "../../audit", "../../fleet", "../../host", "../../llm", "../../secrets").Run() == nil
}

// TestMetrics: the gateway's metrics, docs/metrics.md, and the metrics in the dashboard and the alerts are the same.
// Prometheus accepts the names, and the values are right.
func TestMetrics(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Approvals.Enabled = true
		c.Limits.ModelTotal = config.ModelLimit{Tokens: 1 << 40, Per: "day"}
		c.Metrics.PerBox = config.PerBox{Enabled: true, Max: 1}
		c.Log.Export.OTLP.Endpoint = "http://127.0.0.1:4318" // no listener
		c.Metrics.OTLP.Endpoint = "http://127.0.0.1:4318"
		c.SSH.Listen = "127.0.0.1:2222"
		c.Kubernetes.Policies, c.Kubernetes.Server = true, "https://127.0.0.1:4318"
		c.DNS.Upstreams = append([]string{"192.0.2.250"}, c.DNS.Upstreams...) // does not answer
	})
	box := w.SecretBox()
	w.MustSh(box, "curl -sS -o /dev/null https://api.example.com/")
	w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	w.Until("the meter has read the box's counters", func() bool {
		return !strings.Contains(scrape(w), `boxgate_box_bytes_total{box="`+box+`",direction="out"} 0`) && strings.Contains(scrape(w), "boxgate_box_bytes_total{")
	})
	text := scrape(w)

	shown := slices.Clone(later)
	for _, name := range later {
		if !inSources(t, name) {
			t.Errorf("no gateway shows %s", name)
		}
	}
	types := map[string]string{}
	for _, found := range family.FindAllStringSubmatch(text, -1) {
		types[found[1]] = found[2]
		if strings.HasPrefix(found[1], "boxgate_") {
			shown = append(shown, found[1])
		}
	}
	docs, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, found := range ofDocs.FindAllStringSubmatch(string(docs), -1) {
		documented[found[1]] = true
	}
	for _, name := range shown {
		if !documented[name] {
			t.Errorf("docs/metrics.md says nothing of %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if !slices.Contains(shown, name) {
			t.Errorf("docs/metrics.md names %s, which the gateway does not show", name)
		}
	}
	for _, file := range []string{"grafana/boxgate.json", "prometheus/alerts.yml", "prometheus/alerts_test.yml"} {
		content, err := os.ReadFile("../../dist/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range anywhere.FindAllStringSubmatch(string(content), -1) {
			name := found[1]
			if base := strings.TrimSuffix(name, "_bucket"); types[name] == "" && types[base] != "histogram" && !slices.Contains(later, strings.TrimSuffix(name, "_bucket")) {
				t.Errorf("dist/%s asks for %s, which the gateway does not show", file, name)
			}
		}
	}

	check := exec.Command(promtool, "check", "metrics")
	check.Stdin = strings.NewReader(text)
	if out, _ := check.CombinedOutput(); strings.TrimSpace(string(out)) != `boxgate_certificate_days_left use base unit "seconds" instead of "days"` {
		t.Errorf("promtool check metrics says: %s", out)
	}
	for _, want := range []string{
		`boxgate_dns_upstream_up{upstream="192.0.2.250"} 0`, `boxgate_dns_upstream_questions_total{result="silent",upstream="192.0.2.250"}`,
		`boxgate_dns_upstream_up{upstream="`, `boxgate_box_metrics_omitted 1`, `boxgate_box_limit_used_ratio{box="` + box + `",limit="connections"}`,
		`boxgate_limit_used_ratio{limit="memory"}`, `boxgate_limit_used_ratio{limit="descriptors"}`, `boxgate_limit_used_ratio{limit="conntrack"}`,
		`boxgate_box_limit_used_max_ratio{limit="connections"}`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	if n := strings.Count(text, "boxgate_box_memory_bytes{"); n != 1 {
		t.Errorf("%d boxes have metrics, not 1", n)
	}
	if regexp.MustCompile(`boxgate_dns_upstream_questions_total\{result="answered",upstream="[^"]+"\} [1-9]`).FindString(text) == "" {
		t.Error("no upstream has answered a question")
	}
	if strings.Contains(text, "example.com") {
		t.Error("a host is named")
	}
}

// TestNoMetricsOfSingleBoxes: they exist only if configured.
func TestNoMetricsOfSingleBoxes(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	if text := scrape(w); strings.Contains(text, box) || strings.Contains(text, "boxgate_box_metrics_omitted") {
		t.Error("a box is named, and metrics.per_box is not enabled")
	}
}

// TestAlerts: the rules are valid, and fire exactly when they should.
func TestAlerts(t *testing.T) {
	t.Parallel()
	dir, err := filepath.Abs("../../dist/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	rules, err := os.ReadFile(filepath.Join(dir, "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(filepath.Join(dir, "alerts_test.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`(?m)- alert: (\S+)`).FindAllStringSubmatch(string(rules), -1) {
		if !strings.Contains(string(tests), "alertname: "+found[1]+"\n") {
			t.Errorf("nothing tests %s", found[1])
		}
	}
}

// TestTheDashboard: it is a valid dashboard, and every panel queries the selected data source.
func TestTheDashboard(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../dist/grafana/boxgate.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Title  string
		UID    string
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct {
				Expr       string
				Datasource struct{ UID string }
			}
		}
	}
	if err := json.Unmarshal(data, &board); err != nil || board.Title == "" || board.UID == "" || len(board.Panels) < 10 {
		t.Fatalf("%v, %q with %d panels", err, board.Title, len(board.Panels))
	}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d, %q, at %+v", p.ID, p.Title, p.GridPos)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q asks %q", p.Title, target.Datasource.UID)
			}
		}
	}
}
