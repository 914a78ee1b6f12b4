package fleet

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/lab"
	"boxgate/policy"
)

// Paths of the named policy of these tests, as one of a host and of the fleet.
const (
	namedWeb = "/v2/box/settings/network-policies/web"
	fleetWeb = namedWeb + "?fleet=true"
)

// open and shut are policies with and without the destination of a flood.
var (
	sink = netip.AddrPortFrom(harness.AttackerAt(90)[0], 7790)
	open = map[string]any{"mode": "custom", "allowed_cidrs": []string{sink.Addr().String() + "/32"}}
	shut = map[string]any{"mode": "deny-all"}
)

// flood is a box that sends datagrams as fast as it can, and the server outside that counts them. Each has the time when it was sent.
type flood struct {
	*host
	box            string
	sent, received atomic.Int64
	latest         atomic.Int64 // when the latest of the received ones was sent
}

// floodFrom makes a box with a policy and begins the flood.
func (h *host) floodFrom(of map[string]any) *flood {
	h.T.Helper()
	f := &flood{host: h, box: h.Create(map[string]any{"network_policy": of})}
	outside, err := h.Net.Internet().ListenPacket("udp4", sink.String())
	if err != nil {
		h.T.Fatal(err)
	}
	h.T.Cleanup(func() { outside.Close() })
	go func() {
		for buf := make([]byte, 64); ; {
			n, _, err := outside.ReadFrom(buf)
			if err != nil {
				return
			}
			if n == 8 {
				f.received.Add(1)
				if at := int64(binary.BigEndian.Uint64(buf)); at > f.latest.Load() {
					f.latest.Store(at)
				}
			}
		}
	}()
	c := h.Raid(f.box).MustDial("udp", sink)
	_ = c.SetDeadline(time.Time{})
	go func() {
		for began := time.Now(); ; {
			at := binary.BigEndian.AppendUint64(nil, uint64(began.Add(time.Since(began)).UnixNano()))
			if _, err := c.Write(at); err != nil && h.T.Context().Err() != nil {
				return
			}
			f.sent.Add(1)
			time.Sleep(100 * time.Microsecond)
		}
	}()
	return f
}

// flows waits until datagrams that are sent from now on arrive.
func (f *flood) flows(when string) {
	f.T.Helper()
	from := time.Now().UnixNano()
	f.Until(when+": datagrams arrive", func() bool { return f.latest.Load() > from })
}

// isShut fails the test if a datagram that was sent after a time arrives.
func (f *flood) isShut(when string, after time.Time) {
	f.T.Helper()
	sent := f.sent.Load()
	f.Until("the box goes on sending", func() bool { return f.sent.Load() > sent+2000 })
	if late := f.latest.Load() - after.UnixNano(); late > 0 {
		f.T.Errorf("%s: a datagram of box %s arrived that was sent %v later", when, f.box, time.Duration(late))
	}
}

// policyOf is a named policy as the API shows it.
type policyOf struct {
	Version  uint64
	Fleet    bool
	Policy   struct{ Mode policy.Mode }
	Warnings []struct{ Message string }
}

func (h *host) named() (p policyOf) {
	h.T.Helper()
	if err := h.Client.Get(h.T.Context(), namedWeb, &p); err != nil {
		h.T.Fatal(err)
	}
	return p
}

// share sets the policy of the fleet, and returns when that was answered.
func (h *host) share(spec map[string]any) time.Time {
	h.T.Helper()
	if err := h.Client.Do(h.T.Context(), "PUT", fleetWeb, spec, nil); err != nil {
		h.T.Fatal(err)
	}
	return time.Now()
}

// member makes a host of the fleet of a cluster, which is founded by the first.
func member(t *testing.T, first *host, endpoints []string, change func(*config.Config)) *host {
	t.Helper()
	h := &host{World: harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Fleet = config.Fleet{Name: "test", Endpoints: endpoints}
		if change != nil {
			change(c)
		}
	}})}
	if first == nil {
		h.become("", "fleet", "init")
	} else {
		h.become(first.command(0, "", "fleet", "token"), "fleet", "join", "--token-file", "-")
	}
	return h
}

