package rules

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"go.uber.org/zap"

	"boxgate/api"
	apichange "boxgate/api/change"
	"boxgate/api/rest"
	"boxgate/audit/trail"
	"boxgate/fleet"
	"boxgate/fleet/shared"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/store"
)

// Fleet has the named policies of the fleet; implemented by [boxgate/fleet/node.Shared].
type Fleet interface {
	// Change changes objects of a kind by their IDs, and returns when the change is in force on this host or, with everywhere, on every host
	// of the fleet.
	Change(ctx context.Context, kind shared.Kind, everywhere bool, edit func(objects map[string][]byte) error) error
	// Fenced reports whether the policies of the fleet may be out of date.
	Fenced() bool
}

// fleetRecord is a named policy of the fleet in etcd, under its name. A record with fields that this version does not know is not usable.
type fleetRecord struct {
	Spec    policy.Spec `json:"spec"`
	Version uint64      `json:"version"`
	// Who made this version: the host, and its API key.
	Host  string    `json:"host"`
	KeyID string    `json:"key_id,omitempty"`
	Key   string    `json:"key,omitempty"`
	Role  string    `json:"role,omitempty"`
	At    time.Time `json:"at"`
}

// fleetName matches the names of named policies that calls of the API make. Resources have other names.
var fleetName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// readFleet reads the record of a policy of the fleet.
func readFleet(record []byte) (r fleetRecord, err error) {
	if len(record) > shared.MaxValue {
		return r, fmt.Errorf("it has more than %d bytes", shared.MaxValue)
	}
	dec := json.NewDecoder(bytes.NewReader(record))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil || dec.More() || r.Version == 0 {
		return fleetRecord{}, errors.New("a later version of boxgate, or another program, wrote it")
	}
	return r, nil
}

// recordDigest identifies the record of a policy of the fleet.
func recordDigest(record []byte) string {
	sum := sha256.Sum256(record)
	return hex.EncodeToString(sum[:])
}

// fleetPolicies are the named policies of the fleet, as this host knows them. The zero value is empty. Safe for concurrent use.
type fleetPolicies struct {
	applying sync.Mutex     // held while they are applied
	failures map[string]int // consecutive ones of a record, by its digest; guarded by applying
	retried  map[string]bool

	mu      sync.Mutex
	records map[string][]byte // nil: not applied by this process yet
	made    map[string]string // the digest of the last record that this process made, by name
}

// note remembers a record that this process makes.
func (f *fleetPolicies) note(name, digest string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made == nil || len(f.made) > 2*mostNamed {
		f.made = map[string]string{}
	}
	f.made[name] = digest
}

// isOwn reports whether this process made the record.
func (f *fleetPolicies) isOwn(name, digest string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made[name] == digest
}

func (f *fleetPolicies) has(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.records[name]
	return ok
}

func (f *fleetPolicies) set(records map[string][]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.records = records
}

func (f *fleetPolicies) all() map[string][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.records
}

// errOfFleet refuses a change of a policy of the fleet that does not ask for one.
func errOfFleet(name string) error {
	return api.Errorf(api.ErrConflict, "the named policy %q is that of the fleet: to change it on all hosts, ask with fleet=true, or gateway policy named set --fleet", name)
}

// notOfFleet refuses a change of the fleet's policy with a name that a policy of this host has.
func (p *Service) notOfFleet(name string) error {
	if p.fleet == nil {
		return api.Errorf(api.ErrConflict, "this gateway is not a member of a fleet: fleet.name is not set")
	}
	if old, known := p.shared.named.find(name); known && old.Fleet == "" {
		return api.Errorf(api.ErrConflict, "the named policy %q is one of this host, which the fleet cannot share; choose another name, or delete it here first", name)
	}
	return nil
}

