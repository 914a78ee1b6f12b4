package host

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"

	"boxgate/config"
	"boxgate/host/handover"
	"boxgate/host/listen"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/proxy"
)

// policiesOf returns a digest of the configuration that connections are judged by, in addition to the store.
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

// relieve announces to the predecessor that this process serves; see [handover.Predecessor.AnnounceServing]. If the predecessor
// has another configuration, or does not protect all the ranges protected here, all its connections are cut.
func relieve(p *handover.Predecessor, udp []listen.UDPSocket, cfg config.Config, protected []netip.Prefix, log *zap.Logger) error {
	err := p.AnnounceServing(log)
	for _, u := range udp {
		if err := u.Resume(); err != nil {
			log.Warn("a DNS socket could not be taken over from the predecessor", zap.Error(err))
		}
	}
	unknown := func(at netip.Prefix) bool { return !slices.Contains(p.Protected(), at) }
	if hello, _ := p.Hello(); hello.Policies != policiesOf(cfg) || slices.ContainsFunc(protected, unknown) {
		p.SendOrder(handover.Message{Kind: handover.CutAll})
	}
	return err
}

// withPredecessor combines the connections of boxes in this process with the ones that the predecessor drains. It implements
// [enforce.Proxy] and [secrets.Connections].
type withPredecessor struct {
	*proxy.Proxy
	before *handover.Predecessor
	boxes  *state.Table
}

// Recheck implements [enforce.Proxy].
func (b withPredecessor) Recheck(id policy.BoxID) {
	b.Proxy.Recheck(id)
	if b.before == nil {
		return
	}
	order := handover.Message{Kind: handover.Cut, Box: id}
	if known, err := b.boxes.Find(id); b.before.OnlyPolicy(id) && err == nil {
		if c := known.Policy.Load(); c != nil {
			if spec, err := json.Marshal(c.Spec()); err == nil {
				order.Kind, order.Spec, order.Version = handover.Policy, spec, c.Version()
			}
		}
	}
	b.before.SendOrder(order)
}

// CloseBox implements [enforce.Proxy].
func (b withPredecessor) CloseBox(id policy.BoxID) {
	b.Proxy.CloseBox(id)
	b.before.SendOrder(handover.Message{Kind: handover.Cut, Box: id})
}

// UsesSecret implements [secrets.Connections]. The secrets in the predecessor's connections are unknown, so while it drains, any
// secret may be held.
func (b withPredecessor) UsesSecret(secret string) bool {
	return b.Proxy.UsesSecret(secret) || b.before.Drains()
}

// Revoke implements [secrets.Connections].
func (b withPredecessor) Revoke(secret string) {
	b.Proxy.Revoke(secret)
	b.before.SendOrder(handover.Message{Kind: handover.Secret, Secret: secret})
}
