package usage

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/firewall"
	"boxgate/host/boxdial"
	"boxgate/host/handover"
	"boxgate/host/state"
	"boxgate/ingress"
	"boxgate/internal/required"
	"boxgate/policy"
)

// IdlePauserConfig configures an [IdlePauser].
type IdlePauserConfig struct {
	After  time.Duration // 0: disabled
	Log    *zap.Logger
	Usage  *Service
	Audit  *audit.Log
	Before *handover.Predecessor `required:"false"`
	// Traffic returns the byte counts of boxes' connections that the kernel tracks.
	Traffic func(context.Context) (map[policy.BoxID]map[firewall.Flow]firewall.Traffic, error)
	// Passing returns the box's endpoints of proxied connections that are allowed to transfer bytes.
	Passing func(policy.BoxID) map[netip.AddrPort]bool
}

// IdlePauser pauses boxes that have been idle for some time.
type IdlePauser struct {
	after   time.Duration
	log     *zap.Logger
	usage   *Service
	audit   *audit.Log
	before  *handover.Predecessor
	traffic func(context.Context) (map[policy.BoxID]map[firewall.Flow]firewall.Traffic, error)
	passing func(policy.BoxID) map[netip.AddrPort]bool

	lastTraffic map[policy.BoxID]map[firewall.Flow]firewall.Traffic // byte counts at the last look, of the boxes checked then
}

// NewIdlePauser returns an IdlePauser; [IdlePauser.Run] starts it.
func NewIdlePauser(c IdlePauserConfig) (*IdlePauser, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &IdlePauser{after: c.After, log: c.Log, usage: c.Usage, audit: c.Audit, before: c.Before, traffic: c.Traffic, passing: c.Passing}, nil
}

// Run pauses idle boxes until ctx is done.
func (p *IdlePauser) Run(ctx context.Context) error {
	if p.after == 0 {
		return nil
	}
	tick := time.NewTicker(min(max(p.after/8, 10*time.Millisecond), time.Minute))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			p.pauseIdleBoxes(ctx)
		}
	}
}

// pauseIdleBoxes pauses the boxes that were not used and had no traffic for the configured time.
func (p *IdlePauser) pauseIdleBoxes(ctx context.Context) {
	if p.before.Drains() {
		return // users of boxes through the predecessor are unknown
	}
	since := time.Now().Add(-p.after)
	var quiet []*state.Box
	for _, b := range p.usage.boxes.All() {
		if v := b.Shown.Load(); v.Status == api.StatusIdle && !v.KeepAlive && b.Attached == nil && b.Gate.Users() == 0 {
			quiet = append(quiet, b)
		}
	}
	if len(quiet) == 0 {
		p.lastTraffic = nil
		return
	}
	if err := p.noteTraffic(ctx, quiet); err != nil {
		p.log.Error("idle boxes are not paused: the traffic of boxes could not be read", zap.Error(err))
		return
	}
	for _, b := range quiet {
		if b.Gate.Idle(since) && ctx.Err() == nil {
			p.usage.pauseIdle(ctx, b, since)
		}
	}
}

// noteTraffic counts traffic since the last look as use, but only in connections that the policies allow: bytes that a
// box sends to the proxy for a refused or undecided connection or request do not count. Boxes without a previous look are
// not compared.
func (p *IdlePauser) noteTraffic(ctx context.Context, quiet []*state.Box) error {
	now := time.Now()
	flows, err := p.traffic(ctx)
	if err != nil {
		return err
	}
	passed := map[policy.BoxID]map[firewall.Flow]firewall.Traffic{}
	for _, b := range quiet {
		if before, known := p.lastTraffic[b.ID]; known && moved(before, flows[b.ID], p.passing(b.ID)) {
			b.Gate.Touch(now)
		}
		if passed[b.ID] = flows[b.ID]; passed[b.ID] == nil {
			passed[b.ID] = map[firewall.Flow]firewall.Traffic{}
		}
		p.noteEvents(b)
	}
	p.lastTraffic = passed
	return nil
}