// SetFleetPolicy implements the Host of [boxgate/api/rules]. If hosts do not have the policy in force within a time, the error is an
// ErrUnavailable that names them, and they apply it when they can.
func (p *Service) SetFleetPolicy(ctx context.Context, name string, spec policy.Spec, ifMatch *uint64) (api.NamedPolicy, error) {
	if err := errors.Join(p.mayChange(store.Policy{}, nil), p.notOfFleet(name)); err != nil {
		return api.NamedPolicy{}, err
	}
	in := p.shared.sharedInputs()
	in.spec, in.tokens = spec, store.NewKey()
	alone, err := in.compile()
	if err != nil {
		return api.NamedPolicy{}, err
	}
	var was fleetRecord
	err = p.fleet.Change(ctx, shared.Policies, true, func(records map[string][]byte) error {
		was, _ = readFleet(records[name]) // without a readable one, the next version is 1
		if ifMatch != nil && *ifMatch != was.Version {
			return api.ErrPrecondition
		}
		by := api.CallerOf(ctx)
		record, err := json.Marshal(fleetRecord{Spec: spec, Version: was.Version + 1, Host: p.hostID, KeyID: by.Key, Key: by.Name, Role: string(by.Role), At: time.Now().UTC()})
		if err != nil {
			return err
		}
		records[name] = record
		p.fleetPolicies.note(name, recordDigest(record))
		return mayShare(records, name)
	})
	if err != nil {
		return api.NamedPolicy{}, p.fleetNotChanged(err)
	}
	now, _ := p.shared.named.find(name)
	view := p.namedView(name, now)
	view.Warnings, view.Was = append(alone.Warnings(), view.Warnings...), was.Spec
	return view, nil
}

// mayShare refuses records of the fleet beyond the bounds. name is the one that is added.
func mayShare(records map[string][]byte, name string) error {
	if size := len(records[name]); size > shared.MaxValue {
		return api.Errorf(api.ErrConflict, "the policy has %d bytes with its author; one of the fleet has at most %d", size, shared.MaxValue)
	}
	total := 0
	for _, record := range records {
		total += len(record) + mostFleetKey
	}
	switch {
	case len(records) > mostNamed:
		return api.Errorf(api.ErrConflict, "a fleet has at most %d named policies; delete some", mostNamed)
	case total > shared.MaxBytes:
		return api.Errorf(api.ErrConflict, "the named policies of the fleet would have %d bytes; the limit is %d", total, shared.MaxBytes)
	}
	return nil
}

// mostFleetKey is more than the key of a record has in bytes.
const mostFleetKey = 256

// DeleteFleetPolicy implements the Host of [boxgate/api/rules]. Boxes of other hosts that follow the policy keep it as it is.
func (p *Service) DeleteFleetPolicy(ctx context.Context, name string, ifMatch *uint64) (api.NamedPolicy, error) {
	if err := errors.Join(p.mayChange(store.Policy{}, nil), p.notOfFleet(name)); err != nil {
		return api.NamedPolicy{}, err
	}
	if old, known := p.shared.named.find(name); known {
		if boxes := p.namedView(name, old).Boxes; len(boxes) > 0 {
			return api.NamedPolicy{}, inUse(name, boxes)
		}
	}
	var was fleetRecord
	err := p.fleet.Change(ctx, shared.Policies, true, func(records map[string][]byte) error {
		record, known := records[name]
		if !known {
			return errNoNamed(name)
		}
		was, _ = readFleet(record)
		if ifMatch != nil && *ifMatch != was.Version {
			return api.ErrPrecondition
		}
		delete(records, name)
		return nil
	})
	if errors.Is(err, api.ErrNotFound) && p.dropGone(name) {
		return api.NamedPolicy{Name: name, Fleet: true}, nil
	}
	if err != nil {
		return api.NamedPolicy{}, p.fleetNotChanged(err)
	}
	return api.NamedPolicy{Name: name, Spec: was.Spec, Version: was.Version, Fleet: true}, nil
}

// fleetNotChanged is the error of a change of the fleet's policies. Without an answer of etcd, the outcome is not known.
func (p *Service) fleetNotChanged(err error) error {
	switch {
	case errors.Is(err, shared.ErrBehind), errors.Is(err, shared.ErrContended), errors.Is(err, shared.ErrTooLarge), errors.Is(err, shared.ErrFenced), errors.Is(err, shared.ErrUnsupported):
		p.log.Warn("a change of a named policy of the fleet", zap.Error(err))
		return api.Errorf(api.ErrUnavailable, "the named policies of the fleet: %w", err)
	case errors.Is(err, fleet.ErrUnreachable):
		p.log.Warn("a change of a named policy of the fleet", zap.Error(err))
		return api.Errorf(api.ErrUnavailable, "whether the named policies of the fleet were changed is not known, list them: %w", err)
	}
	return err
}

