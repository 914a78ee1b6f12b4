package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"boxgate/config"
	"boxgate/host/change"
	"boxgate/host/handover"
	"boxgate/host/listen"
	"boxgate/host/state"
	"boxgate/host/systemd"
	"boxgate/internal/fault"
	"boxgate/policy"
	"boxgate/policy/dialect"
	"boxgate/proxy"
	"boxgate/store"
)

// Start starts a successor process with one end of a socket pair, which it closes. The program is the installed one, or
// this process's own if ownProgram is set.
type Start func(theirs *os.File, ownProgram bool) (*os.Process, error)

// succession is the replacement of this process by another.
type succession struct {
	mu          sync.Mutex    // serialises replacements
	handedOver  bool          // the store and the kernel rules were released to another process; guarded by mu
	replaced    chan struct{} // closed when the successor serves
	failed      chan error    // receives one error, after which this process cannot continue
	orders      *handover.Conn
	ordersEnded chan struct{} // closed when the successor's orders have ended

	stopLeases func() // set while handedOver; guarded by mu

	stopping atomic.Bool // this process was asked to stop
}

func newSuccession() *succession {
	return &succession{replaced: make(chan struct{}), failed: make(chan error, 1), ordersEnded: make(chan struct{})}
}

// Control handles a command on the control socket, such as reload or upgrade, and returns the answer.
type Control func(ctx context.Context, word string) (any, error)

// Time limits of the phases of a replacement.
const (
	prepareTimeout = 2 * time.Minute  // the new process's checks
	changesTimeout = 30 * time.Second // running changes
	servingTimeout = 2 * time.Minute  // recovery of the boxes
)

// Replace replaces this process by a successor. It returns the successor's process ID once that serves; then this process
// drains its connections. On an error this gateway continues, or a new process of its own program serves.
func (h *Host) Replace(ctx context.Context, start Start) (pid int, err error) {
	s := h.succession
	if !s.mu.TryLock() {
		return 0, errors.New("the gateway is being replaced already")
	}
	defer s.mu.Unlock()
	if s.handedOver {
		return 0, errors.New("this process has been replaced already: ask the one that serves")
	}
	var next *successor
	err = change.Contain(h.parts.log, func() (err error) { next, err = h.prepare(ctx, start, false); return err })
	if err != nil {
		return 0, fmt.Errorf("the new gateway does not start, and this one goes on: %w", err)
	}
	err = change.Contain(h.parts.log, func() error { return h.releaseExclusive(ctx) })
	if err != nil && !s.handedOver {
		next.kill()
		return 0, fmt.Errorf("this gateway goes on: %w", err)
	}
	if err == nil {
		err = next.handOver(h.protection.Own())
	}
	if err == nil && !s.stopping.Load() {
		return h.retireContained(next)
	}
	next.kill()
	if s.stopping.Load() { // systemd would not accept the successor now
		return 0, errors.Join(errors.New("the gateway is being stopped"), err)
	}
	h.parts.log.Error("the new gateway failed; starting the previous program again", zap.Error(err))
	if again := change.Contain(h.parts.log, func() error { return h.restartOwnProgram(ctx, start) }); again != nil {
		s.failed <- errors.Join(err, again)
		return 0, errors.Join(err, again)
	}
	return 0, fmt.Errorf("the new gateway failed; the previous program serves again: %w", err)
}

// restartOwnProgram replaces this process by a new one with the same program and configuration.
func (h *Host) restartOwnProgram(ctx context.Context, start Start) error {
	if err := h.stopExclusive(); err != nil {
		h.parts.log.Warn("some resources for the next process could not be released", zap.Error(err))
	}
	file := filepath.Join(h.parts.cfg.StateDir, store.FileName)
	if err := os.Rename(file+backupSuffix, file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("restoring the store: %w", err)
	}
	next, err := h.prepare(ctx, start, true)
	if err != nil {
		return err
	}
	if err := next.handOver(h.protection.Own()); err != nil {
		next.kill()
		return err
	}
	_, err = h.retireContained(next)
	return err
}