// moved reports whether bytes have passed in a forwarded connection, or in one that the proxy allows.
func moved(before, now map[firewall.Flow]firewall.Traffic, proxied map[netip.AddrPort]bool) bool {
	for flow, passed := range now {
		if passed.Bytes > before[flow].Bytes && (passed.Forwarded || proxied[flow.Src]) {
			return true
		}
	}
	return false
}

// noteEvents counts finished connections and requests of a box as use. For an intercepted connection, its requests count.
func (p *IdlePauser) noteEvents(b *state.Box) {
	for _, e := range p.audit.Recent(audit.Filter{Box: b.ID}) {
		sent := e.Stage == policy.StageHTTP || e.BytesOut > 0 && e.Action != audit.ActionIntercept // BytesOut of a request counts only its body
		if sent && e.Verdict == policy.Allow && e.Stage != policy.StageDNS && e.Stage != policy.StageURL {
			b.Gate.Touch(e.Time.Add(e.Duration))
		}
	}
}

// pauseIdle pauses a box unless it has come into use. New users wait from when its gate closes until it is awake again.
func (u *Service) pauseIdle(ctx context.Context, b *state.Box, since time.Time) {
	if !b.TryLock() {
		return // it is being changed
	}
	defer b.Unlock()
	if u.boxes.HandedOver.Load() || b.Deleted || b.StateChange != nil || b.Status != api.StatusIdle || !b.Gate.CloseIdle(since) {
		return
	}
	if err := u.pause(ctx, b); err != nil {
		b.Gate.Touch(time.Now()) // avoids that users wait for a failing pause at every look
		return
	}
	u.log.Info("an idle box is paused", zap.String("box", string(b.ID)))
}

// Visits wakes boxes for their public URLs. It implements [boxgate/ingress.Boxes].
type Visits struct {
	boxes *state.Table
	reach *boxdial.Boxes
	wake  func(context.Context, policy.BoxID) error
}

// NewVisits returns a Visits. wake wakes a box.
func NewVisits(boxes *state.Table, r *boxdial.Boxes, wake func(context.Context, policy.BoxID) error) *Visits {
	return &Visits{boxes, r, wake}
}

// Enter implements [boxgate/ingress.Boxes]. It admits visitors of unknown boxes, for which dialling fails later.
func (v *Visits) Enter(id policy.BoxID, port uint16) bool {
	b, err := v.boxes.Find(id)
	return err != nil || !b.Spent.Load() && (b.Gate.Visit(port) || b.Attached != nil)
}

// Leave implements [boxgate/ingress.Boxes].
func (v *Visits) Leave(id policy.BoxID) {
	if b, err := v.boxes.Find(id); err == nil {
		b.Gate.Depart()
	}
}

// Moved implements [boxgate/ingress.Boxes].
func (v *Visits) Moved(id policy.BoxID, byVisitor bool) {
	b, err := v.boxes.Find(id)
	if err != nil {
		return
	}
	b.Gate.Touch(time.Now())
	if byVisitor && !b.Gate.IsOpen() && b.Attached == nil && b.Waking.CompareAndSwap(false, true) {
		go func() {
			defer b.Waking.Store(false)
			_ = v.wake(context.Background(), id)
		}()
	}
}

// Wake implements [boxgate/ingress.Boxes].
func (v *Visits) Wake(ctx context.Context, id policy.BoxID, port uint16) error {
	b, err := v.boxes.Find(id)
	if err == nil && b.Spent.Load() {
		return ingress.ErrSpent
	}
	used := v.wake(ctx, id)
	if err != nil {
		b, err = v.boxes.Find(id)
	}
	if errors.Is(used, errAtEnd) {
		return fmt.Errorf("%w: %w", ingress.ErrEnded, used)
	}
	if used != nil {
		if err == nil && b.Shown.Load().Status == api.StatusError {
			used = fmt.Errorf("%w: %w", ingress.ErrDown, used)
		}
		return used
	}
	if err != nil {
		return err
	}
	for b.Gate.Starting(time.Now(), port) {
		conn, err := v.reach.Dial(ctx, id, netip.AddrPortFrom(b.V4, port))
		if err == nil {
			b.Gate.Listening(port)
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(listenInterval):
		}
	}
	return nil
}

// listenInterval is the interval at which a port of a newly started box is probed.
const listenInterval = 50 * time.Millisecond
