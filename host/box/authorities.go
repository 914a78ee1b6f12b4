package box

import (
	"context"
	"errors"

	"boxgate/api"
	"boxgate/certs"
	"boxgate/policy"
	"boxgate/store"
)

// Authorities holds the CAs of the boxes, and that of the installation.
type Authorities struct {
	store  store.Authorities
	minter *certs.Minter
	urls   *certs.Authority // nil unless the internal CA signs public URLs
}

// NewAuthorities returns the service. urls is nil unless the internal CA signs public URLs.
func NewAuthorities(stored store.Authorities, minter *certs.Minter, urls *certs.Authority) *Authorities {
	return &Authorities{stored, minter, urls}
}

// CA implements the Authorities of [boxgate/api/gateway].
func (a *Authorities) CA(_ context.Context, id policy.BoxID) ([]byte, error) {
	ca, err := a.minter.Authority(id)
	if err != nil {
		return nil, api.ErrNotFound
	}
	return ca.CertificatePEM(), nil
}

// IngressCA implements the Authorities of [boxgate/api/gateway].
func (a *Authorities) IngressCA(context.Context) ([]byte, error) {
	if a.urls == nil {
		return nil, api.Errorf(api.ErrNotFound, "the public URLs of this gateway do not use an internal CA: ingress.tls.mode is another")
	}
	return a.urls.CertificatePEM(), nil
}

// ofBox returns the interception CA of a box.
func (a *Authorities) ofBox(id policy.BoxID) (*certs.Authority, error) {
	return EnsureAuthority("boxgate box "+string(id),
		func() (store.CA, error) { return a.store.CA(id) },
		func(ca store.CA) error { return a.store.SetCA(id, ca) })
}

// EnsureAuthority returns the CA that load finds. On the first call, it makes one and saves it with keep.
func EnsureAuthority(name string, load func() (store.CA, error), keep func(store.CA) error) (*certs.Authority, error) {
	stored, err := load()
	if err == nil {
		return certs.LoadCA(stored.CertPEM, stored.KeyPEM)
	}
	if !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	ca, err := certs.NewCA(name)
	if err != nil {
		return nil, err
	}
	key, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	return ca, keep(store.CA{CertPEM: ca.CertificatePEM(), KeyPEM: key})
}
