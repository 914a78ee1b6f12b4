package attack

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
)

// pause is the time between two rounds of the continuous attack. A longer opening is detected.
var pause = nightly.Size(2*time.Millisecond, 0)

// hammer sends from a box to targets in every way until stop is called. stop returns the number of attempts.
func hammer(r *harness.Raider, targets ...netip.Addr) (stop func() int) {
	var rounds atomic.Int64
	var done atomic.Bool
	var wg sync.WaitGroup
	for _, to := range targets {
		wg.Go(func() {
			for !done.Load() {
				_ = r.Inside(func() error {
					for _, port := range []uint16{80, 443, 4444} {
						d := net.Dialer{Timeout: 5 * time.Millisecond}
						if c, err := d.Dial("tcp", netip.AddrPortFrom(to, port).String()); err == nil {
							_, _ = io.WriteString(c, "GET /hammer HTTP/1.1\r\nHost: "+to.String()+"\r\n\r\n")
							c.Close()
						}
						if c, err := d.Dial("udp", netip.AddrPortFrom(to, port).String()); err == nil {
							_, _ = io.WriteString(c, "hammer")
							c.Close()
						}
					}
					return nil
				})
				rounds.Add(1)
				time.Sleep(pause)
			}
		})
	}
	return func() int {
		done.Store(true)
		wg.Wait()
		return int(rounds.Load())
	}
}

// Another program flushes all rules, deletes the table, or empties one of its chains or sets, while the box attacks.
func TestAttackFlushedRules(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	r := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")}))
	forbidden := harness.AttackerAt(81)
	metadata, uplinks := netip.MustParseAddr("169.254.169.254"), [2]netip.Addr{}
	uplinks[0], uplinks[1] = w.Net.GatewayAddrs()
	forged := func() { // refused only by the guard, and the gate
		for family, src := range []string{"8.8.8.8", "2001:4860::8888"} {
			r.Packet(harness.UDPPacket(netip.AddrPortFrom(netip.MustParseAddr(src), 9), netip.AddrPortFrom(forbidden[family], 9), "forged"))
		}
	}
	chains := chains(w)
	commands := append([]string{"flush ruleset", "delete table inet boxgate"}, chains...)
	stop := hammer(r, forbidden[0], forbidden[1], metadata)
	for _, command := range commands {
		before := w.Restored()
		w.NFT(command)
		for range 5 {
			forged()
			for _, a := range uplinks {
				if reaches(r, netip.AddrPortFrom(a, 443)) {
					t.Errorf("%s: the box reached the public URLs of the host", command)
				}
			}
		}
		w.Until("the rules are restored after "+command, func() bool { return w.Restored() > before })
		w.Untouched(forbidden[0], forbidden[1], metadata)
		if t.Failed() {
			t.Fatalf("after nft %s", command)
		}
	}
	if rounds := stop(); rounds < 100 {
		t.Errorf("the box has tried only %d times", rounds)
	}
	w.Untouched(forbidden[0], forbidden[1], metadata)
	// Allowed connections work again, and refusals are logged again.
	w.MustSh(r.Box, "curl -sS -k -o /dev/null https://api.example.com/")
	w.Net.Forget()
	for _, a := range harness.AttackerAt(82) {
		w.Until("a refusal is logged", func() bool { // the box has used up the events that may be logged separately
			r.Try("udp", netip.AddrPortFrom(a, 4444))
			return slices.ContainsFunc(w.Events(r.Box), func(e audit.Event) bool {
				return e.Addr == a && e.Verdict == policy.Deny && e.Reason == name.ReasonNotAllowed
			})
		})
	}
}

// reaches reports whether a TCP connection is established immediately.
func reaches(r *harness.Raider, to netip.AddrPort) bool {
	return r.Inside(func() error {
		d := net.Dialer{Timeout: 10 * time.Millisecond}
		c, err := d.Dial("tcp", to.String())
		if err == nil {
			c.Close()
		}
		return err
	}) == nil
}

