package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gdamore/tcell/v2"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/cmd/gateway/command/cli"
)

// ErrTerminal is returned for a terminal that cannot be drawn on.
var ErrTerminal = errors.New("this terminal cannot be drawn on; set TERM to its kind, as xterm-256color, or use --once")

// Run shows the boxes, or those with a label if it is not empty, on the terminal of the process until ctx ends or the user quits.
func Run(ctx context.Context, client *api.Client, label string) error {
	screen, err := tcell.NewScreen()
	if err != nil {
		return ErrTerminal
	}
	if err := screen.Init(); err != nil {
		return ErrTerminal
	}
	defer screen.Fini()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &session{ctx: ctx, client: client, label: label, screen: screen, do: make(chan func(), 256)}
	s.model.Listed = label != ""
	s.view.Model = &s.model
	return s.run()
}

// session is one run on a terminal. Its fields belong to the goroutine of run; other goroutines send it functions to
// execute.
type session struct {
	ctx    context.Context
	client *api.Client
	label  string // empty: every box
	screen tcell.Screen
	do     chan func()

	model   Model
	view    View
	queued  []func() // updates received while paused
	prompt  func(string) string
	typed   string
	onEnter func(text string)
	quit    bool
	failed  error
}

// post schedules a function on the goroutine of run.
func (s *session) post(f func()) {
	select {
	case s.do <- f:
	case <-s.ctx.Done():
	}
}

func (s *session) run() error {
	keys, quit := make(chan tcell.Event, 16), make(chan struct{})
	defer close(quit)
	go s.screen.ChannelEvents(keys, quit)
	go s.follow()
	go s.poll()
	for !s.quit {
		s.draw()
		select {
		case <-s.ctx.Done():
			return s.failed
		case f := <-s.do:
			f()
		case key := <-keys:
			s.handleKey(key)
		}
	}
	return s.failed
}

// update applies an update to the model, or queues it while the display is paused.
func (s *session) update(f func()) {
	s.post(func() {
		if s.view.Paused {
			s.queued = append(s.queued, f)
			s.queued = s.queued[max(0, len(s.queued)-10*maxDenials):]
			return
		}
		f()
	})
}

func (s *session) follow() {
	err := Follow(s.ctx, s.client, func(e audit.Event) { s.update(func() { s.model.Event(e) }) }, func(text string) {
		s.post(func() { s.view.Message = text })
	})
	if err != nil && s.ctx.Err() == nil {
		s.post(func() { s.quit, s.failed = true, err })
	}
}

func (s *session) poll() {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		if list, err := Boxes(s.ctx, s.client, s.label); err == nil { // otherwise follow reports that the gateway is away
			now := time.Now()
			s.update(func() { s.model.Boxes(now, list) })
		}
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *session) draw() {
	width, height := s.screen.Size()
	s.screen.Clear()
	styles := map[Style]tcell.Style{
		Plain: tcell.StyleDefault, Heading: tcell.StyleDefault.Bold(true), Selected: tcell.StyleDefault.Reverse(true), Faint: tcell.StyleDefault.Underline(true),
		Denied: tcell.StyleDefault,
	}
	if !cli.NoColour() {
		styles[Denied] = tcell.StyleDefault.Foreground(tcell.ColorMaroon)
	}
	for y, line := range s.view.Lines(width, height) {
		for x, c := range []byte(line.Text) {
			s.screen.SetContent(x, y, rune(c), nil, styles[line.Style])
		}
	}
	s.screen.Show()
}

// handleKey handles a key.
func (s *session) handleKey(event tcell.Event) {
	if _, resized := event.(*tcell.EventResize); resized {
		s.screen.Sync()
		return
	}
	key, ok := event.(*tcell.EventKey)
	switch {
	case !ok:
	case key.Key() == tcell.KeyCtrlC:
		s.quit, s.failed = true, cli.CommandExit{Status: cli.Interrupted{Signal: syscall.SIGINT}.Status()}
	case s.prompt != nil:
		s.editPrompt(key)
	case key.Key() == tcell.KeyUp:
		s.view.Selected = max(s.view.Selected-1, 0)
	case key.Key() == tcell.KeyDown:
		s.view.Selected = max(0, min(s.view.Selected+1, len(s.model.Denials(s.view.Filter))-1))
	case key.Key() == tcell.KeyEscape:
		s.view.Filter, s.view.Message = "", ""
	case key.Key() == tcell.KeyRune:
		s.letter(key.Rune())
	}
}

