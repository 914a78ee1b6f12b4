package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"boxgate/api"
	"boxgate/api/harness"
	"boxgate/api/server"
	"boxgate/audit"
	"boxgate/host/authlimit"
	"boxgate/host/change"
	"boxgate/host/listen"
	"boxgate/host/share"
	"boxgate/host/systemd"
	"boxgate/ingress"
	"boxgate/internal/fault"
	"boxgate/internal/socket"
	"boxgate/policy"
	quotas "boxgate/quota"
)

// loops manages the background goroutines of the gateway. Safe for concurrent use.
type loops struct {
	stopped context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newLoops() *loops {
	l := &loops{}
	l.stopped, l.cancel = context.WithCancel(context.Background())
	return l
}

// context returns a context that is canceled with ctx or by stop, immediately if stop was called before.
func (l *loops) context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	release := context.AfterFunc(l.stopped, cancel)
	if l.stopped.Err() != nil { // AfterFunc runs asynchronously
		cancel()
	}
	return ctx, func() { release(); cancel() }
}

// stop cancels the loops and waits for them.
func (l *loops) stop() {
	l.cancel()
	l.running.Wait()
}

// shutdownTimeout is how long requests and commands may continue after the first signal. Sessions end immediately.
const shutdownTimeout = 10 * time.Second

// answeringTimeout is how long DNS queries that were already read may be answered after that.
const answeringTimeout = time.Second

// errNotRecovered refuses to serve while running boxes are unknown.
var errNotRecovered = errors.New("the boxes of the earlier run were not recovered")

// Serve accepts connections on every socket until ctx is done or a server fails, then drains. A panic is returned as an
// error. [Host.Recover] must have succeeded.
func (h *Host) Serve(ctx context.Context) error {
	if !h.health.recovered.Load() {
		return errNotRecovered
	}
	if h.options.NoWatch {
		h.parts.log.Warn("kernel rules that other programs change are not restored: this is for tests")
	}
	return change.Contain(h.parts.log, func() error { return h.serveParts(ctx) })
}

// newAdmin makes the admin API.
func (h *Host) newAdmin() (*server.API, error) {
	dialect, err := h.e2b()
	if err != nil {
		return nil, err
	}
	return server.New(server.Config{
		E2B: dialect, Elsewhere: h.parts.elsewhere(), Spread: h.parts.cfg.Fleet.Spreads(), Fleet: h.parts.members(), Services: h.Services(), History: h.parts.history, FindKey: h.turn.findKey, Peer: h.peerOf, Trail: h.parts.trail.Log(), Hosts: h.parts.adminHosts(), HasSecret: h.parts.secrets.Has, KeySecret: h.parts.keySecrets.Find, Meters: h.parts.cfg.Meters, Watcher: h.usage, Log: h.parts.log, Quotas: h.parts.quotas, Admitted: h.parts.keyed.Shown, MaxBody: h.parts.largestBody(8<<20, 8), MaxRun: h.parts.largestBody(harness.MaxBody, 5), Silence: h.parts.cfg.Admin.Silence,
	})
}