// ApplyFleet makes records the named policies of the fleet on this host, as a [shared.Apply] does: each together with the boxes that follow
// it, in one step. A policy of this host with the name of one stays as it is. A record that cannot be in force here, now or after
// several attempts, denies everything for its boxes, so that it does not keep the host fenced.
func (p *Service) ApplyFleet(records map[string][]byte) error {
	f := &p.fleetPolicies
	f.applying.Lock()
	defer f.applying.Unlock()
	usable, odd := map[string][]byte{}, 0
	for _, name := range slices.Sorted(maps.Keys(records)) {
		if !fleetName.MatchString(name) || len(usable) >= mostNamed {
			odd++
			continue
		}
		usable[name] = records[name]
	}
	if odd > 0 {
		p.log.Warn("named policies of the fleet are ignored: their names are not valid, or there are too many", zap.Int("records", odd))
	}
	f.set(usable)
	return change.Contain(p.log, p.applyRecords)
}

// applyRecords applies the known records of the fleet. The caller holds applying.
func (p *Service) applyRecords() (err error) {
	waiting, cancel := context.WithTimeout(context.Background(), p.fleetPatience)
	defer cancel()
	f, records := &p.fleetPolicies, p.fleetPolicies.all()
	digests := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(records)) {
		digest := recordDigest(records[name])
		digests[digest] = true
		err = errors.Join(err, p.applyRecord(waiting, name, digest, records[name]))
	}
	maps.DeleteFunc(f.failures, func(digest string, _ int) bool { return !digests[digest] })
	maps.DeleteFunc(f.retried, func(digest string, _ bool) bool { return !digests[digest] })
	for name, named := range p.shared.named.copied() {
		if _, ok := records[name]; !ok && named.Fleet != "" {
			err = errors.Join(err, p.withdraw(waiting, name))
		}
	}
	return err
}

// attemptsOfRecord is how often a record is tried before the boxes that follow it are closed.
const attemptsOfRecord = 3

// applyRecord applies a record of the fleet, unless it is in force. It waits for other changes until waiting is done.
func (p *Service) applyRecord(waiting context.Context, name, digest string, record []byte) error {
	f := &p.fleetPolicies
	now, known := p.shared.named.find(name)
	switch {
	case known && now.Fleet == "":
		p.log.Warn("a named policy of the fleet is not in force on this host: a policy of the host has its name", zap.String("policy", name))
		return nil
	case known && now.Fleet == digest && !now.Gone && (now.Problem == "" || f.retried[digest]):
		return nil
	}
	if f.retried == nil {
		f.retried, f.failures = map[string]bool{}, map[string]int{}
	}
	r, problem := p.checkRecord(record)
	next := store.Policy{Spec: r.Spec, Version: r.Version, Fleet: digest}
	if problem == nil {
		err := p.replaceByFleet(waiting, name, next, r)
		switch f.failures[digest]++; {
		case err == nil:
			delete(f.failures, digest)
			return nil
		case errors.Is(err, errBusy), errors.Is(err, state.ErrHandedOver):
			f.failures[digest]--
			return err
		case !errors.Is(err, api.ErrConflict) && f.failures[digest] < attemptsOfRecord:
			return err
		}
		problem = err
	}
	next.Spec, next.Problem = policy.Spec{Mode: policy.ModeDenyAll}, "on this host the policy cannot be in force, so that it denies everything to the boxes that follow it: "+clip(problem.Error())
	p.log.Error("a named policy of the fleet cannot be in force on this host: boxes that follow it are closed", zap.String("policy", name), zap.Error(problem))
	if err := p.replaceByFleet(waiting, name, next, r); err != nil {
		return err
	}
	f.retried[digest] = true
	return nil
}

// checkRecord reads a record of the fleet, and compiles it without a box. A panic is a problem of the record, which must not end this gateway
// again and again.
func (p *Service) checkRecord(record []byte) (r fleetRecord, problem error) {
	err := change.Contain(p.log, func() error {
		if r, problem = readFleet(record); problem != nil {
			return nil
		}
		in := p.shared.sharedInputs()
		in.spec, in.version, in.tokens = r.Spec, r.Version, store.NewKey()
		_, problem = in.compile()
		return nil
	})
	return r, errors.Join(problem, err)
}