func (s *session) letter(r rune) {
	switch r {
	case 'q':
		s.quit = true
	case 'p', ' ':
		s.pause()
	case 's':
		s.view.Sort = (s.view.Sort + 1) % sorts
	case 'k':
		s.view.Selected = max(s.view.Selected-1, 0)
	case '/':
		s.startPrompt("", func(typed string) string { return "show boxes with: " + typed }, func(text string) { s.view.Filter, s.view.Selected = text, 0 })
	case 'a':
		s.promptChange("allow")
	case 'd':
		s.promptChange("deny")
	case 'e':
		if e, ok := s.selected(); ok {
			s.runInBackground(func() string { return explain(s.ctx, s.client, e) })
		}
	}
}

// pause freezes the display, or resumes it and applies the queued updates.
func (s *session) pause() {
	s.view.Paused = !s.view.Paused
	if !s.view.Paused {
		for _, f := range s.queued {
			f()
		}
		s.queued = nil
	}
}

// selected returns the denial that the keys act on.
func (s *session) selected() (audit.Event, bool) {
	denials := s.model.Denials(s.view.Filter)
	if s.view.Selected >= len(denials) {
		s.view.Message = "no denial is selected"
		return audit.Event{}, false
	}
	return denials[s.view.Selected], true
}

// promptChange asks for a duration, then allows or denies the destination of the selected denial. The destination is fixed
// before the prompt appears, so that new denials do not change it while the user types.
func (s *session) promptChange(action string) {
	e, ok := s.selected()
	if !ok {
		return
	}
	to, shown := entryOf(e, action)
	if to == "" {
		s.view.Message = shown
		return
	}
	s.startPrompt("1h", func(typed string) string { return action + " " + shown + " for: " + typed }, func(text string) {
		lasts, err := api.ParseDuration(text)
		if err != nil || lasts < time.Second {
			s.view.Message = "not changed: give a duration such as 1h or 2d"
			return
		}
		s.runInBackground(func() string { return change(s.ctx, s.client, e.Box, to, action, lasts) })
	})
}

// runInBackground runs a request in the background and shows its result.
func (s *session) runInBackground(f func() string) {
	s.view.Message = "..."
	go func() {
		text := f()
		s.post(func() { s.view.Message = text })
	}()
}

// startPrompt prompts for text in the last line.
func (s *session) startPrompt(begun string, shown func(string) string, after func(string)) {
	s.typed, s.prompt, s.onEnter = begun, shown, after
	s.view.Prompt = shown(begun)
}

func (s *session) editPrompt(key *tcell.EventKey) {
	switch key.Key() {
	case tcell.KeyEscape:
		s.prompt, s.view.Prompt = nil, ""
		return
	case tcell.KeyEnter:
		s.prompt, s.view.Prompt = nil, ""
		s.onEnter(strings.TrimSpace(s.typed))
		return
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		s.typed = s.typed[:max(len(s.typed)-1, 0)]
	case tcell.KeyRune:
		if r := key.Rune(); r >= ' ' && r <= '~' && len(s.typed) < 64 {
			s.typed += string(r)
		}
	}
	s.view.Prompt = s.prompt(s.typed)
}

// Style is the style of a line.
type Style int

// The styles.
const (
	Plain Style = iota
	Heading
	Selected
	Faint
	Denied // a box with denials
)

// Line is one line of the screen. It contains printable ASCII only, even if a box chose its name.
type Line struct {
	Text  string
	Style Style
}

// View is the state of the display.
type View struct {
	Model    *Model
	Sort     Sort
	Filter   string
	Paused   bool
	Selected int    // the denial that the keys act on
	Prompt   string // empty: no prompt
	Message  string // result of the last key
}

const keysHelp = "a allow  d deny  e explain  / filter  s sort  p pause  q quit"

// smallestWidth and smallestHeight are the minimum size of a usable screen.
const smallestWidth, smallestHeight = 20, 5

