// Package fleet tests gateways that are members of one fleet, with real etcd servers.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// ttl is the time to live of the hosts' leases. The gate shortens it from that of a gateway, 15 seconds, for which most of the
// tests wait.
var ttl = nightly.Size(6*time.Second, 15*time.Second)

func TestMain(m *testing.M) {
	_ = os.Setenv(harness.LeaseVariable, ttl.String()) // fails for a name with a NUL alone
	harness.Main(m)
}

// host is a gateway that is configured for the fleet.
type host struct {
	*harness.World
	id string
}

// newHost creates a gateway that is not started and not a member.
func newHost(t *testing.T, endpoints ...string) *host {
	t.Helper()
	return &host{World: harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Fleet = config.Fleet{Name: "test", Endpoints: endpoints}
	}})}
}

// command runs `gateway args...` in the gateway's namespace, where its control socket is, and returns its output.
func (h *host) command(want int, stdin string, args ...string) string {
	h.T.Helper()
	return h.finish(want, stdin, h.Command(h.T.Context(), args...))
}

// commandAs runs a command with an API key, which must succeed.
func (h *host) commandAs(key string, args ...string) string {
	h.T.Helper()
	cmd := h.Command(h.T.Context(), args...)
	cmd.Env = append(cmd.Environ(), "BOXGATE_API_KEY="+key)
	return h.finish(0, "", cmd)
}

func (h *host) finish(want int, stdin string, cmd *exec.Cmd) string {
	h.T.Helper()
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := h.Net.Gateway().Start(cmd); err != nil {
		h.T.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != want {
		h.T.Fatalf("gateway %v: exit %d: %s%s", cmd.Args[1:], code, out.String(), errs.String())
	}
	return out.String() + errs.String()
}

// become runs a command that makes the host a member, and starts the gateway.
func (h *host) become(stdin string, args ...string) {
	h.T.Helper()
	var made struct{ Host string }
	if err := json.Unmarshal([]byte(h.command(0, stdin, append(args, "--json")...)), &made); err != nil || made.Host == "" {
		h.T.Fatal(made, err)
	}
	h.id = made.Host
	h.start()
}

func (h *host) start() {
	h.T.Helper()
	if err := h.Start(h.T.Context()); err != nil {
		h.T.Fatal(err)
	}
}

// create tries to make a box. It returns its ID, or the status of the refusal with its text.
func (h *host) create() (id string, status int, refusal string) {
	h.T.Helper()
	var made struct{ ID string }
	err := h.Client.Do(h.T.Context(), "POST", "/v2/box", map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}, &made)
	if refused := (*api.ResponseError)(nil); errors.As(err, &refused) {
		return "", refused.Status, refused.Error()
	}
	if err != nil {
		h.T.Fatal(err)
	}
	return made.ID, http.StatusOK, ""
}

// members returns the states of the hosts by ID, as `gateway fleet status` shows them.
func (h *host) members() map[string]string {
	h.T.Helper()
	states := map[string]string{}
	for _, line := range strings.Split(h.command(0, "", "fleet", "status"), "\n") {
		if fields := strings.Fields(line); len(fields) > 3 && fields[0] != "ID" && fields[0] != "This" {
			states[fields[0]] = fields[2]
		}
	}
	return states
}

// two returns two members of a fleet.
func two(t *testing.T, etcd *etcdtest.Server) (a, b *host) {
	t.Helper()
	a, b = newHost(t, etcd.Endpoint()), newHost(t, etcd.Endpoint())
	a.become("", "fleet", "init")
	b.become(a.command(0, "", "fleet", "token"), "fleet", "join", "--token-file", "-")
	return a, b
}

