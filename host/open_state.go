package host

import (
	"boxgate/host/records"

	"context"
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"boxgate/config"
	"boxgate/internal/fault"
	"boxgate/launcher"
	"boxgate/secrets"
	"boxgate/secrets/identity"
	"boxgate/store"
)

// openStore opens the store, and drops what an earlier run staged and never committed.
func (p *parts) openStore(context.Context) error {
	var err error
	p.store, err = store.Open(store.Options{
		Dir: p.cfg.StateDir, PassphraseEnv: config.PassphraseVariable, Traces: launcher.Traces(p.cfg.StateDir, p.cfg.Launcher.RunDir),
	})
	if err != nil {
		return err
	}
	if p.before == nil { // else the predecessor may need it
		_ = os.Remove(filepath.Join(p.cfg.StateDir, store.FileName) + keptSuffix)
	}
	if _, err := p.store.EnsureAPIKey(); err != nil {
		return fmt.Errorf("making the first API key: %w", err)
	}
	// What was staged when the gateway died was never answered for: what is committed counts.
	cut, err := p.store.DropStaged()
	if err != nil {
		return err
	}
	for _, c := range cut {
		p.log.Warn("a change was interrupted and is dropped; what was in force before it counts", zap.String("box", string(c.Box)), zap.String("named_policy", c.Named), zap.Bool("headers", c.Headers))
	}
	return nil
}

// openTrail opens the audit trail. Without it nothing could be changed, so that it not opening is an error.
func (p *parts) openTrail(context.Context) (err error) {
	p.trail, err = records.OpenTrail(p.log, p.store, p.cfg.StateDir, p.cfg.Admin.Audit)
	return err
}

// openSecrets opens the operator's secrets. A source that gives no value does not keep the gateway from starting: it fails
// the requests that need it, and the log says why.
func (p *parts) openSecrets(context.Context) error {
	if err := p.cfg.Secrets.Exposed(); err != nil {
		p.log.Warn("the configuration shows secrets to others", zap.Error(err))
	}
	var err error
	if p.roots, err = rootsWith(upstreamKey, p.cfg.Proxy.UpstreamCAFiles); err != nil {
		return err
	}
	if p.added, err = AddedRoots(p.cfg.Proxy.UpstreamCAFiles); err != nil {
		return err
	}
	if err := p.openTokens(); err != nil {
		return err
	}
	if p.secrets, err = secrets.Open(p.cfg.Secrets.Sources, secrets.Options{Log: p.log, Roots: p.roots, Memory: p.store}); err != nil {
		return err
	}
	return p.metrics.Register(p.secrets)
}

// openTokens makes the issuer of the tokens for the proxies that header rules forward to.
func (p *parts) openTokens() error {
	name := p.cfg.Proxy.TokenIssuer
	if name == "" {
		host, err := p.store.HostID()
		if err != nil {
			return err
		}
		name = "urn:boxgate:" + host
	}
	p.tokens = identity.New(name, p.store, fault.Now)
	return nil
}
