// Package demo has the tours of `gateway demo`: [Run] shows every promise of the gateway in a [lab.Lab], [RunFleet] a fleet of three.
package demo

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"boxgate/audit"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// tour is one run of the tour: the lab, the narration, and the outcomes.
type tour struct {
	lab      *lab.Lab
	out      *pulse
	steps    []step
	prompt   string // before the $ of a command
	program  string // path of the gateway
	imageDir string
	colour   bool   // as of Options
	secret   string // the key that must never be in the box
	done     []outcome
	cutAfter time.Duration // time from the change of the policy until an open connection was cut
}

// Options configure a run of the tour.
type Options struct {
	Gateway  string // path of the gateway's program
	ImageDir string
	Colour   bool // titles are bold, commands and failures coloured
	// Keep, if not nil, leaves the lab open after the last step, until a line or the end of Keep is read or the context
	// ends.
	Keep io.Reader
	Etcd string // path of etcd's program, for [RunFleet]
}

// lastStep is the title of the final step, which runs even if another has failed.
const lastStep = "Nothing is left behind"

// Titles returns the titles of the steps of the demo, in the order shown.
func Titles() []string {
	var titles []string
	for _, s := range new(tour).demoSteps() {
		titles = append(titles, s.title)
	}
	return append(titles, lastStep)
}

// outcome is one line of the closing table.
type outcome struct {
	title string
	err   error
	took  time.Duration
}

// step is one promise: its introduction, and the function that shows it and fails if it is broken.
type step struct {
	title string
	about string
	show  func(context.Context) error
}

// Run runs every step, cleans up, prints the table and a summary, and returns an error if a step failed.
func Run(ctx context.Context, out io.Writer, o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("the demo makes network namespaces and containers and needs root: run `sudo make demo`")
	}
	d := newTour(out, o)
	defer d.out.stop()
	d.steps, d.secret = d.demoSteps(), "sk-demo-"+strings.ToLower(rand.Text())
	d.narrate("boxgate: a gateway, an internet of its own and one box, all in network namespaces made for this run.")
	return d.runAll(ctx, func() {
		if o.Keep != nil {
			d.keepOpen(ctx, o.Keep)
		}
	}, d.cleanUp, d.summaryLines)
}

// newTour returns a tour without steps. Its out must be stopped.
func newTour(out io.Writer, o Options) *tour {
	return &tour{out: newPulse(out), program: o.Gateway, imageDir: o.ImageDir, colour: o.Colour}
}

// runAll runs the steps until one fails, calls complete if none did, cleans up in any case, and prints the table and the summary. The
// error reports steps that failed or were not reached.
func (d *tour) runAll(ctx context.Context, complete func(), cleanUp func(context.Context) error, seen func() []string) error {
	if err := lab.RemoveStaleLabs(); err != nil {
		d.narrate(fmt.Sprintf("What an interrupted demo left could not all be removed: %v", err))
	}
	for _, s := range d.steps {
		if err := d.run(ctx, s); err != nil {
			break
		}
	}
	if len(d.done) == len(d.steps) {
		complete()
	}
	d.prompt = ""
	_ = d.run(context.WithoutCancel(ctx), step{ // reported by the summary
		title: lastStep, about: "Everything is removed; then we look for what might have stayed.",
		show: cleanUp,
	})
	return d.summary(seen)
}

// run runs one step and records its outcome.
func (d *tour) run(ctx context.Context, s step) error {
	fmt.Fprintf(d.out, "\n%s  (%.1f s)\n", d.styled(bold, fmt.Sprintf("%d of %d  %s", len(d.done)+1, len(d.steps)+1, s.title)), d.out.elapsed().Seconds())
	d.narrate(s.about)
	start := time.Now()
	err := s.show(ctx)
	if err != nil {
		d.narrate(d.styled(red, fmt.Sprintf("This did not happen: %v", err)))
	}
	d.done = append(d.done, outcome{s.title, err, time.Since(start)})
	return err
}