// TestFleetOfTwoHosts: founding, joining by a token of a running gateway, cordoning, draining and leaving.
func TestFleetOfTwoHosts(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	lone := newHost(t, etcd.Endpoint())
	if err := lone.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "not a member of a fleet: run `gateway fleet init`") {
		t.Fatalf("a gateway that is not a member: %v", err)
	}
	a, b := two(t, etcd)
	if got := a.members(); got[a.id] != "running" || got[b.id] != "running" || len(got) != 2 {
		t.Errorf("%v", got)
	}
	if own := a.command(0, "", "fleet", "status"); !strings.Contains(own, "This host ("+a.id+") is not fenced: ") || !strings.Contains(own, "It has followed the fleet to revision ") {
		t.Errorf("the status of this host: %s", own)
	}
	box, status, refusal := b.create()
	if !strings.HasPrefix(box, b.id) {
		t.Fatalf("box %q, %d %s; the host is %s", box, status, refusal, b.id)
	}
	a.command(0, "", "fleet", "cordon", b.id)
	b.Until("the cordoned host makes no boxes", func() bool {
		made, status, refusal := b.create()
		if made != "" {
			b.MustDelete(made)
		}
		return status == http.StatusServiceUnavailable && strings.Contains(refusal, "gateway fleet uncordon "+b.id)
	})
	if made, _, refusal := a.create(); made == "" {
		t.Errorf("the other host: %s", refusal)
	}
	b.MustSh(box, "true")
	drained := make(chan string, 1)
	go func() {
		cmd := a.Command(t.Context(), "fleet", "drain", b.id)
		out, _ := cmd.CombinedOutput()
		drained <- string(out)
	}()
	b.Until("the directory has the box", func() bool {
		return strings.Contains(a.command(0, "", "fleet", "status", "--json"), `"boxes": 1`) || strings.Contains(a.command(0, "", "fleet", "status", "--json"), `"boxes":1`)
	})
	select {
	case out := <-drained:
		t.Errorf("drained with a box: %s", out)
	default:
	}
	b.MustDelete(box)
	if out := <-drained; !strings.Contains(out, "Host "+b.id+" has no boxes") {
		t.Errorf("drain: %s", out)
	}
	if got := a.members(); got[b.id] != "drained" {
		t.Errorf("%v", got)
	}
	a.command(0, "", "fleet", "uncordon", b.id)
	b.Until("the host makes boxes again", func() bool { made, _, _ := b.create(); return made != "" })
	a.command(0, "", "fleet", "leave", b.id)
	b.Until("a host that was removed makes no boxes", func() bool {
		_, status, refusal := b.create()
		return status == http.StatusServiceUnavailable && strings.Contains(refusal, "cut off from its fleet")
	})
	if err := b.Stop(); err != nil {
		t.Error(err)
	}
	b.command(0, "", "fleet", "leave")
	b.become(a.command(0, "", "fleet", "token"), "fleet", "join", "--token-file", "-")
	if got := a.members(); got[b.id] != "running" {
		t.Errorf("after joining again: %v", got)
	}
}

// TestPolicyIsNotWrittenToEtcd: policies of boxes change without a write to etcd, on any host that is asked.
func TestPolicyIsNotWrittenToEtcd(t *testing.T) {
	t.Parallel()
	j, a, b, _ := three(t)
	box := j.make(b, "")
	a.Until("the number of boxes is written", func() bool {
		return strings.Contains(a.command(0, "", "fleet", "status", "--json"), `"boxes":1`) || strings.Contains(a.command(0, "", "fleet", "status", "--json"), `"boxes": 1`)
	})
	client := j.etcd.Client()
	revision := func() int64 {
		t.Helper()
		answer, err := client.Get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		return answer.Header.Revision
	}
	before := revision()
	for i := range 10 {
		policy := map[string]any{"mode": "deny-all"}
		if i%2 == 0 {
			policy = harness.Custom("www.example.com")
		}
		j.must(j.hosts[i%3], 200, "PUT", "/v2/box/"+box+"/config/network-policy", policy)
	}
	if after := revision(); after != before {
		t.Errorf("etcd has revision %d, %d before", after, before)
	}
	if _, err := client.Put(t.Context(), "x", "the control"); err != nil || revision() != before+1 {
		t.Error("a write is not seen", err)
	}
}