func (h *Host) serveParts(ctx context.Context) error {
	admin, err := h.newAdmin()
	if err != nil {
		return err
	}
	h.parts.dialect.admin.Store(admin)
	adminServer, metrics, err := h.httpServers(admin)
	if err != nil {
		return err
	}

	group, ctx := errgroup.WithContext(ctx)
	run := func(what string, f func() error) {
		group.Go(func() error {
			err := change.Contain(h.parts.log, f)
			wanted := ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed)
			if err != nil && !wanted {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	// DNS answers until everything else has ended: draining connections resolve names, and so do boxes that wait for the
	// next gateway.
	answering, stopAnswering := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAnswering()
	h.serveEgress(ctx, answering, run)
	h.serveFront(run)
	h.serveElsewhere(run, admin)
	h.servePeerAPI(run, admin)
	if h.parts.before != nil {
		h.relieve()
		h.parts.listeners.Lock.Own()
	}
	fault.Mark(ctx, "start: serving")
	for _, ln := range h.parts.listeners.Admin {
		h.serveAdmin(run, adminServer, ln)
	}
	if ln := h.parts.listeners.Metrics; ln != nil {
		h.serveKeyed(run, "metrics", metrics.Serve, ln)
	}
	run("requests of commands", func() error { return h.serveControl(ctx) })
	h.startLoops(ctx, run)
	h.announce()
	group.Go(func() error {
		defer h.endAnswering(stopAnswering)
		finish := func(drain context.Context) error { return h.finish(drain, admin, adminServer, metrics) }
		select {
		case <-ctx.Done():
			return change.Contain(h.parts.log, func() error { return h.drain(finish) })
		case err := <-h.succession.failed:
			return errors.Join(err, change.Contain(h.parts.log, func() error { return h.drain(finish) }))
		case <-h.succession.replaced:
			admin.EndStreams() // followers of decisions reconnect to the successor
			return change.Contain(h.parts.log, func() error { return h.drainReplaced(ctx, finish) })
		}
	})
	return group.Wait()
}

// endAnswering stops the DNS server after answering the queries it has read. Unread queries are left to the next gateway,
// if the service manager keeps the sockets.
func (h *Host) endAnswering(stop func()) {
	defer stop()
	defer time.AfterFunc(answeringTimeout, stop).Stop()
	h.parts.dns.Retire()
	h.parts.dns.WaitAnswered()
}

// startLoops starts the background loops, which run until ctx is done or the loops are stopped.
func (h *Host) startLoops(ctx context.Context, run func(string, func() error)) {
	ctx, cancel := h.loops.context(ctx)
	running := &h.loops.running
	loop := func(what string, f func() error) {
		running.Add(1)
		run(what, func() error {
			defer running.Done()
			if err := f(); ctx.Err() == nil {
				return err
			}
			return nil
		})
	}
	if !h.options.NoWatch {
		loop("kernel rules", func() error { return h.parts.firewall.Watch(ctx) })
	}
	if pushed := h.parts.pushed; pushed != nil {
		loop("metrics export", func() error { pushed.Run(ctx); return nil })
	}
	if h.parts.acme != nil {
		loop("certificates", func() error { h.parts.acme.Run(ctx); return nil })
	}
	h.serveLoops(ctx, loop)
	go func() { // release ctx
		running.Wait()
		cancel()
	}()
}

// logUnrestricted logs that boxes created without a policy are not restricted, if that is the configuration.
func (h *Host) logUnrestricted() {
	p := h.parts.cfg.Policy
	if p.Default.Spec.Mode == policy.ModeAllowAll && p.Ceiling.Spec.Mode == "" {
		h.parts.log.Info("boxes created without a policy may reach everything but the protected ranges; policy.default and policy.ceiling limit them")
	}
}

// announce notifies systemd, the log and the caller that all servers are running.
func (h *Host) announce() {
	if err := systemd.Ready(); err != nil {
		h.parts.log.Warn("systemd could not be notified that the gateway is ready", zap.Error(err))
	}
	h.parts.listeners.Keep(h.parts.log) // after Ready: other service managers do not read further messages
	h.logUnrestricted()
	h.parts.log.Info("ready", zap.Int("boxes", len(h.parts.boxes.All())))
	if h.options.Ready != nil {
		h.options.Ready()
	}
}

// drain finishes running requests on shutdown.
func (h *Host) drain(finish func(context.Context) error) error {
	h.succession.stopping.Store(true)
	_ = systemd.Notify("STOPPING=1")
	h.approvals.Retire() // boxes that wait for an answer ask the next process
	drain, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := finish(drain)
	if errors.Is(err, context.DeadlineExceeded) {
		h.parts.log.Warn("the remaining requests were cut")
		return nil
	}
	return err
}

// httpServers returns the servers of the admin API and the metrics.
func (h *Host) httpServers(admin *server.API) (s, metrics *http.Server, err error) {
	if h.adminGroup, err = listen.GroupID(h.parts.cfg.Admin); err != nil {
		return nil, nil, err
	}
	s, metrics = admin.Server(), h.metricsServer()
	s.TLSConfig = h.parts.adminTLS
	h.turn.needsNoKey = func(r *http.Request) bool { peer, ok := h.peerOf(r); return ok && peer.Admin }
	s.Handler = h.turn.wrap(h.withDashboard(admin))
	s.ConnContext, s.ConnState = authlimit.ConnContext, h.parts.keyed.State
	h.arrivals.track(s, metrics)
	return s, metrics, nil
}

// peerOf returns the user of a request over the Unix socket. Members of admin.group need no key. Root does, even as a member: it
// can read the key, and requests that another process of the gateway forwards come from root.
func (h *Host) peerOf(r *http.Request) (api.Peer, bool) {
	c, ok := authlimit.CredentialsOf(r.Context())
	return api.Peer{UID: c.UID, Login: c.Login, Admin: ok && c.UID != 0 && c.UID != os.Geteuid() && c.IsMember(h.adminGroup)}, ok
}

// finish waits for running requests until drain is done, and closes the listeners.
func (h *Host) finish(drain context.Context, admin *server.API, adminServer, metrics *http.Server) error {
	defer h.parts.listeners.Close()
	h.health.serving.stopChecks()
	// The API stops first, so that no change begins. Boxes and their rules stay.
	err := fault.At(drain, "stop: begun")
	h.arrivals.await(drain)
	h.parts.ssh.Retire()
	err = errors.Join(err, adminServer.Shutdown(drain), h.parts.peerAPI.shutdown(drain), admin.Wait(drain))
	err = errors.Join(err, fault.At(drain, "stop: no more changes"))
	if h.parts.acme != nil {
		h.parts.acme.Close() // before the listeners, which issuers connect to
	}
	h.parts.remote.Retire()
	err = errors.Join(err, h.parts.ingress.Shutdown(drain), h.parts.proxy.Shutdown(drain), h.parts.remote.Shutdown(drain), h.parts.ssh.Shutdown(drain), metrics.Shutdown(drain))
	return errors.Join(err, fault.At(drain, "stop: drained"))
}

// largestBody returns the maximum size of a request body for the admin API: largest, or if less, that part of the memory for
// bodies that API keys share. An eighth always fits for every key. A fifth, which is taken four times, fits for admin keys.
func (p *parts) largestBody(largest, part int64) int64 {
	if shared, _ := p.quotas.Shared(quotas.Memory); shared.Limit > 0 {
		largest = min(largest, shared.Limit/part)
	}
	return largest
}

// serveLoops starts the background loops of the services.
func (h *Host) serveLoops(ctx context.Context, run func(string, func() error)) {
	run("host addresses", func() error { return h.protection.Follow(ctx) })
	run("temporary entries of policies", func() error { return h.policies.KeepLeases(ctx) })
	run("attached boxes", func() error { h.lifecycle.Follow(ctx); return nil })
	run("record of the last run", func() error { return noteRun(ctx, h.parts.launcher.RunDir()) })
	run("connection table", func() error { return followConntrack(ctx, h.parts.log) })
	run("schedules", func() error { h.scheduled.Run(ctx); return nil })
	run("unused memory", func() error { share.ReturnUnused(ctx); return nil })
	run("boxes that are kept alive", func() error { return h.lifecycle.StartKept(ctx) })
	run("idle boxes", func() error { return h.idle.Run(ctx) })
	run("roots of boxes", func() error { h.usage.RenewRoots(ctx); return nil })
	run("audit trail", func() error { h.parts.trail.KeepHead(ctx); return nil })
	run("domains of public URLs", func() error { h.publicURLs.ProvePending(ctx); return nil })
	run("uses of API keys", func() error { h.keys.SaveUses(ctx); return nil })
	run("secrets of expired API keys", func() error { h.keySecrets.Expire(ctx); return nil })
	run("room on the disk", func() error {
		h.disk.Run(ctx)
		return nil
	})
	run("reviews of requests for access", func() error { return h.approvals.Serve(ctx) })
	run("quotas", func() error { h.quota.Run(ctx); return nil })
	if h.resources != nil {
		run("policies of the cluster", func() error { h.resources.Run(ctx); return nil })
	}
	if f := h.parts.fleet; f != nil {
		run("the fleet", func() error { f.Run(ctx); return nil })
		run("the fence of the fleet", func() error { h.followFence(ctx); return nil })
		run("boxes in the directory of the fleet", func() error { h.parts.peerAPI.names.Run(ctx); return nil })
		run("domains in the directory of the fleet", func() error { h.parts.peerAPI.domains.Run(ctx); return nil })
	}
	if o := h.parts.observed; o != nil {
		run("observations", func() error { o.Run(ctx); return nil })
	}
	run("history of policies", func() error {
		keep := max(h.parts.cfg.Log.History.Age(), h.parts.cfg.Log.Observations.Age())
		h.versions.Expire(ctx, keep, func(err error) {
			h.parts.log.Warn("the history of the policies of deleted boxes could not be removed", zap.Error(err))
		})
		return nil
	})
	run("metering", func() error { h.parts.meter.Run(ctx); return nil })
	run("sampling the use of boxes", func() error { h.parts.samples.Run(ctx); return nil })
	run("accounts of models", func() error { h.parts.models.Run(ctx); return nil })
	run("traffic of earlier processes", func() error { h.parts.traffic.follow(ctx); return nil })
	run("files of deleted boxes", func() error { h.parts.launcher.KeepTrashEmpty(ctx); return nil })
}

// serveEgress starts the servers that boxes are redirected to. DNS runs until answering is done, the others until ctx is.
func (h *Host) serveEgress(ctx, answering context.Context, run func(string, func() error)) {
	p := h.parts
	for _, ln := range p.listeners.Transparent {
		ln := tryable(ln)
		h.health.serving.add("proxy", ln, p.apart, func() (int, int) { return p.proxy.Held(ln), 0 })
		run("proxy", func() error { return p.proxy.ServeTransparent(ctx, ln) })
	}
	for _, ln := range p.listeners.Explicit {
		ln := tryable(ln)
		h.health.serving.add("explicit_proxy", ln, p.apart, func() (int, int) { return p.proxy.Held(ln), 0 })
		run("explicit proxy", func() error { return p.proxy.ServeExplicit(ctx, ln) })
	}
	for _, ln := range p.listeners.DNSTCP {
		ln := tryable(ln)
		h.health.serving.add("dns_tcp", ln, p.apart, func() (int, int) { return p.dns.OpenConns(ln), 0 })
		run("DNS over TCP", func() error { return p.dns.ServeTCP(answering, ln) })
	}
	for _, u := range h.parts.listeners.DNSUDP {
		run("DNS over UDP", func() error {
			pc, err := u.Serve()
			if err != nil {
				return err
			}
			return h.parts.dns.ServeUDP(answering, pc)
		})
	}
}

// serveKeyed serves HTTP to clients with API keys, and limits the connections of clients without one.
func (h *Host) serveKeyed(run func(string, func() error), name string, serve func(net.Listener) error, ln net.Listener) {
	tried := tryable(ln)
	keyed := h.parts.shares.Keyless(tried)
	keyed.Keyed = h.parts.keyed
	h.health.serving.add(name, tried, nil, func() (int, int) { return keyed.Held(), 0 })
	run(name, func() error { return h.arrivals.serve(serve, keyed) })
}

// serveURLs serves public URLs on a listener.
func (h *Host) serveURLs(run func(string, func() error), name string, ln net.Listener, serve func(net.Listener) error) {
	tried := tryable(ln)
	direct := socket.Listener{Listener: tried}
	h.health.serving.add(name, tried, nil, func() (int, int) { return h.parts.ingress.Held(direct) })
	run(name, func() error { return serve(direct) })
}

// serveFront starts the public URLs. Plain HTTP is served on loopback only; elsewhere it redirects.
func (h *Host) serveFront(run func(string, func() error)) {
	l := h.parts.listeners
	var httpsPort uint16
	if l.HTTPS != nil {
		httpsPort = listen.PortOf(l.HTTPS)
		h.serveURLs(run, "urls_https", l.HTTPS, h.parts.ingress.ServeTLS)
	}
	switch {
	case l.HTTP == nil:
	case l.HTTP.Addr().(*net.TCPAddr).IP.IsLoopback():
		h.serveURLs(run, "urls_http", l.HTTP, h.parts.ingress.ServePlain)
	case l.Redirects():
		var challenge ingress.Challenge
		if h.parts.acme != nil {
			challenge = h.parts.acme.Challenge
		}
		h.serveURLs(run, "redirects", l.HTTP, func(ln net.Listener) error { return h.parts.ingress.ServeRedirect(ln, httpsPort, challenge) })
	default:
		h.parts.log.Warn("ingress.http serves nothing: it is not on a loopback address and ingress.https is off")
	}
}

func (h *Host) metricsServer() *http.Server {
	return &http.Server{
		Handler: h.metricsHandler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: audit.ServerLog(h.parts.log, nil),
	}
}

// metricsHandler serves /metrics.
func (h *Host) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(h.parts.metrics, promhttp.HandlerOpts{}))
	return mux
}

// arrivalTime is how long a connected client may take to send its first request before the gateway stops.
const arrivalTime = time.Second

// arrivals tracks connections to HTTP servers that have not sent a request yet. A net/http server does not answer them
// after Shutdown, so clients that connected just before a restart would get an error; await gives them time to send their
// request. Safe for concurrent use.
type arrivals struct {
	serving sync.WaitGroup

	mu        sync.Mutex
	listeners []net.Listener
	ending    bool
	open      map[net.Conn]bool
	empty     chan struct{} // closed when open is empty; nil: no waiter
}

type arrivalKey struct{}

// track starts tracking the connections of servers. Call it after all their other fields are set.
func (a *arrivals) track(servers ...*http.Server) {
	for _, s := range servers {
		inner, innerState, handler := s.ConnContext, s.ConnState, s.Handler
		s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			a.add(c)
			if inner != nil {
				ctx = inner(ctx, c)
			}
			return context.WithValue(ctx, arrivalKey{}, c)
		}
		s.ConnState = func(c net.Conn, state http.ConnState) {
			if innerState != nil {
				innerState(c, state)
			}
			if state == http.StateClosed || state == http.StateHijacked {
				a.remove(c)
			}
		}
		s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c, ok := r.Context().Value(arrivalKey{}).(net.Conn); ok {
				a.remove(c)
			}
			handler.ServeHTTP(w, r)
		})
	}
}

