package peerapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/boxes"
	"boxgate/fleet"
	"boxgate/policy"
)

// Bounds of a list of the boxes of all hosts.
const (
	listTimeout = 3 * time.Second // for the hosts
	listAtOnce  = 32              // hosts asked at a time
	maxList     = 16 << 20        // bytes of the answer of one host
	maxLists    = 64 << 20        // bytes of all answers
)

// errTooLong is the error of a list that does not fit.
var errTooLong = errors.New("the list is too long")

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

// listing collects the answers of the hosts.
type listing struct {
	mu     sync.Mutex
	out    boxes.Listed
	silent []string
	bytes  int
}

// add adds the answer of a host, or notes that there is none.
func (l *listing) add(host string, list []json.RawMessage, size int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.bytes+size > maxLists {
		err = errTooLong
	}
	if err != nil {
		l.silent = append(l.silent, host)
		return
	}
	l.bytes += size
	l.out.Boxes = append(l.out.Boxes, list...)
}

// List implements [boxes.Others]. Callers without a key of the fleet see the boxes of this host only.
func (c *Client) List(ctx context.Context, query string) boxes.Listed {
	key, ok := access.ShownKey(ctx)
	caller := api.CallerOf(ctx)
	if !ok || !caller.Fleet {
		return boxes.Listed{}
	}
	asking, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var all listing
	var running sync.WaitGroup
	free := make(chan struct{}, listAtOnce)
	for _, h := range c.others() {
		if caller.Role == api.RoleBox && !strings.HasPrefix(string(caller.Box), h.ID) {
			continue // a box, which may have this key, must not cause calls to every host
		}
		running.Go(func() {
			select {
			case free <- struct{}{}:
				defer func() { <-free }()
			case <-asking.Done():
				all.add(h.ID, nil, 0, asking.Err())
				return
			}
			list, size, err := c.ask(asking, h, query, key)
			if err != nil {
				c.log.Debug("a host did not list its boxes", zap.String("host", h.ID), zap.Error(err))
			}
			all.add(h.ID, list, size, err)
		})
	}
	running.Wait()
	slices.Sort(all.silent)
	ctx, cancel = context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	for _, id := range all.silent {
		silent := boxes.SilentHost{ID: id}
		if boxes.SeesAll(caller) {
			silent.Boxes = c.listed(ctx, id)
		}
		all.out.Silent = append(all.out.Silent, silent)
	}
	return all.out
}

// others returns the other members, as last known.
func (c *Client) others() []fleet.Host {
	return slices.DeleteFunc(c.fleet.LastMembers(), func(h fleet.Host) bool { return h.ID == c.fleet.Identity.Host })
}

// ask returns the boxes of a host, and the length of its answer.
func (c *Client) ask(ctx context.Context, h fleet.Host, query string, key map[string][]string) ([]json.RawMessage, int, error) {
	if _, err := c.member(h.ID); err != nil {
		return nil, 0, err
	}
	resp, err := c.get(ctx, h, "/v2/box", query, key)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxList+1))
	if err == nil && len(text) > maxList {
		err = errTooLong
	}
	if err != nil {
		return nil, 0, err
	}
	var list []json.RawMessage
	err = json.Unmarshal(text, &list)
	return list, len(text), err
}

// listed returns the boxes of a host in the directory; empty if that does not answer.
func (c *Client) listed(ctx context.Context, host string) (list []api.Box) {
	if c.fleet.Fenced() {
		return nil
	}
	found, err := c.fleet.Directory().Boxes(ctx, host)
	if err != nil {
		c.log.Debug("the boxes of a host are not known", zap.String("host", host), zap.Error(err))
		return nil
	}
	for id, e := range found {
		list = append(list, api.Box{ID: policy.BoxID(id), Name: e.Name, Labels: e.Labels})
	}
	slices.SortFunc(list, func(a, b api.Box) int { return compare(a.ID, b.ID) })
	return list
}

func compare(a, b policy.BoxID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Place implements [boxgate/api/server.Elsewhere]: of two random hosts that take new boxes it returns the one with fewer.
func (c *Client) Place(ctx context.Context) (host string, err error) {
	candidates := slices.DeleteFunc(c.fleet.Members(), func(h fleet.Host) bool {
		return h.Cordoned || h.Address == "" && h.ID != c.fleet.Identity.Host
	})
	rand.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	for pair := range slices.Chunk(candidates, 2) { // further ones, if no gateway runs on the first
		var ids []string
		for _, h := range pair {
			ids = append(ids, h.ID)
		}
		present, err := c.fleet.Presences(ctx, ids...)
		if err != nil {
			return "", &api.Error{Kind: api.ErrUnavailable, Cause: err, Message: "no host was chosen for the box, because the directory of the fleet does not answer"}
		}
		host, fewest := "", 0
		for _, id := range ids {
			if p, ok := present[id]; ok && !p.Cordoned && (host == "" || p.Boxes < fewest) {
				host, fewest = id, p.Boxes
			}
		}
		switch host {
		case "":
			continue
		case c.fleet.Identity.Host:
			return "", nil
		}
		return host, nil
	}
	return "", api.Errorf(api.ErrUnavailable, "no host of the fleet takes new boxes: they are cordoned or away, or this one is cut off; `gateway fleet status` has their states")
}