// TestHostWithoutEtcd: past the TTL a host without etcd makes no boxes; its own boxes, their policies and commands go on, also if the
// gateway starts anew. With etcd it makes boxes again.
func TestHostWithoutEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	a := newHost(t, etcd.Endpoint())
	a.become("", "fleet", "init")
	box, _, refusal := a.create()
	if box == "" {
		t.Fatal(refusal)
	}
	if a.Metric("boxgate_fleet_fenced") != 0 || a.Metric("boxgate_fleet_lease_seconds") <= 0 {
		t.Error("a host with etcd is fenced")
	}
	etcd.Kill()
	killed := time.Now()
	fenced := func() bool {
		made, status, _ := a.create()
		if made != "" {
			a.MustDelete(made)
		}
		return status == http.StatusServiceUnavailable
	}
	a.Until("the host is fenced", fenced)
	if took := time.Since(killed); took > 2*ttl {
		t.Errorf("fenced after %v; the TTL is %v", took, ttl)
	}
	local := func() {
		t.Helper()
		a.SetPolicy(box, harness.Custom("www.example.com"))
		a.MustSh(box, "curl -fsS -o /dev/null http://www.example.com/")
		a.SetPolicy(box, map[string]any{"mode": "deny-all"})
		if out, code := a.Sh(box, "curl -fsS -m 5 -o /dev/null http://www.example.com/"); code == 0 {
			t.Errorf("after a tightening without etcd: %s", out)
		}
	}
	local()
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	a.start()
	if !fenced() || a.Metric("boxgate_fleet_fenced") != 1 {
		t.Error("a host that starts without etcd is not fenced")
	}
	local()
	etcd.Restart()
	a.Until("the host makes boxes again", func() bool { made, _, _ := a.create(); return made != "" })
}

// TestCopiedStateDirectory: a gateway with a copy of the state directory does not start while the first one runs, which is not disturbed.
// The first one starts again immediately after a crash.
func TestCopiedStateDirectory(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	a := newHost(t, etcd.Endpoint())
	a.become("", "fleet", "init")
	copied := newHost(t, etcd.Endpoint())
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `mkdir -p "$1" && chmod 700 "$1" && cp -a "$0"/boxgate.db "$0"/secret.key "$0"/api-key "$1"/`, filepath.Join(a.Dir, "state"), filepath.Join(copied.Dir, "state")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := copied.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "another gateway is running with the ID of this host") {
		t.Fatalf("the copy: %v", err)
	}
	if out := copied.command(1, "", "fleet", "leave"); !strings.Contains(out, "a gateway is running with the ID of this host") {
		t.Errorf("the copy leaves the fleet: %s", out)
	}
	if _, status, refusal := a.create(); status != http.StatusOK {
		t.Errorf("the first gateway: %s", refusal)
	}
	a.Kill()
	began := time.Now()
	a.start()
	if _, status, refusal := a.create(); status != http.StatusOK || time.Since(began) > ttl {
		t.Errorf("after a crash, within %v: %s", time.Since(began), refusal)
	}
}