// TestPolicyOfAFleet: three gateways and three members of etcd. A policy of the fleet that is set on one host is in force, when that is answered,
// for boxes that flood on the others: nothing that they send later arrives, although the leader of etcd is killed during the change. The
// ceiling of a host bounds it there. The policies of a host itself do not reach etcd.
func TestPolicyOfAFleet(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t)
	a := member(t, nil, cluster.Endpoints, nil)
	b := member(t, a, cluster.Endpoints, nil)
	c := member(t, a, cluster.Endpoints, func(c *config.Config) {
		c.Policy.Ceiling.Spec = policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"api.example.com"}}
	})
	text, err := json.Marshal(open)
	if err != nil {
		t.Fatal(err)
	}
	if out := a.command(0, "", "policy", "named", "set", "web", string(text), "--fleet"); !strings.Contains(out, "Version 1") {
		t.Error(out)
	}
	if out := b.command(0, "", "policy", "named", "list"); !strings.Contains(out, "fleet") {
		t.Error(out)
	}
	follows := map[string]any{"named": "web"}
	floods := []*flood{a.floodFrom(follows), b.floodFrom(follows)}
	beyond := c.floodFrom(follows)
	for _, f := range floods {
		f.flows("the policy allows it")
	}
	beyond.isShut("beyond the ceiling of the host", time.Unix(0, 0))
	if p := c.named(); !p.Fleet || p.Version != 1 || c.Metric("boxgate_fleet_fenced") != 0 {
		t.Errorf("a host with a ceiling: %+v", p)
	}

	client := cluster.Client()
	last := func() (revision int64) {
		t.Helper()
		for _, prefix := range []string{"/boxgate/test/watched/", "/boxgate/test/heads/", "/boxgate/test/applied/"} {
			answer, err := client.Get(t.Context(), prefix, clientv3.WithPrefix())
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range answer.Kvs {
				revision = max(revision, kv.ModRevision)
			}
		}
		return revision
	}
	before := last()
	for _, path := range []string{"/v2/box/settings/network-policies/own", api.BoxPath(floods[1].box, "config/network-policy")} {
		if err := b.Client.Do(t.Context(), "PUT", path, open, nil); err != nil {
			t.Fatal(err)
		}
	}
	if now := last(); now != before {
		t.Errorf("policies of a host alone were written to etcd: revision %d, before %d", now, before)
	}
	b.SetPolicy(floods[1].box, follows)
	var refused *api.ResponseError
	if err := b.Client.Do(t.Context(), "PUT", namedWeb, shut, nil); !errors.As(err, &refused) || refused.Status != http.StatusConflict {
		t.Errorf("a change of the fleet's policy that does not ask for one: %v", err)
	}

	for round := range 3 {
		a.share(open)
		for _, f := range floods {
			f.flows("opened again")
		}
		by := []*host{a, b, c}[round]
		if round == 1 {
			go cluster.Kill(cluster.Leader())
		}
		var answered time.Time
		by.Until("the change is answered", func() bool {
			err := by.Client.Do(t.Context(), "PUT", fleetWeb, shut, nil)
			answered = time.Now()
			if err != nil && (!errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable) {
				t.Fatal(err)
			}
			return err == nil
		})
		for _, f := range floods {
			f.isShut("after the answer", answered)
		}
	}
	for _, h := range []*host{a, b, c} {
		h.NoInternalErrors()
	}
}

