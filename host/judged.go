package host

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"

	"boxgate/config"
)

// policiesOf is a digest of what connections are judged by, besides what the store holds.
func policiesOf(cfg config.Config) string {
	data, err := yaml.Marshal([]any{cfg.Policy, cfg.Limits, cfg.Network, cfg.Proxy, cfg.Secrets, cfg.Ingress})
	if err != nil {
		return ""
	}
	sum := sha256.New()
	sum.Write(data)
	for _, name := range slices.Sorted(maps.Keys(cfg.Secrets.Sources)) {
		fmt.Fprintf(sum, "%q %q\n", name, cfg.Secrets.Sources[name].Value.Reveal())
	}
	return hex.EncodeToString(sum.Sum(nil))
}
