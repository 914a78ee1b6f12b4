// Package node is the part of a running gateway in its fleet: it holds the lease of the host, follows the directory of hosts and
// renews the host's certificate.
package node

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/directory"
	"boxgate/fleet/member"
	"boxgate/fleet/pki"
	"boxgate/fleet/roster"
	"boxgate/fleet/shared"
	"boxgate/fleet/watch"
	"boxgate/internal/fault"
	"boxgate/internal/required"
	"boxgate/policy/name"
)

// Config configures a [Node].
type Config struct {
	Access   fleet.Access
	Fleet    string // name
	Identity fleet.Identity
	StateDir string // identifies the store
	Version  string // of this program
	Boxes    func() int
	Ingress  string // address and port of the public URLs of this host, for the other hosts; empty: they do not reach them
	Log      *zap.Logger
	Address  string        // IP address and port for the other hosts; may be empty
	TTL      time.Duration // of the lease; 0: [member.TTL]
}

// Node is this host in its fleet. Safe for concurrent use.
type Node struct {
	Config
	client      *clientv3.Client
	fingerprint []byte // of this host's key
	roster      roster.Roster
	session     *member.Session
	follower    *watch.Follower
	rotation    *pki.Rotation
	authority   *x509.Certificate
	hosts       hosts
	shared      Shared
	agreements  agreements
	claims      *watch.Follower // of domains
	domains     domains
}

// Bounds of the directory that a host follows.
const (
	maxHosts     = 40_000   // and shared objects
	maxDirectory = 64 << 20 // bytes
)

// ErrOtherFleet is the error of a host that is a member of another fleet than the configured one.
var ErrOtherFleet = errors.New("this host is a member of another fleet")

// New makes the node, without connecting. The identity is checked against the configuration.
func New(c Config) (*Node, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	if c.Identity.Fleet != c.Fleet {
		return nil, fmt.Errorf("%w: %q, and fleet.name is %q; run `gateway fleet leave` with the old configuration first", ErrOtherFleet, c.Identity.Fleet, c.Fleet)
	}
	if c.TTL == 0 {
		c.TTL = fault.Lease(member.TTL)
	}
	authority, err := pki.ParseCertificate(c.Identity.CA)
	if err != nil {
		return nil, err
	}
	fingerprint, err := pki.FingerprintOf(c.Identity.Key)
	if err != nil {
		return nil, err
	}
	agreement, err := pki.NewAgreement(c.Identity.Host, c.Identity.Key)
	if err != nil {
		return nil, err
	}
	presence, err := newPresence(c.StateDir, c.Version)
	if err != nil {
		return nil, err
	}
	client, err := fleet.Dial(c.Access)
	if err != nil {
		return nil, err
	}
	n := &Node{Config: c, client: client, fingerprint: fingerprint, roster: roster.Roster{Client: client, Name: c.Fleet}, authority: authority, hosts: hosts{known: map[string]fleet.Host{}}, agreements: agreements{own: agreement, known: map[string]agreed{}}, domains: domains{known: map[string]directory.Claim{}}}
	keys := fleet.KeysOf(c.Fleet)
	n.session, err = member.New(member.Config{
		Client: client, Keys: keys, Host: c.Identity.Host, Founding: c.Identity.Founding, Key: fingerprint, Presence: presence, TTL: c.TTL, Log: c.Log,
		OnClaim: func() { n.follower.Hurry() },
	})
	if err == nil {
		n.shared, err = newShared(n)
	}
	if err == nil {
		n.follower, err = watch.New(watch.Config{Client: client, Prefix: keys.Watched(), Apply: n.apply, Log: c.Log, MaxKeys: maxHosts, MaxBytes: maxDirectory})
	}
	if err == nil {
		n.claims, err = watch.New(watch.Config{Client: client, Prefix: keys.Domains(), Apply: n.applyDomains, Log: c.Log, MaxKeys: maxDomains, MaxBytes: maxDomainBytes})
	}
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	n.rotation = pki.NewRotation(pki.Issuer{Host: c.Identity.Host, HostKey: c.Identity.Key, Authority: c.Identity.CA, AuthorityKey: func(ctx context.Context) (name.Secret, error) {
		return n.roster.AuthorityKey(ctx, c.Identity)
	}}, c.Log)
	return n, nil
}

// newPresence describes this process. Boot ID and state directory distinguish the next process of this machine from a copy of it.
func newPresence(stateDir, version string) (fleet.Presence, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fleet.Presence{}, err
	}
	info, err := os.Stat(stateDir)
	if err != nil {
		return fleet.Presence{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fleet.Presence{}, errors.New("the state directory has no inode")
	}
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails (crypto/rand)
	return fleet.Presence{
		Instance: hex.EncodeToString(random), Boot: strings.TrimSpace(string(boot)), Store: fmt.Sprintf("%d:%d", stat.Dev, stat.Ino), Version: version, Since: time.Now().UTC(), Kinds: shared.Announced(),
	}, nil
}