// Lines renders the view for a screen of the given size.
func (v *View) Lines(width, height int) []Line {
	if width < smallestWidth || height < smallestHeight {
		return clip([]Line{{"too small", Plain}}, width, height)
	}
	rows, denials := v.Model.Rows(v.Sort, v.Filter), v.Model.Denials(v.Filter)
	boxes := min(len(rows), max((height-4)/2, 1))
	out := []Line{{v.title(len(rows)), Heading}, {columns(width, "BOX", "STATUS", "CONN/S", "REQ/S", "DENY/S", "IN/S", "OUT/S", "TOK/S", "COST"), Faint}}
	for _, r := range rows[:boxes] {
		style, status := Plain, r.Status
		if r.Denials > 0 {
			style = Denied
		}
		if r.AuditedUntil != 0 { // its column has no room for both
			status = "AUDITED"
		}
		out = append(out, Line{columns(width, r.Label(), status, number(r.Connections), number(r.Requests), number(r.Denials), size(r.BytesIn), size(r.BytesOut), number(r.Tokens), cost(r.Cost)), style})
	}
	out = append(out, Line{"DENIALS", Faint})
	room := height - len(out) - 1
	first := max(0, min(v.Selected-room+1, len(denials)-room))
	for i := first; i < min(first+room, len(denials)); i++ {
		line := Line{denial(denials[i]), Plain}
		if i == v.Selected {
			line.Style = Selected
		}
		out = append(out, line)
	}
	for len(out) < height-1 {
		out = append(out, Line{})
	}
	out = append(out, Line{cmp.Or(v.Prompt, v.Message, keysHelp), Heading})
	return clip(out, width, height)
}

func (v *View) title(n int) string {
	title := fmt.Sprintf("gateway top  %s  by %s", cli.Count(n, "box", "boxes"), v.Sort)
	if v.Filter != "" {
		title += "  with " + strconv.Quote(v.Filter)
	}
	if v.Paused {
		title += "  PAUSED"
	}
	return title
}

// columns formats a row. The first column takes the remaining width; on a narrow screen, the last columns are left out.
func columns(width int, box string, rest ...string) string {
	const first, each = 12, 9
	fits := max(0, min((width-first)/each, len(rest)))
	wide := min(max(width-fits*each, first), 32)
	var b strings.Builder
	fmt.Fprintf(&b, "%-*.*s", wide, wide-1, audit.Escape(box, 64))
	for _, text := range rest[:fits] {
		fmt.Fprintf(&b, "%*.*s", each, each-1, audit.Escape(text, 64))
	}
	return b.String()
}

// denial formats a denial as one line.
func denial(e audit.Event) string {
	line := fmt.Sprintf("%s %-14.14s %-34s %s", e.Time.Local().Format("15:04:05"), cmp.Or(e.BoxName, string(e.Box)), where(e), e.Reason)
	if e.Count > 1 {
		line += " x" + strconv.FormatUint(e.Count, 10)
	}
	return line
}

func where(e audit.Event) string {
	host := e.Name
	if host == "" && e.Addr.IsValid() {
		host = e.Addr.String()
	}
	if e.Port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(e.Port)))
	}
	return strings.TrimSpace(e.Method + " " + host + e.Path)
}

// clip cuts lines to the size of the screen and escapes all but printable ASCII.
func clip(lines []Line, width, height int) []Line {
	lines = lines[:min(len(lines), max(height, 0))]
	for i, l := range lines {
		text := audit.Escape(l.Text, 4096)
		lines[i].Text = text[:min(len(text), max(width, 0))]
	}
	return lines
}

func number(f float64) string {
	switch {
	case f == 0:
		return "-"
	case f < 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'f', 0, 64)
}

// cost formats an amount of dollars.
func cost(f float64) string {
	if f == 0 {
		return "-"
	}
	return "$" + strconv.FormatFloat(f, 'f', 2, 64)
}

func size(f float64) string {
	for _, unit := range []string{"B", "K", "M", "G"} {
		if f < 1000 {
			return number(f) + map[bool]string{true: "", false: unit}[f == 0]
		}
		f /= 1000
	}
	return number(f) + "T"
}
