package harness

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// Switch is a network among the hosts of a fleet, in a namespace of its own. It ends with the test.
type Switch struct {
	t     *testing.T
	ns    *testnet.NS
	hosts int
}

// NewSwitch returns a network without hosts.
func NewSwitch(t *testing.T) *Switch {
	t.Helper()
	ns, err := testnet.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.End() })
	s := &Switch{t: t, ns: ns}
	s.ip(ns, "link", "add", "switch", "type", "bridge")
	s.ip(ns, "link", "set", "switch", "up")
	return s
}

func (s *Switch) ip(ns *testnet.NS, args ...string) {
	s.t.Helper()
	if out, err := ns.Run(s.t.Context(), "ip", args...); err != nil {
		s.t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// NS returns the namespace of the switch.
func (s *Switch) NS() *testnet.NS { return s.ns }

// Address returns the address of a host, by its number from 0.
func (s *Switch) Address(i int) string { return fmt.Sprintf("10.213.0.%d", i+1) }

// Attach connects the namespace of the next host by an interface lan0 with its address.
func (s *Switch) Attach(host *testnet.NS) {
	s.t.Helper()
	port := fmt.Sprintf("host%d", s.hosts)
	s.ip(s.ns, "link", "add", port, "type", "veth", "peer", "name", "lan0", "netns", host.Path())
	s.ip(s.ns, "link", "set", port, "master", "switch", "up")
	s.ip(host, "link", "set", "lan0", "up")
	s.ip(host, "address", "add", s.Address(s.hosts)+"/24", "dev", "lan0")
	s.hosts++
}

// Member is a host of a fleet.
type Member struct {
	*World
	ID string
}

// Apart are two hosts of a fleet. Clients use Near, with a key of the fleet. Near takes no new boxes, so that they are made on Far.
type Apart struct {
	Near, Far Member
	Key       string // of an admin
}

// NewApart starts two gateways with etcd, each with its own internet, that reach each other over a switch. They place new boxes by
// fleet.placement: spread.
func NewApart(t *testing.T, change func(*config.Config)) Apart {
	t.Helper()
	etcd, lan := etcdtest.Start(t), NewSwitch(t)
	var hosts []Member
	for i := range 2 {
		w := NewStopped(t, lab.Options{Change: func(c *config.Config) {
			c.Fleet = config.Fleet{Name: "test", Endpoints: []string{etcd.Endpoint()}, Advertise: lan.Address(i) + ":8700", Ingress: lan.Address(i) + ":443", Placement: config.PlacementSpread}
			change(c)
		}})
		lan.Attach(w.Net.Gateway())
		args, stdin := []string{"fleet", "init", "--json"}, ""
		if i > 0 {
			args, stdin = []string{"fleet", "join", "--token-file", "-", "--json"}, hosts[0].inside("", "fleet", "token")
		}
		m := Member{World: w}
		var made struct{ Host string }
		if err := json.Unmarshal([]byte(m.inside(stdin, args...)), &made); err != nil {
			t.Fatal(err)
		}
		m.ID = made.Host
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, m)
	}
	a := Apart{Near: hosts[0], Far: hosts[1]}
	var made struct{ Key string }
	if err := a.Near.Client.Do(t.Context(), http.MethodPost, "/v2/api-keys", map[string]any{"name": "client", "role": api.RoleAdmin}, &made); err != nil {
		t.Fatal(err)
	}
	a.Key = made.Key
	a.Near.inside("", "fleet", "cordon", a.Near.ID)
	a.Near.Until("boxes are made on the other host", a.ready)
	return a
}

// ready reports whether a box that the near host is asked for is made on the far one.
func (a Apart) ready() bool {
	client := api.NewClient(a.Near.Socket, a.Key)
	var made struct{ ID string }
	if client.Do(a.Near.T.Context(), http.MethodPost, "/v2/box", map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}, &made) != nil {
		return false
	}
	if !strings.HasPrefix(made.ID, a.Far.ID) {
		a.Near.T.Fatalf("box %s is made on the host that is cordoned", made.ID)
	}
	return client.Do(a.Near.T.Context(), http.MethodDelete, api.BoxPath(made.ID), nil, nil) == nil
}

// inside runs `gateway args...` in the namespace of the gateway, and returns its output.
func (m Member) inside(stdin string, args ...string) string {
	m.T.Helper()
	cmd := m.Command(m.T.Context(), args...)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := m.Net.Gateway().Start(cmd); err != nil {
		m.T.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		m.T.Fatalf("gateway %v: %v: %s", args, err, errs.String())
	}
	return out.String()
}
