package host

import (
	"boxgate/config"
	"boxgate/host/uninstall"
	"boxgate/preflight"
)

// Uninstallation finds what the gateway of a configuration has left on this host, for its Run to remove. With purge that
// includes the state.
func Uninstallation(cfg config.Config, purge bool) (*uninstall.Plan, error) {
	if err := preflight.NeedRoot(); err != nil {
		return nil, err
	}
	return uninstall.Find(cfg, launcherConfig(cfg, nil), purge)
}