// retireContained is retire with panics converted to errors. After one this process cannot continue, because the successor
// serves.
func (h *Host) retireContained(next *successor) (pid int, err error) {
	if err = change.Contain(h.parts.log, func() error { pid = h.retire(next); return nil }); err != nil {
		h.succession.failed <- err
	}
	return pid, err
}

// successor is a process that is about to replace this one.
type successor struct {
	conn    *handover.Conn
	process *os.Process
}

func (n *successor) kill() {
	_ = n.conn.Close()
	_ = n.process.Kill()
	_, _ = n.process.Wait()
}

// prepare starts a successor and waits until its checks have passed.
func (h *Host) prepare(ctx context.Context, start Start, ownProgram bool) (*successor, error) {
	if err := fault.At(ctx, "replace: begun"); err != nil {
		return nil, err
	}
	conn, theirs, err := handover.Pair()
	if err != nil {
		return nil, err
	}
	process, err := start(theirs, ownProgram)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	n := &successor{conn, process}
	hello := handover.Hello{Fixed: listen.Fixed(h.parts.cfg), Policies: policiesOf(h.parts.cfg), Traffic: true}
	if ownProgram {
		hello.Config, hello.Own = h.options.Text, true
	}
	_ = conn.SetDeadline(time.Now().Add(prepareTimeout))
	if err = h.parts.listeners.Pass(conn, hello); err == nil {
		err = conn.Expect(handover.Prepared)
	}
	if err == nil {
		err = fault.At(ctx, "replace: successor prepared")
	}
	if err != nil {
		n.kill()
		return nil, err
	}
	return n, nil
}

// handOver hands the resources that only one process can hold to the successor, with the addresses protected here, and
// returns once the successor serves.
func (n *successor) handOver(protected []netip.Prefix) error {
	_ = n.conn.SetDeadline(time.Now().Add(servingTimeout))
	if err := n.conn.Send(handover.Message{Kind: handover.Yours, Protected: protected}); err != nil {
		return err
	}
	return n.conn.Expect(handover.Serving)
}

// backupSuffix is the suffix of the copy of the store made before a successor opens it.
const backupSuffix = ".before"

// releaseExclusive releases the resources that only one process can hold: it holds back changes, stops the background loops, detaches
// from the kernel rules, which stay, and closes the store. DNS, the proxy and public URLs continue with the current
// policies. After handedOver is set, an error can only be recovered from by starting another process.
func (h *Host) releaseExclusive(ctx context.Context) error {
	quiet, cancel := context.WithTimeout(ctx, changesTimeout)
	defer cancel()
	if err := h.turn.holdRequests(quiet); err != nil {
		return errBusy
	}
	h.parts.boxes.HandedOver.Store(true)
	for _, b := range h.parts.boxes.All() { // complete changes that have begun; new ones are refused
		b.Lock()
		_ = b.AwaitStateChange(quiet)
		b.Unlock()
	}
	if quiet.Err() != nil {
		h.parts.boxes.HandedOver.Store(false)
		h.turn.decide(false)
		return errBusy
	}
	h.succession.handedOver = true
	err := errors.Join(fault.At(ctx, "replace: nothing changes"), h.stopExclusive())
	file := filepath.Join(h.parts.cfg.StateDir, store.FileName)
	return errors.Join(err, copyFile(file, file+backupSuffix), fault.At(ctx, "replace: let go"))
}

// errBusy refuses a replacement during a long change.
var errBusy = errors.New("a change of a box is taking long; try again when it has finished")

// stopExclusive stops everything that only one process can do. It may be called again after a failure.
func (h *Host) stopExclusive() error {
	h.loops.stop()
	h.parts.traffic.stopCounting(h.parts.boxes.IDs())
	h.endLeasesWhileDraining()
	h.approvals.Release()
	h.usage.Close()
	h.parts.secrets.StopRefreshing()
	errs := []error{h.parts.models.Release(), h.parts.firewall.Close(), h.parts.trail.Log().Release()}
	if h.parts.past != nil {
		_ = h.parts.historyLines.Sync() // lost lines are counted
		errs = append(errs, h.parts.past.Release())
	}
	if h.parts.observed != nil {
		errs = append(errs, h.parts.observed.Close())
	}
	return errors.Join(append(errs, h.parts.store.Close())...)
}