// TestPolicyOfAFleetOnAFencedHost: packets between a host and etcd are dropped. Its boxes keep the policy of the fleet as it knew it, and its own
// key tightens one by moving it to a policy of the host. When the cut ends, the change that it missed is in force once the fence is
// open, after a compaction too. So it is on a host that was stopped meanwhile, when it serves.
func TestPolicyOfAFleetOnAFencedHost(t *testing.T) {
	t.Parallel()
	const address = "192.0.2.79:2379"
	a := &host{World: harness.NewStopped(t, lab.Options{})}
	etcd := etcdtest.StartTLS(t, a.Net.Internet().Start, address)
	access := etcd.Access()
	a.configure(config.Fleet{Name: "test", Endpoints: access.Endpoints, TLS: config.FleetTLS{CAFile: access.CAFile, CertFile: access.CertFile, KeyFile: access.KeyFile}})
	a.become("", "fleet", "init")
	b, c := member(t, a, []string{etcd.Endpoint()}, nil), member(t, a, []string{etcd.Endpoint()}, nil)
	b.share(open)
	follows := map[string]any{"named": "web"}
	cut, stopped := a.floodFrom(follows), c.floodFrom(follows)
	moved := a.Create(map[string]any{"network_policy": follows})
	cut.flows("the policy allows it")
	stopped.flows("the policy allows it")
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	nft := func(line string) {
		t.Helper()
		if out, err := a.Net.Gateway().Run(t.Context(), "nft", line); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	nft("table inet cut { chain out { type filter hook output priority 0; tcp dport 2379 drop; }; chain in { type filter hook input priority 0; tcp sport 2379 drop; }; }")
	b.share(shut) // answers when the lease of the host is gone
	if a.Metric("boxgate_fleet_fenced") != 1 {
		t.Error("answered, and the host that does not have it is not fenced")
	}
	cut.flows("the box of a fenced host goes on under the policy that it knew")
	a.SetPolicy(moved, shut)
	if raider := a.Raid(moved); raider.Try("udp", sink) == "success" {
		t.Error("a box that the host's own key has closed reaches the destination")
	}
	for path, body := range map[string]any{fleetWeb: open, api.BoxPath(moved, "config/network-policy"): follows} {
		if err := a.Client.Do(t.Context(), "PUT", path, body, nil); !isStatus(err, http.StatusServiceUnavailable) {
			t.Errorf("%s on a fenced host: %v", path, err)
		}
	}
	client := etcd.Client()
	latest, err := client.Get(t.Context(), "x")
	if err == nil {
		_, err = client.Compact(t.Context(), latest.Header.Revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	nft("delete table inet cut")
	a.Until("the host is not fenced", func() bool { return a.Metric("boxgate_fleet_fenced") == 0 })
	cut.isShut("after the fence has opened", time.Now())
	if p := a.named(); p.Version != 2 || p.Policy.Mode != policy.ModeDenyAll {
		t.Errorf("on the host that was cut off: %+v", p)
	}
	c.start()
	stopped.isShut("after the start of a host that was stopped", time.Now())
	if p := c.named(); p.Version != 2 || p.Policy.Mode != policy.ModeDenyAll {
		t.Errorf("on the host that was stopped: %+v", p)
	}
}

// TestPolicyOfAFleetThroughFaults: a host fails or dies at each step of a change that another host makes. The change is answered when it has it
// in force after all, or when its lease has ended; then it has it at its next start. Both boxes that follow the policy have the old
// version or both the new one.
func TestPolicyOfAFleetThroughFaults(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	a := member(t, nil, []string{etcd.Endpoint()}, nil)
	b := &host{World: harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Fleet = config.Fleet{Name: "test", Endpoints: []string{etcd.Endpoint()}}
	}})}
	b.Env = append(b.Env, harness.FaultsFile+"="+b.FaultsPath())
	b.become(a.command(0, "", "fleet", "token"), "fleet", "join", "--token-file", "-")
	a.share(open)
	follows := map[string]any{"named": "web"}
	f, second := b.floodFrom(follows), b.Create(map[string]any{"network_policy": follows})
	modes := func(want policy.Mode) {
		t.Helper()
		for _, box := range []string{f.box, second} {
			var now struct{ Mode policy.Mode }
			if err := b.Client.Get(t.Context(), api.BoxPath(box, "config/network-policy"), &now); err != nil || now.Mode != want {
				t.Errorf("box %s: %s, want %s; %v", box, now.Mode, want, err)
			}
		}
	}
	for _, fault := range []struct{ kind, step string }{
		{harness.FaultError, "change: staged"}, {harness.FaultPanic, "change: staged"}, {harness.FaultError, "named policy: one box has it"}, {harness.FaultPanic, "named policy: one box has it"},
		{harness.FaultError, "change: in force"}, {harness.FaultDie, "named policy: one box has it"},
	} {
		what := fault.kind + " at " + fault.step
		f.flows(what)
		b.Arm(fault.kind, fault.step)
		answered := a.share(shut)
		b.MustReachStep(what)
		if fault.kind == harness.FaultDie {
			b.AwaitExit(what)
			b.StartIfStopped()
			answered = time.Now()
		}
		modes(policy.ModeDenyAll)
		f.isShut(what, answered)
		a.share(open)
		modes(policy.ModeCustom)
	}
}
