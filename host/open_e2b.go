package host

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"

	"boxgate/api"
	"boxgate/api/e2b/token"
	"boxgate/api/server"
	"boxgate/host/keys"
	"boxgate/policy/name"
	"boxgate/store"
)

// e2b returns the configuration of the dialect of E2B's SDK; nil if it is off.
func (h *Host) e2b() (*server.E2B, error) {
	p := h.parts
	if !p.cfg.E2B.Enabled {
		return nil, nil
	}
	maker, err := boxTokens(p.store.Installation)
	if err != nil {
		return nil, fmt.Errorf("the key of access tokens: %w", err)
	}
	return &server.E2B{
		Maker: maker, Keys: tokenKeys{h.turn, h.keys}, Domain: p.cfg.Ingress.Domain, PublicTraffic: p.cfg.E2B.PublicTraffic,
		Images: slices.Sorted(maps.Keys(p.cfg.Launcher.AllImages())),
	}, nil
}

// boxTokens returns the maker of access tokens with the key in the store, which it makes if there is none.
func boxTokens(known store.Installation) (*token.Maker, error) {
	text, err := known.BoxTokenKey()
	if err == nil && text.Reveal() == "" {
		secret := make([]byte, token.SecretSize)
		_, _ = rand.Read(secret) // never fails (crypto/rand)
		if err = known.SetBoxTokenKeyOnce(name.NewSecret(base64.StdEncoding.EncodeToString(secret))); err == nil {
			text, err = known.BoxTokenKey()
		}
	}
	if err != nil {
		return nil, err
	}
	secret, err := base64.StdEncoding.DecodeString(text.Reveal())
	if err != nil {
		return nil, errors.New("its record is damaged")
	}
	return token.NewMaker(secret)
}

// tokenKeys implements [token.Keys].
type tokenKeys struct {
	*adminTurn
	*keys.Service
}

// Find implements [token.Keys].
func (k tokenKeys) Find(hash [sha256.Size]byte) (api.Caller, bool) { return k.findHash(hash) }

// adminHosts returns the Host values of the admin API, besides loopback names and the listening address.
func (p *parts) adminHosts() []string {
	if !p.cfg.E2B.Enabled {
		return p.cfg.Admin.Hosts
	}
	return append(slices.Clone(p.cfg.Admin.Hosts), p.cfg.E2B.APIHost(p.cfg.Ingress.Domain))
}
