package node

import (
	"context"
	"time"

	"boxgate/fleet"
	"boxgate/fleet/shared"
	"boxgate/fleet/sharedkey"
	"boxgate/policy/name"
)

// Shared has the objects that every host of the fleet has in force. Safe for concurrent use.
type Shared struct {
	table  shared.Table
	acks   shared.Acknowledgements
	mirror *shared.Mirror
	fenced func() bool
	ended  func() bool

	ring     *sharedkey.Ring
	founding string
}

// newShared returns the shared objects of a node. They are followed with its directory.
func newShared(n *Node) (Shared, error) {
	keys := fleet.KeysOf(n.Fleet)
	mirror := shared.NewMirror(keys, n.Log)
	ring, err := sharedkey.New(sharedkey.Config{
		Client: n.client, Keys: keys, Identity: n.Identity, Guard: n.session.Guard, Lease: n.session.Lease, Hosts: n.hosts.len, Obtained: mirror.Retry, Log: n.Log,
		AuthorityKey: func(ctx context.Context) (name.Secret, error) { return n.roster.AuthorityKey(ctx, n.Identity) },
	})
	return Shared{
		table:  shared.Table{Client: n.client, Keys: keys, Host: n.Identity.Host, Guard: n.session.Guard},
		acks:   shared.Acknowledgements{Client: n.client, Keys: keys, Host: n.Identity.Host, Guard: n.session.Guard, Lease: n.session.Lease},
		mirror: mirror, fenced: n.Fenced, ended: n.LeaseEnded, ring: ring, founding: n.Identity.Founding,
	}, err
}

// Shared returns the objects that every host has in force.
func (n *Node) Shared() *Shared { return &n.shared }

// Attach sets how each of [shared.Kinds] is applied to the tables of this host, and applies the known ones. Call it before [Node.Run].
func (s *Shared) Attach(apply map[shared.Kind]shared.Apply) { s.mirror.Attach(apply) }

// Founding is the ID of the fleet that this host has joined.
func (s *Shared) Founding() string { return s.founding }

// Fenced reports whether shared objects must not be used, see [Node.Fenced].
func (s *Shared) Fenced() bool { return s.fenced() }

// LeaseEnded is [Node.LeaseEnded].
func (s *Shared) LeaseEnded() bool { return s.ended() }

// Times of a change.
const (
	changeTimeout = 10 * time.Second // of the transaction
	ownTimeout    = 10 * time.Second // until this host has it in force

	// everywhereTimeout is longer than the lease of a host that is cut off.
	everywhereTimeout = 40 * time.Second
)

// Change changes the objects of a kind by [shared.Table.Change], and waits until the change is in force on this host, or everywhere: on
// every host with a lease. The error is [shared.ErrBehind] if that takes too long; the change is made then. A client that goes away does not
// end a change.
func (s *Shared) Change(ctx context.Context, kind shared.Kind, everywhere bool, edit func(objects map[string][]byte) error) error {
	ctx = context.WithoutCancel(ctx)
	call, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	revision, err := s.table.Change(call, kind, edit)
	if err != nil || revision == 0 {
		return err
	}
	limit := ownTimeout
	if everywhere {
		limit = everywhereTimeout
	}
	wait, stop := context.WithTimeout(ctx, limit)
	defer stop()
	if everywhere {
		return s.mirror.AwaitAll(wait, &s.acks, kind, revision)
	}
	return s.mirror.Await(wait, revision)
}