// startTimeout bounds the first request to etcd.
const startTimeout = 5 * time.Second

// Start claims the host ID. Without etcd, or after the host was removed, the gateway starts fenced: its own boxes go on. An error means that
// it must not start: another gateway runs with this host ID ([member.ErrCloned]), etcd has another fleet of this name
// ([ErrOtherFleet]), or the fleet has a later protocol ([roster.ErrNewer]).
func (n *Node) Start(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, startTimeout)
	founding, err := n.roster.Founding(call)
	cancel()
	switch {
	case errors.Is(err, roster.ErrNewer):
		return err
	case err != nil: // etcd is away, has lost the fleet, or refuses this host
		n.Log.Warn("this host starts fenced: no new boxes", zap.Error(err))
		return ctx.Err()
	case founding.ID != n.Identity.Founding:
		return fmt.Errorf("%w: the fleet %q in etcd was founded later, at %s; run `gateway fleet leave` and join it", ErrOtherFleet, n.Fleet, founding.At.Format(time.RFC3339))
	}
	switch err := n.session.Start(ctx); {
	case errors.Is(err, member.ErrCloned):
		return fmt.Errorf("%w (%s): a copied disk or state directory cannot be a second host; start this one with an empty state_dir, and join the fleet", err, n.Identity.Host)
	case err != nil && ctx.Err() == nil:
		n.Log.Warn("this host starts fenced: no new boxes", zap.Error(err))
		return nil
	}
	call, cancel = context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := n.follower.List(call); err != nil && ctx.Err() == nil {
		n.Log.Warn("this host starts fenced: the directory of the fleet is not known yet", zap.Error(err))
	}
	if err := n.rotation.Renew(call); err != nil && ctx.Err() == nil { // the other hosts call it from its first moment, if it replaces a process
		n.Log.Warn("this host has no certificate of its fleet yet", zap.Error(err))
	}
	return ctx.Err()
}

// boxesEvery is the least time between two writes of the number of boxes.
const boxesEvery = 10 * time.Second

// Run takes part in the fleet until ctx is done.
func (n *Node) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { n.session.Run(ctx) })
	parts.Go(func() { n.follower.Run(ctx) })
	parts.Go(func() { n.claims.Run(ctx) })
	parts.Go(func() { n.rotation.Run(ctx) })
	parts.Go(func() { n.shared.mirror.Run(ctx, &n.shared.acks) })
	parts.Go(func() { n.shared.ring.Run(ctx) })
	parts.Go(func() {
		tick := time.NewTicker(fault.Interval(boxesEvery))
		defer tick.Stop()
		for {
			call, cancel := context.WithTimeout(ctx, startTimeout)
			if err := n.session.Report(call, n.Boxes(), n.Cordoned()); err != nil && ctx.Err() == nil {
				n.Log.Debug("the number of boxes is not in the directory", zap.Error(err))
			}
			if err := n.publish(call); err != nil && ctx.Err() == nil {
				n.Log.Warn("the address of the public URLs of this host is not in the directory", zap.Error(err))
			}
			if err := n.advertise(call); err != nil && ctx.Err() == nil {
				n.Log.Warn("the address of this host is not in the directory", zap.Error(err))
			}
			cancel()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	parts.Wait()
}

// Close ends the lease, after Run has returned, and the connections.
func (n *Node) Close() error {
	n.session.Close()
	return n.client.Close()
}

// Fenced reports whether shared rules, keys of the fleet and new boxes must be refused; see [member.Session.Fenced]. After a time without a
// lease the host is fenced until it has followed the directory up to its new lease.
func (n *Node) Fenced() bool {
	return n.session.Fenced() || !n.follower.Current() || !n.shared.mirror.Current()
}

// LeaseEnded reports whether the lease of this host may have ended. [Node.Fenced] is true then, and at other times.
func (n *Node) LeaseEnded() bool { return n.session.Fenced() }

// Problem returns why the host has no lease; nil: it has one.
func (n *Node) Problem() error { return n.session.Problem() }

// Token makes a token for a host to join with.
func (n *Node) Token(ctx context.Context) (name.Secret, error) {
	return n.roster.Token(ctx, n.Identity)
}

// Cordoned reports whether this host takes no new boxes, as of the last known directory.
func (n *Node) Cordoned() bool {
	h, ok := n.hosts.get(n.Identity.Host)
	return ok && h.Cordoned
}