// summary prints the table and returns an error if a step failed or was not reached.
func (d *tour) summary(seen func() []string) error {
	fmt.Fprintf(d.out, "\n%s\n", d.styled(bold, "Summary"))
	var failed, reached int
	for _, o := range d.done {
		mark := "ok    "
		if o.err != nil {
			mark = "FAILED"
			failed++
		}
		reached++
		fmt.Fprintf(d.out, "  %s  %-70s %6.1f s\n", mark, o.title, o.took.Seconds())
	}
	if missing := len(d.steps) + 1 - reached; failed > 0 || missing > 0 {
		return fmt.Errorf("the demo is not complete: of its steps, %d failed and %d were not reached", failed, missing)
	}
	fmt.Fprintf(d.out, "\n%s\n", d.styled(bold, fmt.Sprintf("What you saw, in %.1f s", d.out.elapsed().Seconds())))
	for _, line := range seen() {
		d.narrate("- " + line)
	}
	return nil
}

// summaryLines summarises the shown promises in five lines.
func (d *tour) summaryLines() []string {
	return []string{
		"A server got an API key from a box that has it nowhere: not in its environment, its memory or its files.",
		"A host that is not on the list was refused by name, before any certificate; the metadata address although it was.",
		"A policy was opened while the box ran, and the same command worked at once.",
		fmt.Sprintf("It was closed again, and %d ms later an open connection was cut.", d.cutAfter.Milliseconds()),
		"A server in the box got a public HTTPS address that lets in who has its token; every decision is in the log with its reason.",
	}
}

// The SGR parameters of the tour.
const (
	bold = "1"
	red  = "31"
	cyan = "36"
)

// styled returns text with an SGR parameter, if the output has colours.
func (d *tour) styled(sgr, text string) string {
	if !d.colour {
		return text
	}
	return "\033[" + sgr + "m" + text + "\033[0m"
}

// narrate prints narration, which is wrapped by hand in the sources.
func (d *tour) narrate(text string) { fmt.Fprintf(d.out, "   %s\n", text) }

// result is the output and the exit status of a command.
type result struct {
	out  string // standard output and error, interleaved
	code int
}

// sh shows a command as a user would type it, runs it (in ns, if not nil) and shows its output.
func (d *tour) sh(ctx context.Context, shown string, cmd *exec.Cmd, ns *testnet.NS) (result, error) {
	fmt.Fprintf(d.out, "   %s\n", d.styled(cyan, d.prompt+"$ "+shown))
	var buf bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buf, &buf
	start := cmd.Start
	if ns != nil {
		start = func() error { return ns.Start(cmd) }
	}
	if err := start(); err != nil {
		return result{}, err
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return result{}, err
	}
	r := result{out: buf.String(), code: cmd.ProcessState.ExitCode()}
	for line := range strings.Lines(clip(r.out, 1600)) {
		fmt.Fprintf(d.out, "     %s\n", strings.TrimRight(line, "\n"))
	}
	if r.code != 0 {
		fmt.Fprintf(d.out, "     (exit %d)\n", r.code)
	}
	return r, ctx.Err()
}

// gateway runs `gateway args...` and shows it.
func (d *tour) gateway(ctx context.Context, args ...string) (result, error) {
	return d.sh(ctx, "gateway "+quoteAll(args), d.lab.Command(ctx, args...), nil)
}

// inBox runs a command in the box by `gateway box exec` and shows it.
func (d *tour) inBox(ctx context.Context, command ...string) (result, error) {
	return d.gateway(ctx, append([]string{"box", "exec", "demo", "--"}, command...)...)
}

// shellInBox runs a shell line in the box by `gateway box exec` and shows it.
func (d *tour) shellInBox(ctx context.Context, line string) (result, error) {
	return d.inBox(ctx, "sh", "-c", line)
}

// decision waits for the log line of a decision that contains all the given parts, and shows it.
func (d *tour) decision(ctx context.Context, parts ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if line := d.findDecision(parts); line != "" {
			d.narrate("decision: " + line)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no decision with %q was logged", parts)
		case <-tick.C:
		}
	}
}

func (d *tour) findDecision(parts []string) string {
	for line := range strings.Lines(d.lab.LogText()) {
		if !strings.Contains(line, `"decision"`) {
			continue
		}
		found := true
		for _, p := range parts {
			found = found && strings.Contains(line, p)
		}
		if found {
			var e audit.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				return strings.TrimSpace(line)
			}
			return audit.Line(e)
		}
	}
	return ""
}

