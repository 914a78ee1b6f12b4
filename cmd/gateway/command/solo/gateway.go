package solo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/config"
	"boxgate/host"
	"boxgate/host/listen"
	"boxgate/host/netns"
	"boxgate/policy"
)

// gateway is a gateway for one box inside this process. It offers no API. Its rules and the box's link are in a network
// namespace without uplink, and the proxy dials from the host's namespace, so the host's network configuration does not
// change.
type gateway struct {
	*host.Host
	addrs     config.Addresses
	listeners *listen.Sockets
	net       *netns.Net
	served    chan error // the error of the gateway once it ends
	cancel    context.CancelFunc
}

// standalone returns the operator's configuration with its state in memory and without log history, admin API, metrics, public
// URLs and launcher. Refused HTTPS gets a page: the command trusts the CA of this gateway, and many clients, npm among them,
// retry for minutes after a TLS alert, but stop at a 403.
func standalone(cfg config.Config) config.Config {
	cfg.StateDir = filepath.Join(stateMount, "state")
	cfg.Log.History, cfg.Log.Observations, cfg.Log.Export = config.Bounds{}, config.Bounds{}, config.Export{}
	cfg.Proxy.Deny = "page"
	cfg.Admin, cfg.Metrics = config.Admin{}, config.Metrics{}
	cfg.Ingress.HTTPS, cfg.Ingress.HTTP, cfg.Ingress.TLS.Mode = "", "", "internal"
	cfg.Launcher.Enabled, cfg.Launcher.RunDir = false, filepath.Join(stateMount, "boxes")
	return cfg
}

// open starts the gateway and returns once it serves.
func open(ctx context.Context, cfg config.Config, log *zap.Logger) (g *gateway, err error) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil { // header values are in memory
		return nil, fmt.Errorf("turning core dumps off: %w", err)
	}
	cfg = standalone(cfg)
	ctx, end := context.WithCancel(ctx)
	g = &gateway{served: make(chan error, 1), cancel: end}
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	if g.addrs, err = config.AddressesOf(cfg.Network); err != nil {
		return g, err
	}
	if g.net, err = netns.New(); err != nil {
		return g, err
	}
	if g.listeners, err = listen.Open(ctx, cfg, g.addrs, g.net, nil); err != nil {
		return g, err
	}
	ready := make(chan struct{})
	g.Host, err = host.Open(ctx, host.Options{
		Config: cfg, Addresses: g.addrs, Listeners: g.listeners, Apart: g.net, Log: log, Ready: func() { close(ready) },
	})
	if err != nil {
		return g, err
	}
	if err := g.Recover(ctx); err != nil {
		return g, err
	}
	go func() { g.served <- g.Serve(ctx) }()
	select {
	case <-ready:
		return g, nil
	case err := <-g.served:
		return g, errors.Join(errors.New("the gateway ended"), err)
	}
}

// attach connects the network namespace of a process to the gateway. The policy is active when attach returns.
func (g *gateway) attach(ctx context.Context, pid int, spec policy.Spec, headers []policy.HeaderRule) (api.Box, error) {
	return g.Services().Life.AttachBox(ctx, api.AttachRequest{
		Attached: api.Attached{Kind: api.AttachPID, Ref: strconv.Itoa(pid), PID: pid, Stack: api.StackHost}, Policy: spec, Headers: headers,
	})
}

// resolvers returns the DNS servers for the command.
func (g *gateway) resolvers() []netip.Addr { return []netip.Addr{g.addrs.GatewayV4, g.addrs.GatewayV6} }

// Close stops the gateway, which may be only partly open. It does not wait for everything: the rest ends with the
// process.
func (g *gateway) Close() {
	g.cancel()
	if g.listeners != nil {
		g.listeners.Close()
	}
	if g.net != nil {
		_ = g.net.Close()
	}
}