// endLeasesWhileDraining ends temporary entries of policies on time until the successor serves.
func (h *Host) endLeasesWhileDraining() {
	s := h.succession
	if s.stopLeases != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		_ = change.Contain(h.parts.log, func() error { h.policies.EndLeasesWhileDraining(ctx); return nil })
	})
	s.stopLeases = func() {
		cancel()
		running.Wait()
	}
}

// copyFile copies a file atomically, readable by its owner only.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	part := to + ".part"
	out, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Sync(), out.Close()); err == nil {
		err = os.Rename(part, to)
	}
	if err != nil {
		_ = os.Remove(part)
	}
	return err
}

// retire stops accepting connections and queries, which the successor now serves, and leaves draining to [Host.Serve]. It
// returns the successor's process ID.
func (h *Host) retire(next *successor) (pid int) {
	s := h.succession
	h.parts.listeners.LeaveToSuccessor()
	h.health.serving.stopChecks()
	var all sync.WaitGroup
	for _, stop := range []func(){h.parts.dns.Retire, h.parts.proxy.Retire, h.parts.ingress.Retire, h.parts.remote.Retire, h.parts.ssh.Retire} {
		all.Go(stop)
	}
	all.Wait()
	h.parts.listeners.CloseQuietly()
	_ = os.Remove(filepath.Join(h.parts.cfg.StateDir, store.FileName) + backupSuffix)
	if err := systemd.Notify(fmt.Sprintf("MAINPID=%d", next.process.Pid)); err != nil {
		h.parts.log.Warn("systemd could not be notified of the new process", zap.Error(err))
	}
	pid = next.process.Pid
	_ = next.process.Release()
	_ = next.conn.SetDeadline(time.Time{})
	s.orders = next.conn
	h.turn.decide(true)
	h.approvals.Retire()
	s.stopLeases()
	fault.Mark(context.Background(), "replace: retired")
	err := next.conn.Send(handover.Message{Kind: handover.Stopped})
	close(s.replaced)
	h.parts.log.Info("another process serves; this one drains its connections", zap.Int("successor", pid),
		zap.Int("connections", h.parts.proxy.Open()), zap.Duration("drain", h.parts.cfg.Drain))
	go h.followOrders(err)
	return pid
}

// followOrders applies the successor's orders until the channel closes, then cuts every remaining connection.
func (h *Host) followOrders(err error) {
	defer close(h.succession.ordersEnded)
	for err == nil {
		var m handover.Message
		if m, err = h.succession.orders.Receive(); err == nil {
			done := handover.Message{Kind: handover.Done}
			if m.Kind == handover.Traffic {
				done.Traffic = h.parts.traffic.drained(h.parts.boxes.IDs())
			} else {
				h.executeOrder(m)
				h.parts.before.SendOrder(m) // a predecessor of this process may also still be draining, and has no other source of orders
			}
			err = h.succession.orders.Send(done)
		}
	}
}

// executeOrder executes one order of the successor. An unknown order cuts everything.
func (h *Host) executeOrder(m handover.Message) {
	switch m.Kind {
	case handover.Cut:
		h.cutBox(m.Box)
	case handover.Policy:
		h.applyPolicy(m)
	case handover.URL:
		h.parts.urlTable.RemoveID(m.URL)
		h.parts.ingress.CloseURL(m.URL)
	case handover.URLs:
		h.parts.urlTable.RemoveBox(m.Box)
		h.parts.ingress.CloseBox(m.Box)
	case handover.Secret:
		h.parts.secrets.Forget(m.Secret)
		h.parts.keySecrets.Forget(m.Secret)
		h.parts.proxy.Revoke(m.Secret)
	case handover.Keys:
		h.turn.forgetKey(m.APIKey)
		h.parts.ssh.Recheck()
	default:
		for _, b := range h.parts.boxes.All() {
			h.cutBox(b.ID)
			h.parts.urlTable.RemoveBox(b.ID)
			h.parts.ingress.CloseBox(b.ID)
		}
	}
}