// serve serves a listener with a function of a tracked server, such as [http.Server.Serve].
func (a *arrivals) serve(serve func(net.Listener) error, ln net.Listener) error {
	if !a.listen(ln) {
		return errors.Join(http.ErrServerClosed, ln.Close())
	}
	defer a.serving.Done()
	return serve(ln)
}

// listen reports false if the servers are about to shut down.
func (a *arrivals) listen(ln net.Listener) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending {
		return false
	}
	a.listeners = append(a.listeners, ln)
	a.serving.Add(1)
	return true
}

// await drains the listeners and waits until every connected client has sent its first request, for arrivalTime at most.
// Call it before shutting down the servers.
func (a *arrivals) await(ctx context.Context) {
	a.mu.Lock()
	a.ending = true
	for _, ln := range a.listeners {
		socket.Drain(ln)
	}
	a.mu.Unlock()
	a.serving.Wait() // afterwards all accepted connections are in open
	a.mu.Lock()
	none := make(chan struct{})
	if a.empty = none; len(a.open) == 0 {
		close(none)
		a.empty = nil
	}
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, arrivalTime)
	defer cancel()
	select {
	case <-none:
	case <-ctx.Done():
	}
}

func (a *arrivals) add(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = map[net.Conn]bool{}
	}
	a.open[c] = true
}

func (a *arrivals) remove(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, c)
	if len(a.open) == 0 && a.empty != nil {
		close(a.empty)
		a.empty = nil
	}
}
