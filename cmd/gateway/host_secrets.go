package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"go.uber.org/zap"

	"boxgate/secrets"
)

// openSecrets opens the operator's secrets. A source that gives no value is no reason not to start: it fails the
// requests that need it, and the log says why.
func (h *host) openSecrets(context.Context) error {
	if err := h.cfg.Secrets.exposed(); err != nil {
		h.log.Warn("the configuration shows secrets to others", zap.Error(err))
	}
	var err error
	if h.secrets, err = secrets.Open(h.cfg.Secrets.sources, secrets.Options{Log: h.log}); err != nil {
		return err
	}
	return h.metrics.Register(h.secrets)
}

// checkSecrets looks at the sources without running commands.
func checkSecrets(ctx context.Context, cfg config) error {
	return errors.Join(secrets.Check(ctx, cfg.Secrets.sources), cfg.Secrets.exposed())
}

// exposed returns an error if the configuration file holds a literal and everybody may read it.
func (c *secretsConfig) exposed() error {
	literal := false
	for _, s := range c.sources {
		literal = literal || s.Value.Reveal() != ""
	}
	if !literal || c.file == "" {
		return nil
	}
	info, err := os.Stat(c.file)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return fmt.Errorf("secrets: everybody may read or write %s, which holds the value of a secret (mode %04o): run chmod o= %s",
			c.file, mode, c.file)
	}
	return nil
}
