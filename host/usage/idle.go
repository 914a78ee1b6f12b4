package usage

import (
	"context"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/firewall"
	"boxgate/host/handover"
	"boxgate/host/state"
	"boxgate/internal/required"
	"boxgate/policy"
)

// IdlePauserConfig has the parts of a [IdlePauser].
type IdlePauserConfig struct {
	After  time.Duration // 0: never
	Log    *zap.Logger
	Usage  *Service
	Audit  *audit.Log
	Before *handover.Predecessor `required:"false"`
	// Traffic returns what has passed in the connections of boxes that the kernel knows.
	Traffic func(context.Context) (map[policy.BoxID]map[firewall.Flow]firewall.Passed, error)
	// Passing are the box's ends of the connections through the proxy on which bytes may pass now.
	Passing func(policy.BoxID) map[netip.AddrPort]bool
}

// IdlePauser pauses boxes that have been idle for a time.
type IdlePauser struct {
	after   time.Duration
	log     *zap.Logger
	usage   *Service
	audit   *audit.Log
	before  *handover.Predecessor
	traffic func(context.Context) (map[policy.BoxID]map[firewall.Flow]firewall.Passed, error)
	passing func(policy.BoxID) map[netip.AddrPort]bool

	passed map[policy.BoxID]map[firewall.Flow]firewall.Passed // at the last look, in the boxes looked at
}

// NewIdlePauser makes one; it pauses nothing before [IdlePauser.Run].
func NewIdlePauser(c IdlePauserConfig) (*IdlePauser, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &IdlePauser{after: c.After, log: c.Log, usage: c.Usage, audit: c.Audit, before: c.Before, traffic: c.Traffic, passing: c.Passing}, nil
}

// Run looks for idle boxes until ctx ends.
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
			p.look(ctx)
		}
	}
}

// look pauses the boxes that nobody has used for the time, and that have neither sent nor received anything.
func (p *IdlePauser) look(ctx context.Context) {
	if p.before.Drains() {
		return // who uses the boxes there is not known
	}
	since := time.Now().Add(-p.after)
	var quiet []*state.Box
	for _, b := range p.usage.boxes.All() {
		if v := b.Shown.Load(); v.Status == api.StatusIdle && !v.KeepAlive && b.Attached == nil && b.Gate.Users() == 0 {
			quiet = append(quiet, b)
		}
	}
	if len(quiet) == 0 {
		p.passed = nil
		return
	}
	if err := p.noteTraffic(ctx, quiet); err != nil {
		p.log.Error("no idle box is paused: what the boxes send is not known", zap.Error(err))
		return
	}
	for _, b := range quiet {
		if b.Gate.Idle(since) && ctx.Err() == nil {
			p.usage.pauseIdle(ctx, b, since)
		}
	}
}

// noteTraffic counts as use what has passed since the last look in those connections of boxes that their policies let pass: what a
// box sends to the proxy for a connection or a request that is refused, or that is not known yet, is no use. A connection that the
// box is looked at with for the first time is compared with nothing.
func (p *IdlePauser) noteTraffic(ctx context.Context, quiet []*state.Box) error {
	now := time.Now()
	flows, err := p.traffic(ctx)
	if err != nil {
		return err
	}
	passed := map[policy.BoxID]map[firewall.Flow]firewall.Passed{}
	for _, b := range quiet {
		if before, known := p.passed[b.ID]; known && moved(before, flows[b.ID], p.passing(b.ID)) {
			b.Gate.Touch(now)
		}
		if passed[b.ID] = flows[b.ID]; passed[b.ID] == nil {
			passed[b.ID] = map[firewall.Flow]firewall.Passed{}
		}
		p.noteEvents(b)
	}
	p.passed = passed
	return nil
}

// moved reports whether bytes have passed in a connection that the kernel forwards, or that the proxy lets pass.
func moved(before, now map[firewall.Flow]firewall.Passed, proxied map[netip.AddrPort]bool) bool {
	for flow, passed := range now {
		if passed.Bytes > before[flow].Bytes && (passed.Forwarded || proxied[flow.Src]) {
			return true
		}
	}
	return false
}

// noteEvents counts as use what a box has sent in connections and requests that are over. Of an intercepted connection the requests
// count.
func (p *IdlePauser) noteEvents(b *state.Box) {
	for _, e := range p.audit.Recent(audit.Filter{Box: b.ID}) {
		sent := e.Stage == policy.StageHTTP || e.BytesOut > 0 && e.Action != audit.ActionIntercept // of a request, only the body is counted
		if sent && e.Verdict == policy.Allow && e.Stage != policy.StageDNS && e.Stage != policy.StageURL {
			b.Gate.Touch(e.Time.Add(e.Duration))
		}
	}
}

// pauseIdle pauses a box unless somebody has begun to use it. From when its gate closes until it is awake again, whoever uses it
// waits.
func (u *Service) pauseIdle(ctx context.Context, b *state.Box, since time.Time) {
	if !b.TryLock() {
		return // it is being changed
	}
	defer b.Unlock()
	if u.boxes.Lent.Load() || b.Deleted || b.Moving != nil || b.Status != api.StatusIdle || !b.Gate.CloseIdle(since) {
		return
	}
	if err := u.pause(ctx, b); err != nil {
		b.Gate.Touch(time.Now()) // a box that cannot be paused holds the others up each time
		return
	}
	u.log.Info("an idle box is paused", zap.String("box", string(b.ID)))
}
