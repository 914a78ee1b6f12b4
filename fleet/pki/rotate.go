package pki

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"boxgate/policy/name"
)

// Issuer signs the certificate of this host. The key of the authority is read for each certificate, and not kept.
type Issuer struct {
	Host      string
	HostKey   []byte // of [NewHostKey]
	Authority []byte // certificate, PEM
	// AuthorityKey returns the key of the authority, from etcd.
	AuthorityKey func(context.Context) (name.Secret, error)
}

// Issue signs a certificate.
func (i Issuer) Issue(ctx context.Context, now time.Time) (*tls.Certificate, error) {
	secret, err := i.AuthorityKey(ctx)
	if err != nil {
		return nil, err
	}
	authority, err := LoadAuthority(i.Authority, secret)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(i.HostKey)
	if err != nil {
		return nil, err
	}
	return authority.Issue(i.Host, key, now)
}

// Rotation keeps a certificate of this host that is valid. Safe for concurrent use.
type Rotation struct {
	issuer  Issuer
	log     *zap.Logger
	current atomic.Pointer[tls.Certificate]
}

// NewRotation returns a rotation without a certificate, until [Rotation.Renew] or [Rotation.Run].
func NewRotation(issuer Issuer, log *zap.Logger) *Rotation {
	return &Rotation{issuer: issuer, log: log}
}

// retryEvery is the time between two attempts to renew.
const retryEvery = time.Minute

// checkEvery is the time between two looks at the certificate: the clock may be set, and the machine suspended, meanwhile.
const checkEvery = time.Minute

// errNoCertificate is the error of a host that could not renew its certificate in time.
var errNoCertificate = errors.New("this host has no valid certificate of the fleet: etcd did not answer for a day, or since the start")

// Certificate returns the certificate of this host. It may be used for one handshake.
func (r *Rotation) Certificate() (*tls.Certificate, error) {
	c := r.current.Load()
	if now := time.Now(); c == nil || now.After(c.Leaf.NotAfter) || now.Before(c.Leaf.NotBefore) {
		return nil, errNoCertificate
	}
	return c, nil
}

// remains returns how long the certificate of this host need not be renewed; 0: it must be. One that is valid for longer than a new one was
// made while the clock was ahead, and the other hosts do not accept it yet.
func (r *Rotation) remains() time.Duration {
	c := r.current.Load()
	if c == nil || time.Until(c.Leaf.NotAfter) > HostLifetime {
		return 0
	}
	return max(0, time.Until(c.Leaf.NotAfter)-HostLifetime/3)
}

// NotAfter returns when the certificate expires; the zero time: there is none.
func (r *Rotation) NotAfter() time.Time {
	if c := r.current.Load(); c != nil {
		return c.Leaf.NotAfter
	}
	return time.Time{}
}

// Run renews the certificate when a third of its time is left, until ctx is done.
func (r *Rotation) Run(ctx context.Context) {
	for ctx.Err() == nil {
		wait := retryEvery
		if left := r.remains(); left > 0 {
			wait = min(left, checkEvery)
		} else if err := r.Renew(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("the certificate of this host in the fleet cannot be renewed", zap.Time("valid_until", r.NotAfter()), zap.Error(err))
		} else {
			wait = time.Second
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// Renew replaces the certificate now. Do not call it while Run runs.
func (r *Rotation) Renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := r.issuer.Issue(ctx, time.Now())
	if err != nil {
		return fmt.Errorf("a new certificate: %w", err)
	}
	r.current.Store(c)
	return nil
}
