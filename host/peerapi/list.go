package peerapi

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/elsewhere"
	"boxgate/api/strict"
	"boxgate/fleet"
	"boxgate/fleet/directory"
	"boxgate/policy"
	"boxgate/quota"
)

// Bounds of a call to several hosts.
const (
	askTimeout  = 3 * time.Second // for the answers of all hosts
	askAtOnce   = 64              // hosts asked at a time
	maxAnswer   = 16 << 20        // bytes of the answer of one host
	maxAnswers  = 64 << 20        // bytes of all answers
	mostAsking  = 32              // calls to all hosts at a time
	mostOfOne   = 4               // of them for one key
	silentFor   = 10 * time.Second
	silentAgain = 500 * time.Millisecond // for the answer of a host that was silent in the last [silentFor]
)

// Errors of calls to several hosts.
var (
	errTooLong = errors.New("the answers are too long")
	errBusy    = errors.New("too many calls to all hosts are in progress")
)

// releasing is the body of a response that holds a stream.
type releasing struct {
	io.ReadCloser
	release func()
}

// Close implements [io.Closer].
func (b releasing) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}

// turns bounds the calls to all hosts, altogether and for each key. The zero value has none in progress.
type turns struct {
	mu    sync.Mutex
	all   int
	byKey map[quota.Holder]int
	freed chan struct{} // closed at the next end of a turn
}

// take waits for a turn until ctx is done.
func (t *turns) take(ctx context.Context, key quota.Holder) (end func(), err error) {
	for {
		t.mu.Lock()
		if t.all < mostAsking && t.byKey[key] < mostOfOne {
			if t.byKey == nil {
				t.byKey = map[quota.Holder]int{}
			}
			t.all++
			t.byKey[key]++
			t.mu.Unlock()
			return sync.OnceFunc(func() { t.end(key) }), nil
		}
		if t.freed == nil {
			t.freed = make(chan struct{})
		}
		freed := t.freed
		t.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, errBusy
		}
	}
}

func (t *turns) end(key quota.Holder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all--
	if t.byKey[key]--; t.byKey[key] == 0 {
		delete(t.byKey, key)
	}
	if t.freed != nil {
		close(t.freed)
		t.freed = nil
	}
}

// silences remembers hosts that did not answer in time, so that a host that hangs does not delay every call to all hosts.
type silences struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// note notes whether a host answered in time.
func (s *silences) note(host string, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !silent {
		delete(s.since, host)
		return
	}
	if s.since == nil {
		s.since = map[string]time.Time{}
	}
	s.since[host] = time.Now()
}

// lately reports whether a host was silent lately.
func (s *silences) lately(host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.since[host]) < silentFor
}

// Ask implements [elsewhere.Hosts]. Hosts that were silent lately come last, with less time. With more hosts than are asked at a time, each
// has a share of the time, so that hosts which hang do not take the turn of the others.
func (c *Client) Ask(ctx context.Context, call elsewhere.Call) []elsewhere.Answer {
	key, ok := access.ShownKey(ctx)
	caller := api.CallerOf(ctx)
	if !ok || !caller.Fleet {
		return nil
	}
	limit := cmp.Or(call.Time, askTimeout)
	asking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answers := c.answersOf(call, caller)
	if call.Bodies == nil {
		end, err := c.turns.take(asking, caller.Holder())
		if err != nil {
			for i := range answers {
				answers[i].Err = err
			}
			return answers
		}
		defer end()
	}
	var order, late []*elsewhere.Answer
	for i := range answers {
		if a := &answers[i]; call.Bodies == nil && c.silent.lately(a.Host) {
			late = append(late, a)
		} else {
			order = append(order, a)
		}
	}
	punctual, each := len(order), limit
	if punctual > askAtOnce {
		each = max(silentAgain, limit*askAtOnce/time.Duration(punctual))
	}
	for _, part := range [][]*elsewhere.Answer{order, late} {
		rand.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
	}
	order = append(order, late...)
	var running sync.WaitGroup
	var next, total atomic.Int64
	for range min(askAtOnce, len(order)) {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(order); i = int(next.Add(1)) - 1 {
				limit := each
				if i >= punctual {
					limit = silentAgain
				}
				c.ask(asking, call, order[i], key, limit, &total)
			}
		})
	}
	running.Wait()
	return answers
}

// answersOf returns the hosts that a call goes to, without their answers. A key for one box, which the box may have, causes no calls to other
// hosts than that of the box.
func (c *Client) answersOf(call elsewhere.Call, caller api.Caller) (answers []elsewhere.Answer) {
	if call.Bodies != nil {
		for _, host := range slices.Sorted(maps.Keys(call.Bodies)) {
			answers = append(answers, elsewhere.Answer{Host: host})
		}
		return answers
	}
	for _, h := range c.others() {
		if caller.Role != api.RoleBox || strings.HasPrefix(string(caller.Box), h.ID) {
			answers = append(answers, elsewhere.Answer{Host: h.ID})
		}
	}
	return answers
}

// others returns the other members, as last known.
func (c *Client) others() []fleet.Host {
	return slices.DeleteFunc(c.fleet.LastMembers(), func(h fleet.Host) bool { return h.ID == c.fleet.Identity.Host })
}

// ask asks one host. total counts the bytes of all answers.
func (c *Client) ask(ctx context.Context, call elsewhere.Call, a *elsewhere.Answer, key http.Header, limit time.Duration, total *atomic.Int64) {
	if a.Err = ctx.Err(); a.Err != nil {
		return // it was not asked, which is not its fault
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var h fleet.Host
	if h, a.Err = c.member(a.Host); a.Err != nil {
		return
	}
	a.Status, a.Body, a.Err = c.exchange(ctx, h, call, key)
	c.silent.note(a.Host, errors.Is(a.Err, context.DeadlineExceeded))
	if a.Err == nil && total.Add(int64(len(a.Body))) > maxAnswers {
		a.Body, a.Err = nil, errTooLong
	}
	if a.Err != nil {
		c.log.Debug("a host did not answer a call to several hosts", zap.String("host", a.Host), zap.String("path", call.Path), zap.Error(a.Err))
	}
}

// exchange sends a call to a host, and reads the answer. Its memory counts for the key of the caller.
func (c *Client) exchange(ctx context.Context, h fleet.Host, call elsewhere.Call, key http.Header) (status int, body []byte, err error) {
	resp, err := c.send(ctx, h, call, key)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(strict.NewClaimed(io.LimitReader(resp.Body, maxAnswer+1), quota.ScopeOf(ctx)))
	if err == nil && len(text) > maxAnswer {
		err = errTooLong
	}
	return resp.StatusCode, text, err
}

// Listed implements [elsewhere.Hosts].
func (c *Client) Listed(ctx context.Context, host string) (list []api.Box) {
	if c.fleet.Fenced() {
		return nil
	}
	return c.inDirectory(ctx, host)
}

// inDirectory returns the boxes of a host in the directory, after earlier looks into it.
func (c *Client) inDirectory(ctx context.Context, host string) (list []api.Box) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := map[string]directory.Entry(nil), c.look(ctx)
	if err == nil {
		defer func() { <-c.lookups }()
		found, err = c.boxes(ctx, host)
	}
	if err != nil {
		c.log.Debug("the boxes of a host are not known", zap.String("host", host), zap.Error(err))
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		list = append(list, api.Box{ID: policy.BoxID(id), Name: found[id].Name, Labels: found[id].Labels})
	}
	return list
}
