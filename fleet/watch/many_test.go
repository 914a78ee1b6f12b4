package watch

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/metadata"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/nightly"
)

// The simulated fleet. Each host has a stream of its own for its watch, over a share of the connections.
const (
	manyHosts   = 2000
	manyClients = 50
	manyChanges = 10 // of each kind
	keepAlive   = 5 * time.Second
	keepRounds  = 4
)

// usage is the use of a process.
type usage struct{ process *os.Process }

// cpu returns the processor time so far.
func (u usage) cpu() time.Duration {
	var ts unix.Timespec
	// The clock of another process: CPUCLOCK_SCHED in the kernel's encoding of a PID.
	if unix.ClockGettime(int32(^u.process.Pid<<3|2), &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// memory returns the most memory that the process has used, in MiB.
func (u usage) memory(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", u.process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmHWM:" {
			kB, _ := strconv.Atoi(fields[1])
			return kB >> 10
		}
	}
	t.Fatal("no memory of etcd")
	return 0
}

// crowd are the watchers. They note when all of them have a revision.
type crowd struct {
	clients []*clientv3.Client
	want    atomic.Int64
	left    atomic.Int64
	all     chan struct{}
}

// watchAll starts a watch for each host, and returns when all are open.
func watchAll(t *testing.T, endpoint string) *crowd {
	t.Helper()
	c := &crowd{all: make(chan struct{}, 1)}
	for range manyClients {
		client, err := fleet.Dial(fleet.Access{Endpoints: []string{endpoint}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		c.clients = append(c.clients, client)
	}
	var opened sync.WaitGroup
	for i := range manyHosts {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "host", strconv.Itoa(i)) // a stream for each context
		opened.Add(1)
		events := c.clients[i%manyClients].Watch(ctx, fleet.KeysOf("test").Watched(), clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		open := sync.OnceFunc(opened.Done) // again after a new connection
		go func() {
			for answer := range events {
				if answer.Created {
					open()
				}
				for _, e := range answer.Events {
					if e.Kv.ModRevision == c.want.Load() && c.left.Add(-1) == 0 {
						c.all <- struct{}{}
					}
				}
			}
		}()
	}
	opened.Wait()
	return c
}

// change writes a key, and returns how long it took until every watcher had it.
func (c *crowd) change(t *testing.T, writer *clientv3.Client, key, value string) time.Duration {
	t.Helper()
	latest, err := writer.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	c.left.Store(manyHosts)
	c.want.Store(latest.Header.Revision + 1)
	began := time.Now()
	put(t, writer, key, value)
	select {
	case <-c.all:
	case <-time.After(time.Minute):
		t.Fatalf("%d of %d watchers do not have the change of %s", c.left.Load(), manyHosts, key)
	}
	return time.Since(began)
}

// changes makes changes of host records and API keys, and logs how long they took.
func (c *crowd) changes(t *testing.T, writer *clientv3.Client, etcd usage) {
	t.Helper()
	keys := fleet.KeysOf("test")
	host, err := fleet.Encode(fleet.Host{ID: "aaaaaa", Protocol: 1, Name: "host-1.example.org", Key: make([]byte, 32), Joined: time.Now(), Ingress: "192.0.2.1:443", Address: "192.0.2.1:8700", Agreement: make([]byte, 65)})
	if err != nil {
		t.Fatal(err)
	}
	apiKey := strings.Repeat("k", 600)
	for _, kind := range []struct{ name, key, value string }{{"a host record", keys.Host("aaaaaa"), host}, {"an API key", keys.Watched() + "keys/0123456789abcdef", apiKey}} {
		var took []time.Duration
		before := etcd.cpu()
		for range manyChanges {
			took = append(took, c.change(t, writer, kind.key, kind.value))
		}
		slices.Sort(took)
		t.Logf("%s of %d bytes: all %d hosts have it after %v (median of %d; %v to %v), %v of etcd's processor time each", kind.name, len(kind.value), manyHosts,
			took[len(took)/2].Round(time.Millisecond), manyChanges, took[0].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond), ((etcd.cpu() - before) / manyChanges).Round(10*time.Microsecond))
	}
}

// keepLeases holds a lease for each host, with its presence, and logs what the renewals cost.
func (c *crowd) keepLeases(t *testing.T, etcd usage) {
	t.Helper()
	keys := fleet.KeysOf("test")
	leases := make([]clientv3.LeaseID, manyHosts)
	c.eachHost(t, "the lease", func(ctx context.Context, i int, client *clientv3.Client) error {
		granted, err := client.Grant(ctx, 15)
		if err == nil {
			leases[i] = granted.ID
			_, err = client.Put(ctx, keys.Presence(fmt.Sprintf("%06x", i)), strings.Repeat("p", 250), clientv3.WithLease(granted.ID))
		}
		return err
	})
	before, began := etcd.cpu(), time.Now()
	var slowest atomic.Int64
	for round := range keepRounds {
		if round > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(round) * keepAlive)))
		}
		c.eachHost(t, fmt.Sprint("renewal ", round+1), func(ctx context.Context, i int, client *clientv3.Client) error {
			sent := time.Now()
			_, err := client.KeepAliveOnce(ctx, leases[i])
			took := int64(time.Since(sent))
			for most := slowest.Load(); took > most && !slowest.CompareAndSwap(most, took); most = slowest.Load() {
			}
			return err
		})
	}
	lasted := time.Since(began)
	t.Logf("%d renewals of leases in %v: %.0f %% of a processor, the slowest took %v", keepRounds*manyHosts, lasted.Round(time.Second),
		100*float64(etcd.cpu()-before)/float64(max(lasted, keepRounds*keepAlive)), time.Duration(slowest.Load()).Round(time.Millisecond))
}

// eachHost does something for all hosts at the same time.
func (c *crowd) eachHost(t *testing.T, what string, do func(ctx context.Context, i int, client *clientv3.Client) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	var failed atomic.Int64
	for i := range manyHosts {
		all.Go(func() {
			if err := do(ctx, i, c.clients[i%manyClients]); err != nil && failed.Add(1) <= 3 {
				t.Errorf("%s of host %d: %v", what, i, err)
			}
		})
	}
	all.Wait()
	if n := failed.Load(); n > 0 {
		t.Fatalf("%s: %d hosts failed", what, n)
	}
}

// TestManyHosts measures the watches and leases of 2,000 hosts at one etcd server, with and without etcd's gRPC proxy before it. docs/fleet.md
// has the figures.
func TestManyHosts(t *testing.T) {
	nightly.Only(t)
	for _, proxied := range []bool{false, true} {
		t.Run(map[bool]string{false: "direct", true: "by a proxy"}[proxied], func(t *testing.T) {
			server := etcdtest.Start(t)
			endpoint, etcd := server.Endpoint(), usage{server.Process()}
			var proxy usage
			if proxied {
				endpoint, proxy.process = server.StartProxy()
			}
			before := etcd.memory(t)
			c := watchAll(t, endpoint)
			c.changes(t, server.Client(), etcd)
			c.keepLeases(t, etcd)
			most := etcd.memory(t)
			t.Logf("etcd used %d MiB at most, %d before", most, before)
			if proxied {
				t.Logf("the proxy used %d MiB at most, and %v of processor time", proxy.memory(t), proxy.cpu().Round(10*time.Millisecond))
				most += proxy.memory(t)
			}
			if most > 1<<10 {
				t.Errorf("etcd uses %d MiB", most)
			}
		})
	}
}
