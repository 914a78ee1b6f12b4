package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"boxgate/policy"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"boxgate/api/server"
	"boxgate/audit"
	"boxgate/host/keyless"
	"boxgate/host/share"
	"boxgate/ingress"
	"boxgate/internal/fault"
)

// shutdownTimeout is how long requests and commands may go on after the first signal. Sessions end at once.
const shutdownTimeout = 10 * time.Second

// errNotRecovered refuses to serve while running boxes are not known.
var errNotRecovered = errors.New("the boxes of the earlier run were not recovered")

// Serve accepts connections on every socket until ctx ends or one of them fails, then drains. A panic of a server is an error.
// [Host.Recover] must have succeeded.
func (h *Host) Serve(ctx context.Context) error {
	if !h.recovered.Load() {
		return errNotRecovered
	}
	if h.noWatch {
		h.parts.log.Warn("kernel rules that other programs change are not restored: this is for tests")
	}
	return contained(h.parts.log, func() error { return h.serveParts(ctx) })
}

func (h *Host) serveParts(ctx context.Context) error {
	admin, err := server.New(server.Config{
		Host: h, History: h.parts.history, FindKey: h.keys.find, Trail: h.parts.trail.trail, Hosts: h.parts.cfg.Admin.Hosts, HasSecret: h.parts.secrets.Has, Log: h.parts.log, Admitted: keyless.KeyShown,
	})
	if err != nil {
		return err
	}
	adminServer := admin.Server()
	adminServer.ConnContext = keyless.ConnContext
	metrics := &http.Server{
		Handler: h.metricsHandler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: audit.ServerLog(h.parts.log, nil),
	}

	group, ctx := errgroup.WithContext(ctx)
	run := func(what string, f func() error) {
		group.Go(func() error {
			err := contained(h.parts.log, f)
			wanted := ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed)
			if err != nil && !wanted {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	h.serveEgress(ctx, run)
	h.serveFront(run)
	for _, ln := range h.parts.listeners.admin {
		run("admin API", func() error { return adminServer.Serve(h.parts.shares.Keyless(ln)) })
	}
	if h.parts.acme != nil {
		run("certificates", func() error { h.parts.acme.Run(ctx); return nil })
	}
	if h.parts.listeners.metrics != nil {
		run("metrics", func() error { return metrics.Serve(h.parts.shares.Keyless(h.parts.listeners.metrics)) })
	}
	if !h.noWatch {
		run("kernel rules", func() error { return h.parts.firewall.Watch(ctx) })
	}
	h.serveLoops(ctx, run)
	h.announce()
	group.Go(func() error {
		<-ctx.Done()
		return contained(h.parts.log, func() error { return h.drain(admin, adminServer, metrics) })
	})
	return group.Wait()
}

// sayPolicies says what boxes may reach that were made without a policy.
func (h *Host) sayPolicies() {
	p := h.parts.cfg.Policy
	if p.Default.Spec.Mode == policy.ModeAllowAll && p.Ceiling.Spec.Mode == "" {
		h.parts.log.Info("boxes created without a policy may reach everything but the protected ranges; policy.default and policy.ceiling limit them")
	}
}

// announce tells systemd, the log and the caller that everything is served.
func (h *Host) announce() {
	if err := notifySystemd("READY=1"); err != nil {
		h.parts.log.Warn("systemd was not told that the gateway is ready", zap.Error(err))
	}
	h.sayPolicies()
	h.parts.log.Info("ready", zap.Int("boxes", len(h.parts.boxes.all())))
	if h.ready != nil {
		h.ready()
	}
}

// drain finishes what is under way and closes the listeners.
func (h *Host) drain(admin *server.API, adminServer, metrics *http.Server) error {
	_ = notifySystemd("STOPPING=1")
	drain, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	defer h.parts.listeners.Close()
	// The API stops first, so that no change begins; boxes and their rules stay as they are.
	err := errors.Join(fault.At(drain, "stop: begun"), adminServer.Shutdown(drain), admin.Wait(drain))
	err = errors.Join(err, fault.At(drain, "stop: no more changes"))
	if h.parts.acme != nil {
		h.parts.acme.Close() // before the listeners that issuers connect to
	}
	err = errors.Join(err, h.parts.ingress.Shutdown(drain), h.parts.proxy.Shutdown(drain), metrics.Shutdown(drain))
	err = errors.Join(err, fault.At(drain, "stop: drained"))
	if errors.Is(err, context.DeadlineExceeded) {
		h.parts.log.Warn("requests still under way were cut off")
		return nil
	}
	return err
}

// serveLoops starts what looks after the boxes and the host.
func (h *Host) serveLoops(ctx context.Context, run func(string, func() error)) {
	run("host addresses", func() error { return h.protection.follow(ctx) })
	run("temporary entries of policies", func() error { return h.policies.keepLeases(ctx) })
	run("attached boxes", func() error { h.follower.Run(ctx); return nil })
	run("record of the last run", func() error { return noteRun(ctx, h.parts.launcher.RunDir()) })
	run("connection table", func() error { return followConntrack(ctx, h.parts.log) })
	run("schedules", func() error { h.scheduler.Run(ctx); return nil })
	run("unused memory", func() error { share.GiveBack(ctx); return nil })
	run("boxes that are kept alive", func() error { return h.startKept(ctx) })
	run("idle boxes", func() error { return h.sleeper.run(ctx) })
	run("audit trail", func() error { h.parts.trail.keepHead(ctx); return nil })
	run("uses of API keys", func() error { h.keys.saveUses(ctx); return nil })
	run("quotas", func() error { h.quota.run(ctx); return nil })
	run("metering", func() error { h.parts.meter.Run(ctx); return nil })
	run("files of deleted boxes", func() error { h.parts.launcher.KeepTrashEmpty(ctx); return nil })
}

// serveEgress starts what boxes are steered to.
func (h *Host) serveEgress(ctx context.Context, run func(string, func() error)) {
	for _, ln := range h.parts.listeners.transparent {
		run("proxy", func() error { return h.parts.proxy.ServeTransparent(ctx, ln) })
	}
	for _, ln := range h.parts.listeners.explicit {
		run("explicit proxy", func() error { return h.parts.proxy.ServeExplicit(ctx, ln) })
	}
	for _, ln := range h.parts.listeners.dnsTCP {
		run("DNS over TCP", func() error { return h.parts.dns.ServeTCP(ctx, ln) })
	}
	for _, pc := range h.parts.listeners.dnsUDP {
		run("DNS over UDP", func() error { return h.parts.dns.ServeUDP(ctx, pc) })
	}
}

// serveFront starts the public URLs. Over plain HTTP they are served on loopback only; elsewhere they redirect.
func (h *Host) serveFront(run func(string, func() error)) {
	l := h.parts.listeners
	var httpsPort uint16
	if l.https != nil {
		httpsPort = portOf(l.https)
		run("public URLs", func() error { return h.parts.ingress.ServeTLS(h.parts.shares.Bound(l.https)) })
	}
	switch {
	case l.http == nil:
	case l.http.Addr().(*net.TCPAddr).IP.IsLoopback():
		run("public URLs over HTTP", func() error { return h.parts.ingress.ServePlain(h.parts.shares.Bound(l.http)) })
	case l.redirects():
		var challenge ingress.Challenge
		if h.parts.acme != nil {
			challenge = h.parts.acme.Challenge
		}
		run("redirects", func() error { return h.parts.ingress.ServeRedirect(h.parts.shares.Bound(l.http), httpsPort, challenge) })
	default:
		h.parts.log.Warn("ingress.http serves nothing: it is not on a loopback address and ingress.https is off")
	}
}

// metricsHandler serves /metrics.
func (h *Host) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(h.parts.metrics, promhttp.HandlerOpts{}))
	return mux
}

// notifySystemd sends a state to the service manager that started the gateway, if one did (sd_notify(3)).
func notifySystemd(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(state))
	return err
}
