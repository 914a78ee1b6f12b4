// Package websocket contains test cases for WebSocket peers and the paths between them: framing, pings, reserved bits
// and opcodes, fragmentation, UTF-8, closing, limits and compression (RFC 6455, RFC 7692). It uses the numbers and
// requirements of the Autobahn test suite, which needs Python 2 and can no longer be installed from a package registry.
// The code is independent. [Run] is the client. [Echo] is the server for it, which is strict and fails fast.
package websocket

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// Verdict is the result of a case.
type Verdict struct {
	Number, Title string
	Outcome       string
	Seen          string // received events, and how the connection ended
}

// caseTime bounds a case that hangs.
const caseTime = 30 * time.Second

// Run runs cases, several concurrently. patience bounds the time a server takes to close a connection.
func Run(ctx context.Context, dial Dialer, cases []Case, patience time.Duration) []Verdict {
	out := make([]Verdict, len(cases))
	slots := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i := range cases {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			out[i] = cases[i].run(ctx, dial, patience)
		})
	}
	wg.Wait()
	return out
}

// session is one run of a case.
type session struct {
	c  *Case
	rw io.ReadWriteCloser
	a  agreed // negotiated extension parameters

	patience time.Duration

	mu       sync.Mutex
	received []event
	code     int           // code of the received close frame; 0 if none was received
	problem  string        // violation of the protocol by a received frame
	changed  chan struct{} // closed and replaced at every change
	ended    chan struct{} // closed at the end of input
}

func (c *Case) run(ctx context.Context, dial Dialer, patience time.Duration) Verdict {
	v := Verdict{Number: c.Number, Title: c.Title, Outcome: Failed}
	rw, answer, err := dial(ctx, c.offer)
	if err != nil {
		v.Seen = err.Error()
		return v
	}
	defer rw.Close()
	limit := time.AfterFunc(caseTime, func() { _ = rw.Close() })
	defer limit.Stop()
	s := &session{c: c, rw: rw, patience: patience, changed: make(chan struct{}), ended: make(chan struct{})}
	if answer != "" {
		var ok bool
		if s.a, ok = agreement(answer); !ok || c.offer == "" {
			v.Seen = "the server agreed to " + answer
			return v
		}
	}
	go s.read()
	switch {
	case c.offer != "" && answer == "":
		s.goodbye()
		v.Outcome, v.Seen = Unimplemented, "not agreed"
		return v
	case c.talk != nil:
		c.talk(s)
	default:
		s.play()
	}
	s.finish()
	return s.verdict(v)
}

// play runs the steps.
func (s *session) play() {
	for _, st := range s.c.steps {
		s.send(st)
		s.wait(st.events, s.patience)
		if st.quiet > 0 && !s.endsWithin(st.quiet) {
			s.addEvent(event{kind: "still open"})
		}
	}
}

// send writes frames. It ignores errors: if the server has closed the connection, the reader notices.
func (s *session) send(st step) {
	var all []byte
	for i := range st.frames {
		b := st.frames[i].bytes()
		if st.chop == frameWise {
			_, _ = s.rw.Write(b)
			continue
		}
		all = append(all, b...)
	}
	chop := st.chop
	if chop <= 0 {
		chop = len(all)
	}
	for len(all) > 0 {
		n := min(chop, len(all))
		if _, err := s.rw.Write(all[:n]); err != nil {
			return
		}
		all = all[n:]
	}
}

// finish ends the conversation.
func (s *session) finish() {
	if s.c.end == byUs {
		s.wait(len(s.c.want), caseTime)
		s.goodbye()
	}
	if !s.endsWithin(s.patience) {
		_ = s.rw.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.problem = "the server did not end the connection"
	}
}

func (s *session) goodbye() {
	s.send(send(closing(string(closePayload(codeNormal, "")))))
}

// wait returns when n events have been received, input has ended, or the limit has passed.
func (s *session) wait(n int, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		s.mu.Lock()
		enough, changed := len(s.received) >= n, s.changed
		s.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-changed:
		case <-s.ended:
			return
		case <-t.C:
			return
		}
	}
}

// endsWithin reports whether the connection ends within the limit.
func (s *session) endsWithin(limit time.Duration) bool {
	select {
	case <-s.ended:
		return true
	case <-time.After(limit):
		return false
	}
}

func (s *session) addEvent(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received = append(s.received, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// read records all received events.
func (s *session) read() {
	defer close(s.ended)
	err := s.frames(bufio.NewReaderSize(s.rw, 64<<10))
	if err != nil && !errors.Is(err, io.EOF) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.code == 0 && s.c.end != byPeer {
			s.problem = err.Error()
		}
	}
}

var errFrame = errors.New("the server sent a frame that is not allowed")

func (s *session) frames(r *bufio.Reader) error {
	var message []byte
	opcode, packed := byte(0), false
	in := inflater{forgets: s.a.serverForgets}
	for {
		h, err := readHead(r)
		if err != nil {
			return err
		}
		if h.masked || h.length > messageMax || s.code != 0 {
			return errFrame
		}
		payload := make([]byte, h.length)
		if _, err := io.ReadFull(r, payload); err != nil {
			return noEOF(err)
		}
		switch h.opcode {
		case opPong:
			s.addEvent(event{"pong", string(payload)})
			continue
		case opClose:
			s.closed(payload)
			continue
		case opText, opBinary:
			opcode, packed, message = h.opcode, h.rsv == 4, nil
		case opContinuation:
		default:
			return errFrame
		}
		message = append(message, payload...)
		if !h.fin {
			continue
		}
		if packed {
			if message, err = in.decompress(message); err != nil {
				return fmt.Errorf("a message that does not decompress: %w", err)
			}
		}
		s.addEvent(event{map[byte]string{opText: "text", opBinary: "binary"}[opcode], string(message)})
	}
}

func (s *session) closed(payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code = codeNone
	if len(payload) >= 2 {
		s.code = int(binary.BigEndian.Uint16(payload))
	}
}

// verdict compares the received events with the expected ones.
func (s *session) verdict(v Verdict) Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	v.Seen = s.describe()
	c := s.c
	end := s.code == 0 && c.end == byPeer || slices.Contains(c.codes, s.code)
	if len(c.codes) == 0 {
		end = s.code == codeNormal
	}
	switch {
	case s.problem != "":
		v.Seen += "; " + s.problem
	case c.open:
		v.Outcome = Informational
	case !end:
	case slices.Equal(s.received, c.want):
		v.Outcome = OK
	case slices.ContainsFunc(c.lax, func(l []event) bool { return slices.Equal(s.received, l) }):
		v.Outcome = NonStrict
	}
	return v
}

// describe formats the received events. Long runs of messages are only counted.
func (s *session) describe() string {
	words := make([]string, 0, 4)
	for i, e := range s.received {
		if i == 12 {
			words = append(words, fmt.Sprintf("and %d more", len(s.received)-i))
			break
		}
		words = append(words, e.String())
	}
	return strings.Join(append(words, fmt.Sprintf("close %d", s.code)), ", ")
}
