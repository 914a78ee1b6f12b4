// Package approvals lets boxes ask for access that their policies deny, and lets others answer.
//
// A request names one destination and a reason. It changes no policy: only an answer does, by the same steps as any other change,
// and only if the change has the effect that the author of the answer was shown. Requests are stored with the box,
// end with it, and are forgotten after [Lifetime].
package approvals

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit/trail"
	"boxgate/boundary"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/internal/fault"
	"boxgate/internal/ratelimit"
	"boxgate/internal/required"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store"
)

// Limits of one box.
const (
	MostOpen   = 16                  // open requests
	MostKept   = 128                 // requests within Lifetime, answered ones included
	Lifetime   = 24 * time.Hour      // of a request, since the box asked
	MostReason = 1000                // bytes of a reason
	MostWaits  = MostOpen            // responses that wait for an answer
	perSecond  = 10                  // requests to the endpoint, sustained
	burst      = 40                  // requests to the endpoint at a time
	newBurst   = 32                  // new destinations that a box asks for at a time: each takes a compilation of its policy
	newPerSec  = 1                   // such destinations, sustained
	settled    = time.Hour           // time during which a denial also answers the same request
	mostAnswer = 30 * 24 * time.Hour // of access for a time
)

// DefaultLasts is the duration of access if neither the request nor the answer has one.
const DefaultLasts = time.Hour

// Rules evaluates and changes policies. It is implemented by the service of package rules.
type Rules interface {
	// Policy returns the current policy of a box.
	Policy(ctx context.Context, id policy.BoxID) (api.PolicyState, error)
	// Entry returns a destination in canonical form, and the text of the entry of a policy that gives access to it.
	Entry(id policy.BoxID, to api.Destination) (canonical api.Destination, entry string, err error)
	// Candidate returns the effect of giving a box access to a destination. The error is an [api.ErrConflict] if the destination is
	// allowed already, and an [api.ErrForbidden] if an approval cannot open it.
	Candidate(ctx context.Context, id policy.BoxID, to api.Destination) (api.Candidate, error)
	// Grant gives a box access, if that has the effect with the digest. Otherwise the error is an [api.ErrConflict].
	Grant(ctx context.Context, id policy.BoxID, g api.Grant) (api.PolicyState, error)
}

// Trail records answers that no API call has given.
type Trail interface {
	// Append returns the number of an entry once it is on disk.
	Append(e trail.Entry) (uint64, error)
}

// Config configures a [Service].
type Config struct {
	Log   *zap.Logger
	Store store.Approvals
	// Records are the records of boxes, which keep whether a box may ask.
	Records store.Boxes
	Boxes   *state.Table
	Rules   Rules
	Trail   Trail
	// Enabled is false if no box may ask, whatever its own setting.
	Enabled bool
	// EveryBox is the setting of boxes that have none of their own.
	EveryBox bool
	// FourEyes refuses answers by the API key that created the box, and by keys for the box alone.
	FourEyes bool
	// Automatic approves each request that the ceiling permits, for a time.
	Automatic bool
	// Reviewer answers before a person does. nil: there is none.
	Reviewer Reviewer `required:"false"`
}

// Service keeps the requests of boxes and their answers. Safe for concurrent use.
type Service struct {
	Config

	queue   chan store.Approval // for the reviewer
	handing handing
	counts  counts
	started time.Time

	mu    sync.Mutex
	boxes map[policy.BoxID]*asker
}

// asker is the state of a box in memory.
type asker struct {
	turn  sync.Mutex // serialises requests and answers
	limit *ratelimit.Limiter
	fresh *ratelimit.Limiter // of new destinations

	mu      sync.Mutex
	waits   int
	changed chan struct{}          // closed at the next change of a request
	open    map[string]openRequest // by ID
}

// New returns a service.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Service{Config: c, queue: make(chan store.Approval, mostQueued), handing: newHanding(), counts: newCounts(), started: fault.Now(), boxes: map[policy.BoxID]*asker{}}, nil
}

