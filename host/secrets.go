package host

import (
	"context"

	"go.uber.org/zap"

	"boxgate/secrets"
)

// openSecrets opens the operator's secrets. A source that gives no value is no reason not to start: it fails the
// requests that need it, and the log says why.
func (h *Host) openSecrets(context.Context) error {
	if err := h.cfg.Secrets.Exposed(); err != nil {
		h.log.Warn("the configuration shows secrets to others", zap.Error(err))
	}
	var err error
	if h.secrets, err = secrets.Open(h.cfg.Secrets.Sources, secrets.Options{Log: h.log}); err != nil {
		return err
	}
	return h.metrics.Register(h.secrets)
}