// serials matches the numbers in the names of a plan's objects.
var serials = regexp.MustCompile(`(_[0-9]+){2}(_allowed)?$`)

// chains lists the commands that empty each chain of the table that decides about packets; see nft.
func chains(w *harness.World) (flush []string) {
	w.T.Helper()
	out, err := w.Net.Gateway().Run(w.T.Context(), "nft", "list", "chains", "inet")
	if err != nil {
		w.T.Fatal(err, out)
	}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "chain" && f[1] != "about" && f[1] != "answer_refusal" && !strings.HasPrefix(f[1], "refuse") {
			flush = append(flush, "flush chain inet boxgate "+serials.ReplaceAllString(f[1], "_*$2"))
		}
	}
	return flush
}

// A box is attacked from the moment its network namespace can be entered, and its first process attacks too.
func TestAttackBeforeTheFirstInstruction(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	targets := harness.AttackerAt(91)
	var sent atomic.Int64
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { waylay(w, targets, &sent, done) })
	line := fmt.Sprintf("curl -k -s -m 2 https://evil.example.net/; curl -k -s -m 2 https://%s/; curl -g -k -s -m 2 'https://[%s]/'; curl -s -m 2 http://%[1]s/; touch tried",
		targets[0], targets[1])
	for _, p := range []map[string]any{{"mode": "deny-all"}, harness.Custom("api.example.com"), allowedCIDRs("198.51.100.11/32")} {
		box := w.Create(map[string]any{"network_policy": p, "init_command": line, "keep_alive": true})
		w.MustSh(box, "until [ -e tried ]; do sleep 0.01; done")
		for _, a := range targets {
			w.Event(box, func(e audit.Event) bool { return e.Addr == a && e.Verdict == policy.Deny && e.Version > 0 })
		}
	}
	close(done)
	wg.Wait()
	if n := sent.Load(); n < 10 { // a busy machine sends few
		t.Errorf("only %d packets were sent", n)
	}
	w.Untouched(targets[0], targets[1])
	w.NothingReached("evil.example.net")
}

// waylay waits for the namespaces of new boxes and sends from each as soon as it can be entered.
func waylay(w *harness.World, targets [2]netip.Addr, sent *atomic.Int64, done <-chan struct{}) {
	known := map[string]bool{}
	look := time.NewTicker(time.Millisecond) // a new namespace has no link for longer than that
	defer look.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-done:
			return
		case <-look.C:
		}
		pins, _ := filepath.Glob(filepath.Join(lab.RunDir(w.Dir), "netns", "*"))
		for _, path := range pins {
			if known[path] {
				continue
			}
			pin, err := os.Open(path)
			if err != nil {
				continue
			}
			r := &harness.Raider{World: w, Pin: pin}
			if r.Inside(func() error { return nil }) != nil { // not mounted yet
				pin.Close()
				continue
			}
			known[path] = true
			wg.Go(func() {
				defer pin.Close()
				_ = r.Inside(func() error { return sendUntil(done, targets, sent) })
			})
		}
	}
}

// sendUntil sends datagrams and opens connections as soon as the network is up, and repeats that in rounds.
func sendUntil(done <-chan struct{}, targets [2]netip.Addr, sent *atomic.Int64) error {
	for begun := time.Now(); ; {
		if time.Since(begun) > time.Second {
			time.Sleep(pause)
		}
		select {
		case <-done:
			return nil
		default:
		}
		for _, to := range targets {
			if c, err := net.Dial("udp", netip.AddrPortFrom(to, 4444).String()); err == nil {
				if _, err := io.WriteString(c, "too early"); err == nil {
					sent.Add(1)
				}
				c.Close()
			}
			d := net.Dialer{Timeout: 2 * time.Millisecond}
			if c, err := d.Dial("tcp", netip.AddrPortFrom(to, 4444).String()); err == nil {
				c.Close()
			}
		}
	}
}
