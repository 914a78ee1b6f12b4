package etcdtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
	"boxgate/internal/testnet"
)

// Cluster is an etcd cluster of three members in one network namespace of its own. Each member has an address of its own for the others,
// so that rules can cut one off. Clients use Unix sockets, which such a cut does not affect. It needs root.
type Cluster struct {
	t   testing.TB
	dir string
	ns  *testnet.NS
	// Endpoints are the URLs of the members, in order.
	Endpoints []string
	members   []*exec.Cmd
	ended     []chan struct{} // closed when a member has ended
}

// StartCluster starts a cluster of three. It ends with the test.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	return startCluster(t, func(string) {})
}

// StartClusterOnDisk is [StartCluster] with the first member on a disk of its own, see [StartOnDisk]. fill leaves no free byte on it, until the
// function that it returns is called.
func StartClusterOnDisk(t testing.TB, size int) (c *Cluster, fill func() (free func())) {
	t.Helper()
	disk := ""
	c = startCluster(t, func(dir string) {
		disk = dir
		mountDisk(t, dir, size)
	})
	return c, func() func() { return fillDisk(t, disk) }
}

// startCluster starts a cluster. mount is called with the empty directory of the first member.
func startCluster(t testing.TB, mount func(dir string)) *Cluster {
	t.Helper()
	Program(t)
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		t.Fatal(err)
	}
	ns, err := testnet.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{t: t, dir: dir, ns: ns}
	t.Cleanup(func() {
		if err := ns.End(); err != nil {
			t.Error(err)
		}
		for i := range c.members {
			<-c.Ended(i)
		}
		_ = os.RemoveAll(dir)
	})
	c.run("ip", "link", "set", "lo", "up")
	for i := range 3 {
		data := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(data, 0o700); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			mount(data)
		}
		c.start(i, data)
	}
	client := c.Client()
	c.Until("every member serves", func(ctx context.Context) bool {
		for _, e := range c.Endpoints {
			if _, err := client.Status(ctx, e); err != nil {
				return false
			}
		}
		_, err := client.Get(ctx, "ready")
		return err == nil
	})
	return c
}

// address is the address of a member among the members.
func address(i int) string { return fmt.Sprintf("192.0.2.%d", i+1) }

func peer(i int) string { return "http://" + address(i) + ":2380" }

func (c *Cluster) start(i int, dir string) {
	c.t.Helper()
	c.run("ip", "address", "add", address(i)+"/32", "dev", "lo")
	log, err := os.Create(filepath.Join(c.dir, fmt.Sprintf("log%d", i)))
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	all := make([]string, 3)
	for j := range all {
		all[j] = fmt.Sprintf("m%d=%s", j, peer(j))
	}
	cmd := exec.Command(program, fmt.Sprintf("--name=m%d", i), "--data-dir=data", "--feature-gates=SetMemberLocalAddr=true",
		"--listen-client-urls=unix://client:1", "--advertise-client-urls=unix://client:1", "--listen-peer-urls="+peer(i), "--initial-advertise-peer-urls="+peer(i),
		"--initial-cluster="+strings.Join(all, ","), "--unsafe-no-fsync", "--logger=zap", "--log-level=warn")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if err := c.ns.Start(cmd); err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	c.members, c.ended = append(c.members, cmd), append(c.ended, ended)
	c.Endpoints = append(c.Endpoints, "unix://"+filepath.Join(dir, "client:1"))
}

// Client returns a client of some members, by their numbers; of all without any.
func (c *Cluster) Client(members ...int) *clientv3.Client {
	c.t.Helper()
	endpoints := c.Endpoints
	if len(members) > 0 {
		endpoints = nil
	}
	for _, i := range members {
		endpoints = append(endpoints, c.Endpoints[i])
	}
	client, err := fleet.Dial(fleet.Access{Endpoints: endpoints})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Leader returns the number of the leader.
func (c *Cluster) Leader() (leader int) {
	c.t.Helper()
	client := c.Client()
	c.Until("there is a leader", func(ctx context.Context) bool {
		for i, e := range c.Endpoints {
			if status, err := client.Status(ctx, e); err == nil && status.Leader == status.Header.MemberId {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// Kill ends a member with SIGKILL.
func (c *Cluster) Kill(i int) { _ = c.members[i].Process.Kill() }

// Ended is closed when a member has ended.
func (c *Cluster) Ended(i int) <-chan struct{} { return c.ended[i] }

// CutOff drops every packet between a member and the others.
func (c *Cluster) CutOff(i int) {
	c.t.Helper()
	c.run("nft", fmt.Sprintf("table inet cut { chain out { type filter hook output priority 0; ip saddr %[1]s ip daddr != %[1]s drop; ip daddr %[1]s ip saddr != %[1]s drop; }; }", address(i)))
}

// Heal ends all cuts.
func (c *Cluster) Heal() {
	c.t.Helper()
	c.run("nft", "delete table inet cut")
}

func (c *Cluster) run(name string, args ...string) {
	c.t.Helper()
	if out, err := c.ns.Run(c.t.Context(), name, args...); err != nil {
		c.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// Until waits for a condition, whose requests have a second each.
func (c *Cluster) Until(what string, is func(context.Context) bool) {
	c.t.Helper()
	Until(c.t, what, func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		return is(ctx)
	})
}
