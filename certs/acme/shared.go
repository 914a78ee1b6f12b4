package acme

import (
	"context"
	"encoding/json"
	"path"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"

	"boxgate/policy/name"
)

const (
	// maxLooking bounds the concurrent look-ups of challenges in a shared storage: strangers can ask for any host.
	maxLooking = 16
	// lookTime bounds one, with the wait for its turn.
	lookTime = 2 * time.Second
	// challengePath begins the path of each HTTP-01 challenge (RFC 8555, section 8.3).
	challengePath = "/.well-known/acme-challenge/"
)

// sharedChallenge answers an HTTP-01 challenge that another host of the same storage has begun. The public URL need not be one of this host.
func (m *Manager) sharedChallenge(host, at string) (body string, ok bool) {
	token, ok := strings.CutPrefix(at, challengePath)
	if n, err := name.Parse(host); !m.cfg.Shared || !ok || token == "" || err != nil || n.String() != host {
		return "", false
	}
	ctx, cancel := context.WithTimeout(m.ctx, lookTime)
	defer cancel()
	select {
	case m.looking <- struct{}{}: // an issuer asks from several places at once
		defer func() { <-m.looking }()
	case <-ctx.Done():
		return "", false
	}
	for _, issuer := range m.hostConfig.Issuers {
		text, err := m.cfg.Storage.Load(ctx, challengeKey(issuer, host))
		if err != nil {
			continue
		}
		var c acme.Challenge
		if json.Unmarshal(text, &c) != nil {
			continue
		}
		if body, ok := answer(c, host, at); ok {
			return body, true
		}
	}
	return "", false
}

// challengeKey is the key at which certmagic (v0.25.6) stores the challenge of a host.
func challengeKey(issuer certmagic.Issuer, host string) string {
	return path.Join("acme", certmagic.StorageKeys.Safe(issuer.IssuerKey()), "challenge_tokens", certmagic.StorageKeys.Safe(host)+".json")
}
