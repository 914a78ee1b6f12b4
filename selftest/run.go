package selftest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/selftest/packet"
	"boxgate/selftest/probe"
	"boxgate/selftest/watch"
)

// Config is the configuration of [Run]. All fields are required except HostAddrs, HostPorts and DenyPage.
type Config struct {
	Box    policy.BoxID
	V4, V6 netip.Addr
	NetNS  string // path of the box's network namespace
	Policy *policy.Compiled

	GatewayV4, GatewayV6 netip.Addr
	SinkV4, SinkV6       netip.Addr
	ExplicitPort         uint16       // explicit proxy on the gateway's addresses
	HostAddrs            []netip.Addr // the host's addresses except loopback and the gateway's
	HostPorts            []Port       // ports on which the gateway serves clients other than boxes
	AnotherV4, AnotherV6 netip.Addr   // of another box, or unused addresses of the pool
	DenyPage             bool         // the gateway answers refused TLS connections with a page
	GuestStack           bool         // the box is known to have its own network stack

	// Events delivers the decisions about the box until ctx ends.
	Events func(ctx context.Context) <-chan audit.Event
	// Expect, if not nil, is called with the expected denials before the first packet is sent. It marks such denials
	// until end is called.
	Expect func([]audit.Expected) (end func())
	// Command starts this program so that it calls [Probe]. The user it runs as may be unable to read the program's
	// directory.
	Command []string

	// link is the box's interface on the host. mac is the address of its other end. Run sets both.
	link int
	mac  []byte
}

// Port is a port of the gateway that no box may reach.
type Port struct {
	Name string // such as "admin API"
	Port uint16
}

// findLink finds the interface that leads to the box's addresses.
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

// UntestableError is returned when the box cannot be tested from its network namespace because its traffic does not
// come from the namespace's sockets. The box may be tight or not.
type UntestableError struct{ Reason string }

// Error returns the reason.
func (e *UntestableError) Error() string { return "the box cannot be tested from here: " + e.Reason }

// checkStack returns an error unless sockets in the namespace send as the box does. gVisor and virtual machines have
// their own network stack, and no interface of the namespace has their addresses. A probe would have a wrong or missing
// source address and be refused for the wrong reason.
func (c *Config) checkStack() error {
	if c.GuestStack {
		return &UntestableError{"it was attached with a network stack of its own (stack: guest), which the gateway cannot enter"}
	}
	ns, err := netns.GetFromPath(c.NetNS)
	if err != nil {
		return fmt.Errorf("the box's network namespace: %w", err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("the box's network namespace: %w", err)
	}
	defer inside.Close()
	list, err := inside.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("the addresses in the box's network namespace: %w", err)
	}
	have := map[netip.Addr]bool{}
	for _, a := range list {
		ip, _ := netip.AddrFromSlice(a.IP)
		have[ip.Unmap()] = true
	}
	for _, a := range []netip.Addr{c.V4, c.V6} {
		if !have[a] {
			return &UntestableError{fmt.Sprintf("no interface of its network namespace has the address %v: something there has "+
				"a network stack of its own, as gVisor and virtual machines have, or has taken the address away", a)}
		}
	}
	return nil
}

// Limits of a run.
const (
	eventWait = 3 * time.Second        // for decisions that are counted before they are logged
	drainTime = 100 * time.Millisecond // for packets still in transit
)

// Run runs all attacks and returns the card. It takes a few seconds. An error means that there is no card because the
// run could not start or finish. Attacks that could not be run are in the card.
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

	b := &builder{cfg: &cfg, token: func(id int) []byte { return watch.Token(prefix, id) }}
	defer b.closeCanaries()
	if err := b.build(prefix); err != nil {
		return card, err
	}
	w, err := watch.OpenWire(cfg.link, prefix, b.watched())
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
		sleep(ctx, drainTime)
	}
	sightings, missed, err := w.Close()
	if err := errors.Join(runErr, err, ctx.Err()); err != nil {
		return card, err
	}
	j := judge{answers: answers, sightings: sightings, missed: missed, logged: log.assign(b.attacks)}
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

// perform runs all tasks in two processes: one with the privileges of any process of a box, and one for frames.
func (b *builder) perform(ctx context.Context) (map[int]probe.Answer, error) {
	plain, raw := probe.Plan{}, probe.Plan{Raw: true}
	for _, a := range b.attacks {
		switch {
		case a.Verdict == Skipped:
		case a.task.Kind == probe.Frame:
			raw.Tasks = append(raw.Tasks, a.task)
		default:
			plain.Tasks = append(plain.Tasks, a.task)
		}
	}
	var reports [2]probe.Report
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range []probe.Plan{plain, raw} {
		group.Go(func() (err error) {
			reports[i], err = probe.Start(ctx, b.cfg.NetNS, b.cfg.Command, p)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	answers := map[int]probe.Answer{}
	for _, r := range reports {
		for _, a := range r.Answers {
			answers[a.ID] = a
		}
	}
	return answers, nil
}

// Probe is the probing process, which [Run] starts: it reads a plan from in, sends the traffic, and writes a report to out.
func Probe(in io.Reader, out io.Writer) error { return probe.Serve(in, out) }

// connect returns a task that connects and sends data.
func connect(to netip.AddrPort, data ...[]byte) probe.Task {
	return probe.Task{Kind: probe.TCP, To: to, Data: data}
}

// send replaces the task of an attack but keeps its number and token.
func (a *attack) send(t probe.Task) {
	t.ID, t.Token = a.task.ID, a.task.Token
	a.task = t
}

// udpFrame returns a task that sends a datagram of the box as a whole packet.
func (b *builder) udpFrame(s *side, to netip.AddrPort, payload []byte) probe.Task {
	return b.frame(s, b.datagram(s.box, to, payload))
}

func (b *builder) datagram(src netip.Addr, to netip.AddrPort, payload []byte) []byte {
	from := netip.AddrPortFrom(src, framePort)
	return packet.IP(src, to.Addr(), unix.IPPROTO_UDP, packet.UDP(from, to, payload))
}

// framePort is the source port of datagrams sent as frames.
const framePort = 40404

// frame returns a task that sends whole packets of one family.
func (b *builder) frame(s *side, packets ...[]byte) probe.Task {
	t := probe.Task{Kind: probe.Frame, Data: packets, EtherType: unix.ETH_P_IP}
	if s.box.Is6() {
		t.EtherType = unix.ETH_P_IPV6
	}
	return t
}