// clip returns a text of another host for people: of bounded length, without control characters.
func clip(text string) string {
	const most = 256
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// errBusy is the error of a change of the fleet for which other changes hold the locks.
var errBusy = errors.New("other changes hold boxes that take the rules of the fleet")

// fleetPatience is how long the changes of the fleet that are applied together wait for other changes. Later ones of the fleet, such as of
// API keys, wait for them.
const fleetPatience = 5 * time.Second

// tryLocker is a lock that can be tried, such as [sync.RWMutex].
type tryLocker interface {
	sync.Locker
	TryLock() bool
}

// lockWithin takes a lock unless it is not free before ctx is done. It does not starve while others take the lock in turn.
func lockWithin(ctx context.Context, l tryLocker) bool {
	switch {
	case l.TryLock():
		return true
	case ctx.Done() == nil:
		l.Lock()
		return true
	case ctx.Err() != nil:
		return false
	}
	locked := make(chan struct{})
	go func() {
		l.Lock()
		select {
		case locked <- struct{}{}:
		case <-ctx.Done():
			l.Unlock()
		}
	}()
	select {
	case <-locked:
		return true
	case <-ctx.Done():
		return false
	}
}

// lockFollowersWithin is lockFollowers for a change that must not wait for long.
func (p *Service) lockFollowersWithin(ctx context.Context, name string) (list []*state.Box, err error) {
	changing := &p.shared.named.changing
	if !lockWithin(ctx, changing) {
		return nil, errBusy
	}
	for _, b := range p.boxes.All() {
		switch {
		case b.Applied.Load().Named != name:
		case !lockWithin(ctx, b):
			unlock(list)
			changing.Unlock()
			return nil, fmt.Errorf("%w: box %s", errBusy, b.ID)
		case b.Deleted:
			b.Unlock()
		default:
			list = append(list, b)
		}
	}
	return list, nil
}

// replaceByFleet makes next the policy called name, together with all boxes that follow it, and records who made it.
func (p *Service) replaceByFleet(waiting context.Context, name string, next store.Policy, by fleetRecord) error {
	by = p.shownAuthor(name, next.Fleet, by)
	ctx := api.WithCaller(context.Background(), api.Caller{Key: by.KeyID, Name: by.Key, Role: api.Role(by.Role)})
	boxes, err := p.lockFollowersWithin(waiting, name)
	if err != nil {
		return err
	}
	defer p.shared.named.changing.Unlock()
	defer unlock(boxes)
	old, known := p.shared.named.find(name)
	if err := p.mayChange(old, nil); err != nil || known && old.Fleet == "" {
		return err
	}
	changed, err := p.changeNamed(ctx, name, next, boxes)
	if err != nil {
		return err
	}
	view := p.namedView(name, next)
	view.Was, view.Followers = old.Spec, changed
	p.recordFleet(by, name, apichange.OfNamed(view))
	return nil
}

// withdraw removes a policy that the fleet has deleted. If boxes follow it, they keep it as it is, and no further box may follow it.
func (p *Service) withdraw(waiting context.Context, name string) error {
	named := &p.shared.named
	if !lockWithin(waiting, &named.changing) {
		return errBusy
	}
	defer named.changing.Unlock()
	old, known := named.find(name)
	if err := p.mayChange(old, nil); err != nil || !known || old.Fleet == "" {
		return err
	}
	err := error(store.ErrConflict)
	if len(p.namedView(name, old).Boxes) == 0 {
		err = p.store.DeleteNamed(name)
	}
	switch {
	case err == nil, errors.Is(err, store.ErrNotFound):
		all := named.copied()
		delete(all, name)
		named.set(all)
		return nil
	case !errors.Is(err, store.ErrConflict):
		return change.NotStored(p.log, "the deletion of a named policy of the fleet could not be stored", err)
	case old.Gone:
		return nil
	}
	next := old
	next.Gone = true
	if err := p.store.KeepNamed(name, next); err != nil {
		return change.NotStored(p.log, "the deletion of a named policy of the fleet could not be stored", err)
	}
	p.setNamed(name, next)
	p.log.Warn("the fleet has deleted a named policy that boxes of this host follow; they keep it as it is", zap.String("policy", name))
	return nil
}

// dropGone removes the copy of a policy that the fleet has deleted before, if no box follows it any longer.
func (p *Service) dropGone(name string) bool {
	p.fleetPolicies.applying.Lock()
	defer p.fleetPolicies.applying.Unlock()
	if old, known := p.shared.named.find(name); !known || !old.Gone || old.Fleet == "" {
		return false
	}
	waiting, cancel := context.WithTimeout(context.Background(), p.fleetPatience)
	defer cancel()
	err := p.withdraw(waiting, name)
	_, known := p.shared.named.find(name)
	return err == nil && !known
}

// sharedAgain makes the policy of the fleet with a name that a policy of this host had until now the one in force.
func (p *Service) sharedAgain(name string) {
	f := &p.fleetPolicies
	f.applying.Lock()
	defer f.applying.Unlock()
	record, ok := f.all()[name]
	if !ok {
		return
	}
	waiting, cancel := context.WithTimeout(context.Background(), p.fleetPatience)
	defer cancel()
	if err := p.applyRecord(waiting, name, recordDigest(record), record); err != nil {
		p.log.Error("a named policy of the fleet could not be applied; it is tried again with the next change", zap.String("policy", name), zap.Error(err))
	}
}

// leaveFleet makes the policies of the fleet the own ones of a host that is no longer a member.
func (p *Service) leaveFleet() error {
	if p.fleet != nil {
		return nil
	}
	for name, named := range p.shared.named.copied() {
		if named.Fleet == "" {
			continue
		}
		own := store.Policy{Spec: named.Spec, Version: named.Version}
		if err := p.store.KeepNamed(name, own); err != nil {
			return err
		}
		p.setNamed(name, own)
	}
	return nil
}

// fleetWarnings are the warnings of a named policy about the fleet.
func (p *Service) fleetWarnings(name string, named store.Policy) (list []document.Problem) {
	say := func(format string, args ...any) {
		list = append(list, document.Problem{Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case named.Fleet == "" && named.Resource == "" && p.fleetPolicies.has(name):
		say("the fleet has a policy with this name too, which is not in force on this host: boxes here follow the policy of the host; delete it, or give it another name")
	case named.Fleet != "" && named.Gone:
		say("the fleet has deleted this policy: boxes that follow it keep it as it is, and no further box may follow it; give them another one")
	}
	if named.Problem != "" {
		say("%s", named.Problem)
	}
	return list
}

// ofFleetKey is the ID of the author of a change of the fleet whose record has none.
const ofFleetKey = "fleet"

// shownAuthor returns the record with its author for the histories and the audit trail of this host. The ID of a key of another host has the
// ID of that host before it, so that it is not taken for a key of this one: hosts have an operator's key each, and whoever writes to
// etcd can name any.
func (p *Service) shownAuthor(name, digest string, by fleetRecord) fleetRecord {
	by.Host, by.KeyID, by.Key, by.Role = clip(by.Host), clip(by.KeyID), clip(by.Key), clip(by.Role)
	switch {
	case by.KeyID == "":
		by.KeyID = ofFleetKey
	case !p.fleetPolicies.isOwn(name, digest) && !p.isKeyOfFleet(by.KeyID):
		by.KeyID = by.Host + "/" + by.KeyID
	}
	return by
}

func (p *Service) isKeyOfFleet(id string) bool {
	all, err := p.keys.All()
	return err == nil && slices.ContainsFunc(all, func(k store.APIKey) bool { return k.Fleet && k.ID == id })
}

// recordFleet writes a change by the fleet to the audit trail of this host, with an entry for each box whose policy changed.
func (p *Service) recordFleet(by fleetRecord, name string, change *rest.Change) {
	note := "named policy " + name + " of the fleet, changed on host " + by.Host
	var list []trail.Entry
	for _, c := range append([]rest.Change{*change}, change.Also...) {
		data, err := json.Marshal(c.What)
		if err != nil {
			continue
		}
		list = append(list, trail.Entry{Kind: trail.Policy, Box: c.Box, PolicyVersion: c.PolicyVersion, KeyID: by.KeyID, Key: by.Key, Change: trail.Change{RawMessage: data}, Note: note})
	}
	if _, err := p.trail.AppendAll(list); err != nil {
		p.log.Error("the change of a named policy by the fleet is not in the audit trail", zap.String("policy", name), zap.Error(err))
	}
}