// TestReplacedGatewayStaysAMember: a reload starts another process, which takes the presence over and is not fenced.
func TestReplacedGatewayStaysAMember(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	a := newHost(t, etcd.Endpoint())
	a.become("", "fleet", "init")
	text, err := os.ReadFile(a.Config)
	if err == nil {
		err = os.WriteFile(a.Config, []byte(strings.Replace(string(text), "idle_timeout: 30m0s", "idle_timeout: 31m0s", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var done struct {
		Replaced bool
		PID      int
	}
	if err := json.Unmarshal([]byte(a.command(0, "", "reload", "--json")), &done); err != nil || !done.Replaced {
		t.Fatal(done, err)
	}
	t.Cleanup(func() {
		p, err := os.FindProcess(done.PID)
		if err == nil {
			_ = p.Signal(os.Interrupt)
		}
	})
	if _, status, refusal := a.create(); status != http.StatusOK {
		t.Errorf("the successor: %s", refusal)
	}
	began := time.Now()
	a.Until("the successor outlives the lease of its predecessor", func() bool {
		if got := a.members()[a.id]; got != "running" {
			t.Fatalf("the state of the host: %s", got)
		}
		return time.Since(began) > ttl+ttl/3
	})
	if _, status, refusal := a.create(); status != http.StatusOK {
		t.Errorf("the successor, later: %s", refusal)
	}
}

// TestHostCutOffByTheNetwork: packets between a host and etcd, over TLS with client certificates, are dropped. That host is fenced at its
// TTL, the other is not and sees it as away; after the cut it takes part again. Without its certificate a host is a stranger to etcd.
func TestHostCutOffByTheNetwork(t *testing.T) {
	t.Parallel()
	const address = "192.0.2.77:2379"
	a := &host{World: harness.NewStopped(t, lab.Options{})}
	etcd := etcdtest.StartTLS(t, a.Net.Internet().Start, address)
	access := etcd.Access()
	a.configure(config.Fleet{Name: "test", Endpoints: access.Endpoints, TLS: config.FleetTLS{CAFile: access.CAFile}})
	if out := a.command(1, "", "fleet", "init"); !strings.Contains(out, "etcd does not answer") {
		t.Errorf("without a certificate: %s", out)
	}
	a.configure(config.Fleet{Name: "test", Endpoints: access.Endpoints, TLS: config.FleetTLS{CAFile: access.CAFile, CertFile: access.CertFile, KeyFile: access.KeyFile}})
	a.become("", "fleet", "init")
	b := newHost(t, etcd.Endpoint())
	b.become(a.command(0, "", "fleet", "token"), "fleet", "join", "--token-file", "-")
	nft := func(line string) {
		t.Helper()
		if out, err := a.Net.Gateway().Run(t.Context(), "nft", line); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	nft("table inet cut { chain out { type filter hook output priority 0; tcp dport 2379 drop; }; chain in { type filter hook input priority 0; tcp sport 2379 drop; }; }")
	began := time.Now()
	a.Until("the host is fenced", func() bool { return a.Metric("boxgate_fleet_fenced") == 1 })
	if took := time.Since(began); took > 2*ttl {
		t.Errorf("fenced after %v; the TTL is %v", took, ttl)
	}
	b.Until("the host is away for the others", func() bool { return b.members()[a.id] == "away" })
	if a.Metric("boxgate_fleet_fenced") != 1 || b.Metric("boxgate_fleet_fenced") != 0 {
		t.Error("etcd ended the lease of a host that is not fenced, or the other host is fenced")
	}
	b.command(0, "", "fleet", "cordon", a.id)
	nft("delete table inet cut")
	a.Until("the host takes part again, and knows what it missed", func() bool {
		_, _, refusal := a.create()
		return a.Metric("boxgate_fleet_fenced") == 0 && strings.Contains(refusal, "cordoned")
	})
	if got := b.members()[a.id]; got != "cordoned" && got != "drained" {
		t.Errorf("the state of the host: %s", got)
	}
}

// configure replaces the section of the fleet in the configuration of a host that is not running.
func (h *host) configure(f config.Fleet) {
	h.T.Helper()
	cfg, err := config.Load(h.Config, nil)
	if err != nil {
		h.T.Fatal(err)
	}
	cfg.Fleet = f
	text, err := yaml.Marshal(cfg)
	if err == nil {
		err = os.WriteFile(h.Config, text, 0o600)
	}
	if err != nil {
		h.T.Fatal(err)
	}
}

// TestNoFleetNothingOpened: a gateway without fleet has no goroutine, connection or metric of one.
func TestNoFleetNothingOpened(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	if text := string(w.Metrics()); strings.Contains(text, "boxgate_fleet") {
		t.Error("metrics of a fleet")
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	_ = w.Process.Process.Signal(syscall.SIGQUIT)
	select {
	case <-w.Exited:
	case <-ctx.Done():
		t.Fatal("the gateway does not end")
	}
	stacks := strings.ReplaceAll(w.LogText(), "go.etcd.io/bbolt", "") // the store, which may be writing
	for _, word := range []string{"go.etcd.io/etcd", "google.golang.org/grpc", "boxgate/fleet"} {
		if strings.Contains(stacks, word) {
			t.Errorf("a goroutine of %s", word)
		}
	}
	if !strings.Contains(w.LogText(), "goroutine ") {
		t.Error("no stacks were written")
	}
}