// cutBox cuts a box's connections in this process and removes its policy.
func (h *Host) cutBox(id policy.BoxID) {
	if b, err := h.parts.boxes.Find(id); err == nil {
		b.Policy.Store(nil)
	}
	h.parts.proxy.CloseBox(id)
	h.parts.remote.Cut(id)
	h.parts.ssh.CloseBox(id)
}

// applyPolicy applies a box's new policy to its connections in this process. If this program cannot parse the policy, the
// connections are cut.
func (h *Host) applyPolicy(m handover.Message) {
	b, err := h.parts.boxes.Find(m.Box)
	if err != nil || b.Policy.Load() == nil {
		h.cutBox(m.Box)
		return
	}
	spec, err := dialect.ParseSpec(m.Spec)
	if err != nil {
		h.cutBox(m.Box)
		return
	}
	next, err := h.parts.shared.CompileSpec(b, spec, m.Version) // spec includes the running leases
	if err != nil {
		h.cutBox(m.Box)
		return
	}
	b.Policy.Store(next)
	h.parts.proxy.Recheck(m.Box)
}

// idleGrace is how long visitors may take to send the next request on an open connection.
const idleGrace = 10 * time.Second

// drainReplaced waits for open connections to end, for the configured time at most. When the successor's orders end, the
// rest is cut.
func (h *Host) drainReplaced(ctx context.Context, finish func(context.Context) error) error {
	drain, cancel := context.WithTimeout(ctx, h.parts.cfg.Drain)
	defer cancel()
	go func() {
		select {
		case <-h.succession.ordersEnded:
			cancel()
		case <-drain.Done():
		}
	}()
	var ends errgroup.Group
	ends.Go(func() error { return h.parts.proxy.Shutdown(drain) })
	ends.Go(func() error { return h.turn.awaitRequests(drain) })
	ends.Go(func() error {
		select {
		case <-time.After(idleGrace):
		case <-drain.Done():
		}
		return h.parts.ingress.Shutdown(drain)
	})
	ends.Go(func() error { return h.parts.before.Wait(drain) })
	err := errors.Join(ends.Wait(), finish(drain))
	_ = h.succession.orders.Close()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		h.parts.log.Warn("the remaining connections were cut")
		return nil
	}
	return err
}

// relieve makes the predecessor stop accepting. It cuts the predecessor's connections of boxes that are disconnected here
// or have used up their quotas, and the visitors of the latter. If systemd may still regard the predecessor as the main
// process, this process ends: systemd would start another gateway, which could not run next to it.
func (h *Host) relieve() {
	if err := relieve(h.parts.before, h.parts.listeners.DNSUDP, h.parts.cfg, h.protection.Own(), h.parts.log); err != nil && systemd.Supervised() {
		h.succession.failed <- fmt.Errorf("the replaced gateway has not notified systemd of this process: %w", err)
	}
	for _, b := range h.parts.boxes.All() {
		if b.Policy.Load() == nil || b.Spent.Load() {
			h.parts.before.SendOrder(handover.Message{Kind: handover.Cut, Box: b.ID})
		}
		if b.Spent.Load() {
			h.parts.before.SendOrder(handover.Message{Kind: handover.URLs, Box: b.ID})
		}
	}
}

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
	if b.before != nil {
		b.before.SendOrder(b.order(id))
	}
}

// order returns the order to the predecessor after a change of a box. A policy that is more than a document, with denials that no allowed
// entry lifts, would lose them on the way: then the connections of the box are cut.
func (b withPredecessor) order(id policy.BoxID) handover.Message {
	order := handover.Message{Kind: handover.Cut, Box: id}
	if known, err := b.boxes.Find(id); b.before.OnlyPolicy(id) && err == nil {
		if c := known.Policy.Load(); c != nil && c.Spec().IsDocument() {
			if spec, err := json.Marshal(c.Spec()); err == nil {
				order.Kind, order.Spec, order.Version = handover.Policy, spec, c.Version()
			}
		}
	}
	return order
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