// expect returns an error unless the output matches the pattern and the command exited with code.
func (r result) expect(code int, pattern string) error {
	if r.code != code {
		return fmt.Errorf("the command exited with %d, not %d", r.code, code)
	}
	if !regexp.MustCompile(pattern).MatchString(r.out) {
		return fmt.Errorf("the output does not show %q", pattern)
	}
	return nil
}

// quoteAll quotes arguments for a shell.
func quoteAll(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if a == "" || strings.ContainsAny(a, " \t\n'\"$&|;<>(){}*?#~\\!") {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "\n…"
}

// cleanUp closes the lab and looks for leftovers.
func (d *tour) cleanUp(_ context.Context) error {
	if d.lab == nil {
		return nil
	}
	if err := closeLabs(d.lab); err != nil {
		return err
	}
	d.narrate("No process, mount, namespace, rule or file of the demo is left.")
	return nil
}

// closeLabs closes labs and looks for leftovers of each.
func closeLabs(labs ...*lab.Lab) error {
	var errs []error
	for _, l := range labs {
		dir := l.Dir
		if err := l.Close(); err != nil {
			errs = append(errs, err)
			continue
		}
		left, err := lab.Traces(dir)
		if len(left) > 0 {
			err = errors.Join(err, fmt.Errorf("left behind: %s", strings.Join(left, ", ")))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tryLine is refused until the policy allows it. The server's certificate is from the demo's internet, hence -k.
const tryLine = "gateway box exec demo -- curl -k -sS https://www.example.com/echo"

// keepOpen shows commands to try in the lab. It returns when a line or the end of in is read, or ctx ends.
func (d *tour) keepOpen(ctx context.Context, in io.Reader) {
	fmt.Fprintf(d.out, "\n%s\n", d.styled(bold, "The lab stays open"))
	d.narrate("In another terminal, as root:")
	fmt.Fprintf(d.out, "\n     export BOXGATE_CONFIG=%s PATH=$PATH:%s\n", d.lab.Config, filepath.Dir(d.lab.Self))
	for _, line := range []string{
		"gateway status",
		"gateway box shell demo",
		tryLine,
		"gateway log --denied",
		"gateway policy allow demo www.example.com:443",
		tryLine,
		"gateway policy get demo",
		"gateway headers list --box demo",
		"gateway box selftest demo",
	} {
		fmt.Fprintf(d.out, "     %s\n", line)
	}
	fmt.Fprintln(d.out)
	d.narrate("Press Enter here, or Ctrl-C, to remove everything.")
	d.out.mute()
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = bufio.NewReader(in).ReadString('\n')
	}()
	select {
	case <-ctx.Done():
	case <-read:
	}
	d.out.unmute()
}

// silence is the time without output after which a tour prints a sign of life.
const silence = 3 * time.Second

// pulse is a writer that prints a sign of life when nothing was written for a while. Safe for concurrent use.
type pulse struct {
	start time.Time

	mu      sync.Mutex
	to      io.Writer
	timer   *time.Timer
	stopped bool
}

// newPulse returns a pulse that writes to a writer. End it with stop.
func newPulse(to io.Writer) *pulse {
	p := &pulse{to: to, start: time.Now()}
	p.timer = time.AfterFunc(silence, p.showElapsed)
	return p
}

// elapsed returns the time since the start.
func (p *pulse) elapsed() time.Duration { return time.Since(p.start) }

// Write implements io.Writer.
func (p *pulse) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.timer.Reset(silence)
	}
	return p.to.Write(b)
}

func (p *pulse) showElapsed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	fmt.Fprintf(p.to, "   … %.0f s\n", p.elapsed().Seconds())
	p.timer.Reset(silence)
}

// mute stops the signs of life until wake.
func (p *pulse) mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
}

func (p *pulse) unmute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = false
	p.timer.Reset(silence)
}

// stop ends the signs of life. Later writes still work.
func (p *pulse) stop() { p.mute() }