// of returns the state of a box, and drops the states of deleted boxes.
func (s *Service) of(id policy.BoxID) *asker {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.boxes[id]
	if a == nil {
		for other := range s.boxes {
			if !s.Boxes.Has(other) {
				delete(s.boxes, other)
			}
		}
		a = &asker{limit: ratelimit.New(perSecond, burst, func() int64 { return 0 }), fresh: ratelimit.New(newPerSec, newBurst, func() int64 { return 0 }), changed: make(chan struct{}), open: map[string]openRequest{}}
		s.boxes[id] = a
	}
	return a
}

// notify wakes the waiting responses.
func (a *asker) notify() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.changed)
	a.changed = make(chan struct{})
}

// openRequest is a request that has not been answered.
type openRequest struct {
	to   api.Destination
	ends time.Time
}

// covers reports whether the request asks for a denied destination. Look-ups have no port.
func (o *openRequest) covers(d boundary.Denial) bool {
	if o.to.Host != d.Host || o.to.Port != d.Port && d.Port != 0 {
		return false
	}
	if o.to.Method == "" {
		return d.Reason != name.ReasonRequestRule
	}
	prefix, isPrefix := strings.CutSuffix(o.to.Path, "*")
	return o.to.Method == d.Method && (o.to.Path == d.Path || isPrefix && strings.HasPrefix(d.Path, prefix))
}

// note keeps count of the open requests.
func (a *asker) note(of store.Approval) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if of.State == string(api.ApprovalOpen) && isAlive(of) {
		a.open[of.ID] = openRequest{destinationOf(of), of.ExpiresAt}
	} else {
		delete(a.open, of.ID)
	}
}

// Asks reports whether a box may use the endpoint.
func (s *Service) Asks(id policy.BoxID) bool {
	if !s.Enabled {
		return false
	}
	b, err := s.Boxes.Find(id)
	if err != nil {
		return false
	}
	if own := b.Asks.Load(); own != nil {
		return *own
	}
	return s.EveryBox
}

// SetAsks changes whether a box may use the endpoint. nil: as configured.
func (s *Service) SetAsks(_ context.Context, id policy.BoxID, on *bool) (bool, error) {
	if on != nil && *on && !s.Enabled {
		return false, api.Errorf(api.ErrConflict, "this gateway serves no approvals; approvals.enabled in its configuration turns them on")
	}
	b, err := s.Boxes.Lock(id)
	if err != nil {
		return false, err
	}
	defer b.Unlock()
	record := b.Record
	record.Asks, record.UpdatedAt = on, fault.Now()
	if err := s.Records.Update(record); err != nil {
		return false, err
	}
	b.Record = record
	b.Publish()
	return s.Asks(id), nil
}

// Allow counts a request of a box to the endpoint, and reports whether it is within the rate.
func (s *Service) Allow(id policy.BoxID) bool {
	if s.of(id).limit.Allow() {
		return true
	}
	s.counts.refused.WithLabelValues(boundRate).Inc()
	return false
}

// Approvals returns the requests of a box, or of all boxes if id is "", oldest first.
func (s *Service) Approvals(ctx context.Context, id policy.BoxID) ([]api.Approval, error) {
	return s.list(id, func(a store.Approval) api.Approval { return s.view(ctx, a) })
}

func (s *Service) list(id policy.BoxID, view func(store.Approval) api.Approval) ([]api.Approval, error) {
	stored, err := s.Store.List(id)
	if err != nil {
		return nil, s.orReplaced(err)
	}
	list := []api.Approval{}
	for _, a := range stored {
		if isAlive(a) && s.Boxes.Has(a.Box) {
			list = append(list, view(a))
		}
	}
	return list, nil
}

// Approval returns a request of a box.
func (s *Service) Approval(ctx context.Context, id policy.BoxID, approval string) (api.Approval, error) {
	a, err := s.find(id, approval)
	if err != nil {
		return api.Approval{}, err
	}
	return s.view(ctx, a), nil
}

func (s *Service) find(id policy.BoxID, approval string) (store.Approval, error) {
	list, err := s.Store.List(id)
	if err != nil {
		return store.Approval{}, s.orReplaced(err)
	}
	i := slices.IndexFunc(list, func(a store.Approval) bool { return a.ID == approval && isAlive(a) })
	if i < 0 {
		return store.Approval{}, errUnknown
	}
	return list[i], nil
}

