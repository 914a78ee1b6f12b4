package certs

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"boxgate/internal/fault"
	"boxgate/internal/lru"
	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	leafLifetime = 24 * time.Hour
	leafRenew    = 6 * time.Hour // a leaf with less time left is replaced, so that it does not expire during a connection
	leafCache    = 256           // leaves kept per box, about 3 KB each
)

// ErrHostName is returned when a leaf is requested for one of the host's own names.
var ErrHostName = errors.New("no certificate is made for a name of the host")

// ErrUnknownBox is returned when no authority was added for the box.
var ErrUnknownBox = errors.New("no certificate authority for this box")

// Minter issues leaves for intercepted names, signed by the authority of the requesting box. The zero value has no
// boxes. Safe for concurrent use.
type Minter struct {
	// HostDomains lists the domains that lead to the host itself, such as that of the public URLs. No leaf is made for them,
	// for names below them, or for localhost. It must not change once the Minter is in use.
	HostDomains []name.Name

	now func() time.Time // nil: [fault.Now]

	generatingRSA sync.Mutex // held while an RSA key is generated: one at a time for all boxes

	mu    sync.RWMutex
	boxes map[policy.BoxID]*boxLeaves
}

// boxLeaves belongs to one box, so that a box that asks for many names evicts only its own leaves.
type boxLeaves struct {
	ca          *Authority
	key         *leafKey                  // shared by the box's leaves: a key per name would double the cost of minting
	minting     singleflight.Group        // by name; RSA leaves use keys that no name can have
	rsa         atomic.Pointer[rsaIssuer] // nil until the first client that accepts only RSA
	creatingRSA singleflight.Group        // deduplicates the creation of rsa and exchange
	exchange    atomic.Pointer[rsaIssuer] // nil until the first client without ECDHE
	rsaPace     *rate.Limiter             // limits handshakes with an RSA leaf

	cache     *leaves
	rsaCache  *leaves
	exchanges *leaves // of exchange
}

// leaves caches leaves by name, each at a cost of 1.
type leaves = lru.Cache[name.Name, *tls.Certificate]

func newLeaves(limit int) *leaves { return lru.New[name.Name, *tls.Certificate](limit) }

// Add sets the authority of a box. Setting another authority for a box drops its leaves.
func (m *Minter) Add(box policy.BoxID, ca *Authority) error {
	if ca == nil {
		return fmt.Errorf("box %s: %w", box, ErrUnknownBox)
	}
	key, err := newLeafKey()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.boxes == nil {
		m.boxes = make(map[policy.BoxID]*boxLeaves)
	}
	m.boxes[box] = &boxLeaves{ca: ca, key: key, cache: newLeaves(leafCache), rsaCache: newLeaves(rsaLeafCache), exchanges: newLeaves(rsaLeafCache), rsaPace: rate.NewLimiter(rsaRate, rsaBurst)}
	return nil
}

// Remove drops a box, its authority and its leaves.
func (m *Minter) Remove(box policy.BoxID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.boxes, box)
}

// Authority returns the authority of a box, or an error wrapping [ErrUnknownBox].
func (m *Minter) Authority(box policy.BoxID) (*Authority, error) {
	b, err := m.leavesOf(box)
	if err != nil {
		return nil, err
	}
	return b.ca, nil
}

func (m *Minter) leavesOf(box policy.BoxID) (*boxLeaves, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	b, ok := m.boxes[box]
	if !ok {
		return nil, fmt.Errorf("box %s: %w", box, ErrUnknownBox)
	}
	return b, nil
}

// Leaf returns an ECDSA certificate for exactly n that is valid for at least six more hours. Concurrent calls for the
// same name mint one leaf. Leaf fails for the zero name, with [ErrHostName] for one of the host's own names, and with
// an error wrapping [ErrUnknownBox] for a box without an authority.
func (m *Minter) Leaf(ctx context.Context, box policy.BoxID, n name.Name) (*tls.Certificate, error) {
	b, err := m.permitted(box, n)
	if err != nil {
		return nil, err
	}
	now := m.currentTime()
	if leaf := b.cached(b.cache, n, now); leaf != nil {
		return leaf, nil
	}
	return b.shareMint(ctx, n.String(), func() (*tls.Certificate, error) {
		return b.mint(b.cache, n, now, func() (*tls.Certificate, error) {
			return b.ca.issue(b.key, []string{n.String()}, now, leafLifetime)
		})
	})
}

// permitted returns the leaves of a box, or an error if n may not have a leaf.
func (m *Minter) permitted(box policy.BoxID, n name.Name) (*boxLeaves, error) {
	if n.IsZero() {
		return nil, errors.New("cannot issue a leaf without a name")
	}
	if n.IsLoopback() || slices.ContainsFunc(m.HostDomains, n.IsWithin) {
		return nil, ErrHostName
	}
	return m.leavesOf(box)
}

func (m *Minter) currentTime() time.Time {
	if m.now != nil {
		return m.now()
	}
	return fault.Now()
}

// shareMint returns the result of make. Concurrent calls for the same key share one call of make. It takes milliseconds at
// most, so callers wait for it even if ctx ends meanwhile; and it runs in the caller's goroutine, whose stack has grown for
// its handshake.
func (b *boxLeaves) shareMint(ctx context.Context, key string, make func() (*tls.Certificate, error)) (*tls.Certificate, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	made, err, _ := b.minting.Do(key, func() (any, error) { return make() })
	if err != nil {
		return nil, err
	}
	leaf, ok := made.(*tls.Certificate)
	if !ok {
		return nil, errors.New("mint returned no certificate")
	}
	return leaf, nil
}

// cached returns a leaf that does not expire soon and, in case the clock was set back, is already valid.
func (b *boxLeaves) cached(in *leaves, n name.Name, now time.Time) *tls.Certificate {
	leaf, ok := in.Get(n)
	if !ok || now.Add(leafRenew).After(leaf.Leaf.NotAfter) || now.Before(leaf.Leaf.NotBefore) {
		return nil
	}
	return leaf
}

// mint issues a leaf and caches it.
func (b *boxLeaves) mint(in *leaves, n name.Name, now time.Time, issue func() (*tls.Certificate, error)) (*tls.Certificate, error) {
	if leaf := b.cached(in, n, now); leaf != nil { // minted since the caller looked
		return leaf, nil
	}
	leaf, err := issue()
	if err != nil {
		return nil, err
	}
	in.Put(n, leaf, 1)
	return leaf, nil
}

// SSHKey returns the host key of the gateway's SSH server for a box. It is the key of the box's authority, so trust in
// the two begins and ends together. An SSH signature cannot be mistaken for a certificate's: SSH signs a hash (RFC
// 4253, section 8), which is shorter than any certificate.
func (m *Minter) SSHKey(box policy.BoxID) (crypto.Signer, error) {
	ca, err := m.Authority(box)
	if err != nil {
		return nil, err
	}
	return ca.key, nil
}
