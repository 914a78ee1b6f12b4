package host

import (
	"boxgate/host/listen"

	"context"
	"fmt"

	"boxgate/firewall"
)

func (p *parts) openFirewall(ctx context.Context) error {
	cfg := firewall.Config{
		PoolV4: p.addrs.PoolV4, PoolV6: p.addrs.PoolV6,
		GatewayV4: p.addrs.GatewayV4, GatewayV6: p.addrs.GatewayV6, SinkV4: p.addrs.SinkV4, SinkV6: p.addrs.SinkV6,
		DNSPort: p.listeners.DNSPort, ProxyPort: p.listeners.ProxyPort, ExplicitPort: listen.ExplicitPort,
		FlowLimit: uint32(p.cfg.Limits.KernelFlows),
		SendRate:  uint64(p.cfg.Limits.Send), ReceiveRate: uint64(p.cfg.Limits.Receive), Sources: p.addrs.Sources, Explain: p.boxes.Explain, Names: p.dns.GrantedNames, Audit: p.audit, Log: p.log,
		LastRun: lastRun(p.launcher.RunDir()),
	}
	err := p.apart.Do(func() (err error) {
		p.firewall, err = firewall.Open(ctx, cfg)
		return err
	})
	if err != nil {
		return fmt.Errorf("kernel rules: %w", err)
	}
	return nil
}
