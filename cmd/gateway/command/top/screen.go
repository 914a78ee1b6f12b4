package top

import (
	"context"
	"errors"

	"strings"
	"time"

	"github.com/gdamore/tcell/v2"

	"boxgate/api"
	"boxgate/audit"
)

// ErrTerminal is returned for a terminal that cannot be drawn on.
var ErrTerminal = errors.New("this terminal cannot be drawn on; set TERM to its kind, as xterm-256color, or use --once")

// Run shows the boxes on the terminal of the process until ctx ends or the user quits.
func Run(ctx context.Context, client *api.Client) error {
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
	s := &session{ctx: ctx, client: client, screen: screen, do: make(chan func(), 256)}
	s.view.Model = &s.model
	return s.run()
}

// session is one run on a terminal. Its fields belong to the goroutine of run; other goroutines send it functions to
// execute.
type session struct {
	ctx    context.Context
	client *api.Client
	screen tcell.Screen
	do     chan func()

	model  Model
	view   View
	frozen []func() // updates received while paused
	asks   func(string) string
	typed  string
	after  func(text string)
	over   bool
	failed error
}

// later schedules a function on the goroutine of run.
func (s *session) later(f func()) {
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
	for !s.over {
		s.draw()
		select {
		case <-s.ctx.Done():
			return s.failed
		case f := <-s.do:
			f()
		case key := <-keys:
			s.take(key)
		}
	}
	return s.failed
}

// learn applies an update to the model, or queues it while the display is paused.
func (s *session) learn(f func()) {
	s.later(func() {
		if s.view.Paused {
			s.frozen = append(s.frozen, f)
			s.frozen = s.frozen[max(0, len(s.frozen)-10*mostDenials):]
			return
		}
		f()
	})
}

func (s *session) follow() {
	err := Follow(s.ctx, s.client, func(e audit.Event) { s.learn(func() { s.model.Event(e) }) }, func(text string) {
		s.later(func() { s.view.Message = text })
	})
	if err != nil && s.ctx.Err() == nil {
		s.later(func() { s.over, s.failed = true, err })
	}
}

func (s *session) poll() {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		if list, err := Boxes(s.ctx, s.client); err == nil { // otherwise follow reports that the gateway is away
			now := time.Now()
			s.learn(func() { s.model.Boxes(now, list) })
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
	}
	for y, line := range s.view.Lines(width, height) {
		for x, c := range []byte(line.Text) {
			s.screen.SetContent(x, y, rune(c), nil, styles[line.Style])
		}
	}
	s.screen.Show()
}

// take handles a key.
func (s *session) take(event tcell.Event) {
	if _, resized := event.(*tcell.EventResize); resized {
		s.screen.Sync()
		return
	}
	key, ok := event.(*tcell.EventKey)
	switch {
	case !ok:
	case key.Key() == tcell.KeyCtrlC:
		s.over = true
	case s.asks != nil:
		s.answer(key)
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
		s.over = true
	case 'p', ' ':
		s.pause()
	case 's':
		s.view.Sort = (s.view.Sort + 1) % sorts
	case 'k':
		s.view.Selected = max(s.view.Selected-1, 0)
	case '/':
		s.ask("", func(typed string) string { return "show boxes with: " + typed }, func(text string) { s.view.Filter, s.view.Selected = text, 0 })
	case 'a':
		s.askChange("allow")
	case 'd':
		s.askChange("deny")
	case 'e':
		if e, ok := s.selected(); ok {
			s.call(func() string { return explain(s.ctx, s.client, e) })
		}
	}
}

// pause freezes the display, or resumes it and applies the queued updates.
func (s *session) pause() {
	s.view.Paused = !s.view.Paused
	if !s.view.Paused {
		for _, f := range s.frozen {
			f()
		}
		s.frozen = nil
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

// askChange asks for a duration, then allows or denies the destination of the selected denial. The destination is fixed
// before the prompt appears, so that new denials do not change it while the user types.
func (s *session) askChange(action string) {
	e, ok := s.selected()
	if !ok {
		return
	}
	to, shown := entryOf(e, action)
	if to == "" {
		s.view.Message = shown
		return
	}
	s.ask("1h", func(typed string) string { return action + " " + shown + " for: " + typed }, func(text string) {
		lasts, err := api.ParseDuration(text)
		if err != nil || lasts < time.Second {
			s.view.Message = "not changed: give a duration such as 1h or 2d"
			return
		}
		s.call(func() string { return change(s.ctx, s.client, e.Box, to, action, lasts) })
	})
}

// call runs a request in the background and shows its result.
func (s *session) call(f func() string) {
	s.view.Message = "..."
	go func() {
		text := f()
		s.later(func() { s.view.Message = text })
	}()
}

// ask prompts for text in the last line.
func (s *session) ask(begun string, shown func(string) string, after func(string)) {
	s.typed, s.asks, s.after = begun, shown, after
	s.view.Prompt = shown(begun)
}

func (s *session) answer(key *tcell.EventKey) {
	switch key.Key() {
	case tcell.KeyEscape:
		s.asks, s.view.Prompt = nil, ""
		return
	case tcell.KeyEnter:
		s.asks, s.view.Prompt = nil, ""
		s.after(strings.TrimSpace(s.typed))
		return
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		s.typed = s.typed[:max(len(s.typed)-1, 0)]
	case tcell.KeyRune:
		if r := key.Rune(); r >= ' ' && r <= '~' && len(s.typed) < 64 {
			s.typed += string(r)
		}
	}
	s.view.Prompt = s.asks(s.typed)
}