var errUnknown = api.Errorf(api.ErrNotFound, "there is no such request; it may have expired")

func isAlive(a store.Approval) bool { return fault.Now().Before(a.ExpiresAt) }

// plain returns a request as the box sees it: without the effect of an approval, which takes a compilation of the policy.
func plain(a store.Approval) api.Approval {
	return api.Approval{
		ID: a.ID, Box: a.Box, Host: a.Host, Port: a.Port, Method: a.Method, Path: a.Path, Entry: a.Entry, Reason: a.Reason, Lasts: a.Lasts, State: api.ApprovalState(a.State), Answer: a.Answer,
		Key: a.Key, By: a.KeyName, Human: a.Human, Until: a.Until, Version: a.Version, CreatedAt: a.CreatedAt, ExpiresAt: a.ExpiresAt, ClosedAt: a.ClosedAt,
	}
}

// view returns a request as the API shows it, with the current effect of an approval.
func (s *Service) view(ctx context.Context, a store.Approval) api.Approval {
	v := plain(a)
	if v.State != api.ApprovalOpen {
		return v
	}
	if b, err := s.Boxes.Find(a.Box); err == nil {
		if err := s.mayAnswer(api.CallerOf(ctx), b.View()); err != nil {
			v.Barred = err.Error()
		}
	}
	c, err := s.Rules.Candidate(ctx, a.Box, destinationOf(a))
	if err != nil {
		v.Obstacle = err.Error()
		return v
	}
	v.Candidate = &c
	return v
}

// Ask stores a request of a box. created is false if the box has made the same request before: it is open, or was denied within
// the last hour, and is returned again. The error is an [api.ErrConflict] if the destination is allowed already, also by another change of
// the policy than an answer. The result is without the effect of an approval.
func (s *Service) Ask(ctx context.Context, id policy.BoxID, r api.ApprovalRequest) (_ api.Approval, created bool, err error) {
	if err := checkText("/reason", r.Reason); err != nil {
		return api.Approval{}, false, err
	}
	if r.Lasts < 0 || r.Lasts > mostAnswer {
		return api.Approval{}, false, change.InvalidAt("/expires_in", "must be between 1 second and 30 days")
	}
	if _, err := name.Parse(r.Host); err == nil && r.Port == 0 {
		r.Port = name.HTTPSPort
	}
	to, entry, err := s.Rules.Entry(id, r.Destination)
	if err != nil {
		return api.Approval{}, false, err
	}
	a := s.of(id)
	a.turn.Lock()
	defer a.turn.Unlock()
	list, err := s.Store.List(id)
	if err != nil {
		return api.Approval{}, false, s.orReplaced(err)
	}
	same, forget, err := s.admit(list, entry)
	if err != nil {
		return api.Approval{}, false, err
	}
	if same != nil && same.State == string(api.ApprovalOpen) && !s.Automatic {
		return plain(*same), false, s.allowedSince(ctx, a, *same)
	}
	if !a.fresh.Allow() {
		s.counts.refused.WithLabelValues(boundRate).Inc()
		return api.Approval{}, false, api.Errorf(api.ErrLimit, "the box asks for more destinations than %d at a time and %d a second; wait, then repeat the request", newBurst, newPerSec)
	}
	candidate, err := s.Rules.Candidate(ctx, id, to)
	if err != nil {
		return api.Approval{}, false, err
	}
	if same != nil {
		if same.State == string(api.ApprovalOpen) && withinCeiling(*same, candidate) { // the gateway was replaced at that moment, or the answer could not be stored
			*same = s.approveByCeiling(ctx, *same, candidate)
		}
		return plain(*same), false, nil
	}
	now := fault.Now().UTC().Round(0)
	asked := store.Approval{
		ID: newID(), Box: id, Host: to.Host, Port: to.Port, Method: to.Method, Path: to.Path, Entry: entry, Reason: r.Reason, Lasts: r.Lasts,
		State: string(api.ApprovalOpen), CreatedAt: now, ExpiresAt: now.Add(Lifetime),
	}
	if err := s.Store.Add(asked, forget); err != nil {
		return api.Approval{}, false, s.orReplaced(err)
	}
	a.note(asked)
	s.counts.asked.Inc()
	s.Log.Info("a box asks for access", zap.String("box", string(id)), zap.String("approval", asked.ID), zap.String("entry", entry), zap.String("candidate", candidate.Digest))
	return plain(s.review(ctx, asked, candidate)), true, nil
}

