package selftest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"boxgate/audit"
	"boxgate/policy"
)

// Config is what [Run] needs to know of the box and the host. Every field is needed but HostAddrs, HostPorts and DenyPage.
type Config struct {
	Box    policy.BoxID
	V4, V6 netip.Addr
	NetNS  string // path of the box's network namespace
	Policy *policy.Compiled

	GatewayV4, GatewayV6 netip.Addr
	SinkV4, SinkV6       netip.Addr
	ExplicitPort         uint16       // of the explicit proxy on the gateway's addresses
	HostAddrs            []netip.Addr // of the host, not loopback and not the gateway's own
	HostPorts            []Port       // on which the gateway serves others than boxes
	AnotherV4, AnotherV6 netip.Addr   // another box's, or of the pool and nobody's
	DenyPage             bool         // refusals over TLS come as a page
	GuestStack           bool         // the box is known to have a network stack of its own

	// Events delivers the decisions about the box from now on until ctx ends.
	Events func(ctx context.Context) <-chan audit.Event
	// Expect is told of the denials to come before they do. It has them marked until end is called. nil: nobody is told.
	Expect func([]audit.Expected) (end func())
	// Command is how this program is started to call [Probe], as somebody who may not read its directory.
	Command []string

	// link is the box's interface on the host, and mac the address of its other end. Run finds them.
	link int
	mac  []byte
}

// Port is a port of the gateway that no box may reach.
type Port struct {
	Name string // such as "admin API"
	Port uint16
}

// Limits of a run.
const (
	maxHostAddrs = 3                      // of each family: a host may have hundreds
	eventWait    = 3 * time.Second        // for decisions that are counted before they are logged
	loggedAtOnce = 15                     // the kernel logs bursts of 20 of each reason
	loggedEvery  = 130 * time.Millisecond // and then 10 a second
	settle       = 100 * time.Millisecond // for packets still on their way
	tokenDigits  = 4                      // hexadecimal digits of an attack's number
)