// allowedSince returns an [api.ErrConflict] if a change of the policy has allowed the destination of an open request. If the box asks too
// often, it learns of that later.
func (s *Service) allowedSince(ctx context.Context, box *asker, a store.Approval) error {
	if !box.fresh.Allow() {
		return nil
	}
	if _, err := s.Rules.Candidate(ctx, a.Box, destinationOf(a)); errors.Is(err, api.ErrConflict) {
		return err
	}
	return nil
}

// destinationOf returns the destination of a request.
func destinationOf(a store.Approval) api.Destination {
	return api.Destination{Host: a.Host, Port: a.Port, Method: a.Method, Path: a.Path}
}

// admit finds the same request among those of a box, or decides whether the box may make another. forget are expired requests.
func (s *Service) admit(list []store.Approval, entry string) (same *store.Approval, forget []string, err error) {
	open, kept := 0, 0
	for i, a := range list {
		if !isAlive(a) {
			forget = append(forget, a.ID)
			continue
		}
		kept++
		switch isOpen := a.State == string(api.ApprovalOpen); {
		case a.Entry == entry && (isOpen || a.State == string(api.ApprovalDenied) && fault.Now().Sub(a.ClosedAt) < settled):
			same = &list[i]
		case isOpen:
			open++
		}
	}
	switch {
	case same != nil:
	case open >= MostOpen:
		s.counts.refused.WithLabelValues(boundOpen).Inc()
		return nil, nil, api.Errorf(api.ErrLimit, "a box has at most %d open requests; wait for an answer to one of them", MostOpen)
	case kept >= MostKept:
		s.counts.refused.WithLabelValues(boundDay).Inc()
		return nil, nil, api.Errorf(api.ErrLimit, "a box makes at most %d requests in %v", MostKept, Lifetime)
	}
	return same, forget, nil
}

// newID returns the ID of a request: unique among all boxes, as an answer names it.
func newID() string { return strings.ToLower(rand.Text()[:12]) }

// checkText refuses a text that is empty, too long, or contains control characters other than line breaks and tabs.
func checkText(pointer, text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return change.InvalidAt(pointer, "is missing")
	case len(text) > MostReason:
		return change.InvalidAt(pointer, "has more than 1,000 bytes")
	case !utf8.ValidString(text):
		return change.InvalidAt(pointer, "must be UTF-8")
	case strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }):
		return change.InvalidAt(pointer, "contains control characters")
	}
	return nil
}

// Wait returns a request of a box once it is answered, or as it is when ctx ends or another process takes over. The result is without
// the effect of an approval.
func (s *Service) Wait(ctx context.Context, id policy.BoxID, approval string) (api.Approval, error) {
	a := s.of(id)
	if !a.enter() {
		s.counts.refused.WithLabelValues(boundWaits).Inc()
		return api.Approval{}, api.Errorf(api.ErrLimit, "the box has %d responses that wait; end one, or wait for several requests one after the other", MostWaits)
	}
	defer a.leave()
	for {
		changed := a.next()
		found, err := s.find(id, approval)
		if err != nil {
			return api.Approval{}, err
		}
		if found.State != string(api.ApprovalOpen) {
			return plain(found), nil
		}
		expired := time.NewTimer(found.ExpiresAt.Sub(fault.Now()))
		select {
		case <-changed:
			expired.Stop()
			if !s.handing.isReleased() {
				continue
			}
		case <-expired.C:
			continue // which is then not found
		case <-ctx.Done():
		case <-s.handing.retired:
		}
		expired.Stop()
		return plain(found), nil
	}
}

func (a *asker) enter() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waits >= MostWaits {
		return false
	}
	a.waits++
	return true
}

func (a *asker) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waits--
}

// next returns a channel that is closed at the next change.
func (a *asker) next() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

// errAnswered refuses a second answer.
var errAnswered = errors.New("it has been answered")