// Run tries everything and returns the card. It takes some seconds. An error means that there is no card: the run could
// not begin or not end. What could not be tried of a run is in the card.
func Run(ctx context.Context, cfg Config) (Card, error) {
	card := Card{Mode: cfg.Policy.Spec().Mode, Version: cfg.Policy.Version(), Started: time.Now()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := cfg.findLink(); err != nil {
		return card, err
	}
	if err := cfg.checkStack(); err != nil {
		return card, err
	}
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails (crypto/rand)
	prefix := []byte("bgst" + hex.EncodeToString(random))

	b := &builder{cfg: &cfg, token: func(id int) []byte { return fmt.Appendf(nil, "%s%0*x", prefix, tokenDigits, id) }}
	defer b.closeCanaries()
	if err := b.build(prefix); err != nil {
		return card, err
	}
	w, err := openWire(cfg.link, prefix, b.watched())
	if err != nil {
		return card, err
	}
	log := follow(cfg.Events(ctx))
	if cfg.Expect != nil {
		defer cfg.Expect(b.expected())()
	}
	answers, runErr := b.perform(ctx)
	if runErr == nil {
		log.await(ctx, b.attacks, eventWait)
		sleep(ctx, settle)
	}
	sightings, missed, err := w.close()
	if err := errors.Join(runErr, err, ctx.Err()); err != nil {
		return card, err
	}
	j := judge{answers: answers, sightings: sightings, missed: missed, logged: log.claims(b.attacks)}
	for _, a := range b.attacks {
		card.Lines = append(card.Lines, j.line(a))
	}
	card.Duration = time.Since(card.Started)
	return card, nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// findLink finds the interface behind which the box's addresses are.
func (c *Config) findLink() error {
	routes, err := netlink.RouteGet(c.V4.AsSlice())
	if err != nil {
		return fmt.Errorf("the host has no route to the box: %w", err)
	}
	if len(routes) == 0 {
		return errors.New("the host has no route to the box")
	}
	c.link = routes[0].LinkIndex
	neighbours, err := netlink.NeighList(c.link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("the host's neighbours: %w", err)
	}
	for _, n := range neighbours {
		if a, _ := netip.AddrFromSlice(n.IP); a.Unmap() == c.V4 {
			c.mac = n.HardwareAddr
		}
	}
	if len(c.mac) != 6 {
		return errors.New("the box is no neighbour of the host")
	}
	return nil
}

// neighbours says whether the host believes that another's address is where the box is.
func (c *Config) neighbours(s *side) (string, bool) {
	all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return "the neighbour table cannot be read", true
	}
	for _, n := range all {
		a, _ := netip.AddrFromSlice(n.IP)
		claimed := a.Unmap() == s.another || a.Unmap() == s.gateway
		if claimed && string(n.HardwareAddr) == string(c.mac) {
			return "the host BELIEVES that " + a.String() + " is the box", true
		}
	}
	return "no entry was made", false
}

// build makes the list of attacks.
func (b *builder) build(prefix []byte) error {
	c := b.cfg
	stranger4, stranger6 := strangers("8.8.8.0/24"), strangers("2001:4860:4860::/64")
	b.sides = []*side{
		{family: "ipv4", box: c.V4, gateway: c.GatewayV4, sink: c.SinkV4, another: c.AnotherV4,
			loopback: netip.AddrFrom4([4]byte{127, 0, 0, 1}), stranger: stranger4},
		{family: "ipv6", box: c.V6, gateway: c.GatewayV6, sink: c.SinkV6, another: c.AnotherV6,
			loopback: netip.IPv6Loopback(), stranger: stranger6},
	}
	for _, s := range b.sides {
		for _, a := range c.HostAddrs {
			if a.Is4() == s.box.Is4() && len(s.host) < maxHostAddrs {
				s.host = append(s.host, a)
			}
		}
		for _, at := range append([]netip.Addr{s.gateway, s.loopback}, s.host...) {
			trap, err := openCanary(at, prefix, c.V4, c.V6)
			if err != nil {
				return err
			}
			s.canaries = append(s.canaries, trap)
		}
		for _, group := range []func(*side){
			b.specialAddresses, b.ownHost, b.otherBoxes, b.forgedSources, b.oddPackets, b.otherAddresses, b.names,
			b.queries, b.explicit,
		} {
			group(s)
		}
	}
	b.pace()
	return nil
}

// strangers are addresses of a network that answers to few of its addresses and that everybody may send to: that of a
// public resolver. Each is given out once.
func strangers(network string) func() netip.Addr {
	p := netip.MustParsePrefix(network)
	given := map[netip.Addr]bool{}
	return func() netip.Addr {
		for {
			a := randomIn(p)
			last := a.AsSlice()[a.BitLen()/8-1]
			if last >= 16 && last < 248 && !given[a] { // the servers have the low ones
				given[a] = true
				return a
			}
		}
	}
}

// pace spreads what is refused for the same reason over time, so that the kernel logs each one.
func (b *builder) pace() {
	count := map[policy.Reason]int{}
	for _, a := range b.attacks {
		if a.Verdict == Skipped || len(a.reasons) == 0 {
			continue
		}
		n := count[a.reasons[0]]
		count[a.reasons[0]] += max(1, len(a.task.Data)) // frames are packets
		if a.task.Kind != asFrame {
			count[a.reasons[0]] = n + 1
		}
		a.task.After = time.Duration(max(0, n-loggedAtOnce)) * loggedEvery
	}
}

// expected are the denials that the attacks cause if all is well: one each, or one for each packet.
func (b *builder) expected() []audit.Expected {
	var out []audit.Expected
	for _, a := range b.attacks {
		if a.Verdict == Skipped || a.about == nil {
			continue
		}
		events := 1
		if a.task.Kind == asFrame {
			events = max(1, len(a.task.Data))
		}
		out = append(out, audit.Expected{Count: events, Match: func(e audit.Event) bool {
			return (len(a.reasons) == 0 || slices.Contains(a.reasons, e.Reason)) && a.about(e)
		}})
	}
	return out
}

// watched are the addresses that nobody but an attack sends anything to.
func (b *builder) watched() []netip.Addr {
	var out []netip.Addr
	for _, a := range b.attacks {
		if a.own && a.Verdict != Skipped {
			out = append(out, a.to.Addr())
		}
	}
	return out
}

// perform lets the two processes do all tasks: one that has what every process of a box has, and one for frames.
func (b *builder) perform(ctx context.Context) (map[int]answer, error) {
	plain, raw := plan{}, plan{Raw: true}
	for _, a := range b.attacks {
		switch {
		case a.Verdict == Skipped:
		case a.task.Kind == asFrame:
			raw.Tasks = append(raw.Tasks, a.task)
		default:
			plain.Tasks = append(plain.Tasks, a.task)
		}
	}
	var reports [2]report
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range []plan{plain, raw} {
		group.Go(func() (err error) {
			reports[i], err = startProbe(ctx, b.cfg.NetNS, b.cfg.Command, p)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	answers := map[int]answer{}
	for _, r := range reports {
		for _, a := range r.Answers {
			answers[a.ID] = a
		}
	}
	return answers, nil
}

func (b *builder) closeCanaries() {
	for _, s := range b.sides {
		for _, c := range s.canaries {
			c.close()
		}
	}
}
