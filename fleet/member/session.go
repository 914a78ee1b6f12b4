// Package member keeps one host a member of its fleet: it holds the lease and the presence of the host in etcd, and the fence that
// closes when the lease may have ended.
package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/internal/required"
)

// TTL is the time to live of a host's lease: how long the others wait for a host that is gone, and how long a host that is cut off
// goes on with shared rules.
const TTL = 15 * time.Second

// Config configures a [Session].
type Config struct {
	Client   *clientv3.Client
	Keys     fleet.Keys
	Host     string // ID
	Founding string // ID of the fleet that the host joined
	Key      []byte // fingerprint of the host's key, as in its [fleet.Host]
	Presence fleet.Presence
	TTL      time.Duration // whole seconds
	// OnClaim is called after each successful claim, before the fence opens: what the host knows of the fleet may be out of date. It must not
	// block. nil: no call.
	OnClaim func() `required:"false"`
	Log     *zap.Logger
}

// Session is the membership of a running gateway. Safe for concurrent use.
type Session struct {
	Config
	fence Fence

	claiming sync.Mutex       // held during requests that change the presence
	lease    clientv3.LeaseID // written with claiming held, by the goroutine of Start and Run
	kept     int              // keep-alives that succeeded
	mu       sync.Mutex
	problem  error // why there is no lease; nil: there is one
	recheck  chan struct{}
	asked    atomic.Int64 // calls of Recheck
	answered atomic.Int64 // the calls before the last successful claim began
}

// Errors of a claim.
var (
	// ErrCloned: another gateway holds the host ID and keeps its lease alive.
	ErrCloned = errors.New("another gateway is running with the ID of this host")
	// ErrRemoved: the host is not, or no longer, a member of the fleet.
	ErrRemoved = errors.New("this host is not a member of the fleet any longer")
	// ErrReplaced: etcd has another fleet of this name, or another membership with the ID of this host.
	ErrReplaced = errors.New("this host is not a member of the fleet any longer: the fleet was founded again, or a host with the same ID has joined since")
	// ErrProtocol: the fleet, or the record of this host, is that of a later version.
	ErrProtocol = errors.New("the fleet has the protocol of a later version of boxgate: update this host")
)

// New returns a session without a lease: [Session.Fenced] is true.
func New(c Config) (*Session, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Session{Config: c, problem: errors.New("no lease yet"), recheck: make(chan struct{}, 1)}, nil
}

// Fenced reports whether the lease of this host may have ended. Shared rules, keys of the fleet and new boxes must then be refused.
// It does not block or allocate.
func (s *Session) Fenced() bool {
	return s.fence.Closed() || s.answered.Load() != s.asked.Load()
}

// Left returns how long the session is not fenced without another keep-alive.
func (s *Session) Left() time.Duration { return s.fence.Left() }

// Problem returns why the host has no lease; nil if it has one.
func (s *Session) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// Recheck makes [Session.Run] claim the presence again, because the record of the host was deleted or changed. Until that has
// succeeded the session is fenced.
func (s *Session) Recheck() {
	s.asked.Add(1)
	select {
	case s.recheck <- struct{}{}:
	default:
	}
}

// Start claims the host ID. A gateway that the same machine ran before with the same store is replaced. Another one is given the time
// to let its lease end; [ErrCloned] means that it did not. If etcd is away the error is [fleet.ErrUnreachable], and [Session.Run] goes
// on trying.
func (s *Session) Start(ctx context.Context) error {
	for limit := (time.Time{}); ; {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		held, err := s.claim(call, true)
		cancel()
		if !errors.Is(err, ErrCloned) {
			return s.note(err)
		}
		if limit.IsZero() {
			limit = time.Now().Add(held + time.Second)
		}
		gone, errWait := s.awaitEnd(ctx, time.Until(limit))
		if errWait != nil {
			return s.note(errWait)
		}
		if !gone {
			return s.note(err)
		}
	}
}

// callTimeout bounds one request of a claim.
const callTimeout = 5 * time.Second

// awaitEnd waits until the presence is deleted. gone is false if it was not within the time.
func (s *Session) awaitEnd(ctx context.Context, most time.Duration) (gone bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	key := s.Keys.Presence(s.Host)
	now, err := s.Client.Get(waiting, key)
	if err != nil {
		return false, fleet.Unreachable(waiting, err)
	}
	if len(now.Kvs) == 0 {
		return true, nil
	}
	for answer := range s.Client.Watch(waiting, key, clientv3.WithRev(now.Header.Revision+1)) {
		if err := answer.Err(); err != nil && waiting.Err() == nil {
			return false, fleet.Unreachable(ctx, err)
		}
		for _, e := range answer.Events {
			if e.Type == clientv3.EventTypeDelete {
				return true, nil
			}
		}
	}
	return false, ctx.Err()
}

// claim grants a lease and writes the presence with it. With takeover, it replaces the presence of an earlier process of this
// machine, which no longer holds the store. held is the TTL of the lease of another holder.
func (s *Session) claim(ctx context.Context, takeover bool) (held time.Duration, err error) {
	s.claiming.Lock()
	defer s.claiming.Unlock()
	asked := s.asked.Load()
	sent, ok := boottime()
	if !ok {
		return 0, errors.New("the kernel has no CLOCK_BOOTTIME")
	}
	granted, held, err := s.write(ctx, takeover)
	if err != nil {
		if granted != nil {
			s.revoke(granted.ID)
		}
		return held, err
	}
	s.lease = granted.ID
	if s.OnClaim != nil {
		s.OnClaim()
	}
	s.answered.Store(asked)
	s.fence.extend(sent, time.Duration(granted.TTL)*time.Second)
	return 0, nil
}

// write writes the presence with a new lease, if the host is a member and the ID is free or this host's own. What was read for this decision
// is compared in the transaction. A host that is refused reads etcd, and writes nothing. With an error there may be a lease.
func (s *Session) write(ctx context.Context, takeover bool) (granted *clientv3.LeaseGrantResponse, held time.Duration, err error) {
	founding, member, key := s.Keys.Founding(), s.Keys.Host(s.Host), s.Keys.Presence(s.Host)
	text, err := fleet.Encode(s.Presence)
	if err != nil {
		return granted, 0, err
	}
	for {
		read, err := s.Client.Txn(ctx).Then(clientv3.OpGet(founding), clientv3.OpGet(member), clientv3.OpGet(key)).Commit()
		if err != nil {
			return granted, 0, fleet.Unreachable(ctx, err)
		}
		kvs := func(i int) []*mvccpb.KeyValue { return read.Responses[i].GetResponseRange().Kvs }
		if err := s.isMember(kvs(0), kvs(1)); err != nil {
			return granted, 0, err
		}
		revision := int64(0)
		if present := kvs(2); len(present) > 0 {
			if err := s.mayReplace(present[0].Value, takeover); err != nil {
				return granted, s.timeToLive(ctx, clientv3.LeaseID(present[0].Lease)), err
			}
			revision = present[0].ModRevision
		}
		if granted == nil {
			if granted, err = s.Client.Grant(ctx, int64(s.TTL/time.Second)); err != nil {
				return nil, 0, fleet.Unreachable(ctx, err)
			}
		}
		same := func(key string, revision int64) clientv3.Cmp {
			return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
		}
		answer, err := s.Client.Txn(ctx).If(same(founding, kvs(0)[0].ModRevision), same(member, kvs(1)[0].ModRevision), same(key, revision)).
			Then(clientv3.OpPut(key, text, clientv3.WithLease(granted.ID))).Commit()
		if err != nil {
			return granted, 0, fleet.Unreachable(ctx, err)
		}
		if answer.Succeeded {
			return granted, 0, nil
		}
	}
}

// isMember returns nil if this host, with its key, is a member of the fleet that it joined, whose protocol it knows.
func (s *Session) isMember(founding, host []*mvccpb.KeyValue) error {
	if len(founding) == 0 || len(host) == 0 {
		return ErrRemoved
	}
	f, err := fleet.Decode[fleet.Founding](founding[0].Value)
	if err != nil {
		return err
	}
	h, err := fleet.Decode[fleet.Host](host[0].Value)
	switch {
	case err != nil:
		return err
	case f.ID != s.Founding || h.ID != s.Host || !bytes.Equal(h.Key, s.Key):
		return ErrReplaced
	case f.Protocol > fleet.Protocol || h.Protocol > fleet.Protocol:
		return ErrProtocol
	}
	return nil
}

// mayReplace returns nil if a presence is this process's own or, with takeover, that of an earlier process of this machine. One that cannot
// be read is another's.
func (s *Session) mayReplace(presence []byte, takeover bool) error {
	other, err := fleet.Decode[fleet.Presence](presence)
	same := err == nil && other.Boot == s.Presence.Boot && other.Store == s.Presence.Store
	if err != nil || other.Instance != s.Presence.Instance && (!takeover || !same) {
		return fmt.Errorf("%w, since %s", ErrCloned, other.Since.UTC().Format(time.RFC3339))
	}
	return nil
}

// timeToLive returns the granted TTL of a lease; this session's own if it is not known.
func (s *Session) timeToLive(ctx context.Context, lease clientv3.LeaseID) time.Duration {
	answer, err := s.Client.TimeToLive(ctx, lease)
	if err != nil || answer.GrantedTTL <= 0 {
		return s.TTL
	}
	return time.Duration(answer.GrantedTTL) * time.Second
}

// Run keeps the lease alive until ctx is done, and claims the host ID again if the lease has ended. Call it once, after
// [Session.Start].
func (s *Session) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.keep(ctx, s.TTL/5)
		if err != nil && ctx.Err() == nil && s.Problem() == nil {
			s.Log.Warn("the lease of this host cannot be renewed; shared rules end with it", zap.Duration("left", s.fence.Left()), zap.Error(err))
		}
		_ = s.note(err)
		wait := s.TTL / 3
		if err != nil {
			wait = s.TTL / 15 // the next attempt is sent to another member
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait - wait/8 + rand.N(wait/4)): // hosts that started together spread out
		case <-s.recheck:
			s.forget()
		}
	}
}

// note remembers why there is no lease, and returns err.
func (s *Session) note(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = err
	return err
}

// keep sends one keep-alive, or claims the host ID if there is no lease.
func (s *Session) keep(ctx context.Context, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if s.lease == 0 {
		_, err := s.claim(ctx, false)
		return err
	}
	sent, ok := boottime()
	if !ok {
		return errors.New("the kernel has no CLOCK_BOOTTIME")
	}
	answer, err := s.Client.KeepAliveOnce(ctx, s.lease)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.fence.shut()
		s.forget()
		_, err := s.claim(ctx, false)
		return err
	}
	if err != nil {
		return fleet.Unreachable(ctx, err)
	}
	s.fence.extend(sent, time.Duration(answer.TTL)*time.Second)
	if s.kept++; s.kept%verifyEvery != 0 {
		return nil
	}
	return s.verify(ctx)
}

// forget has the next attempt claim the host ID with another lease.
func (s *Session) forget() {
	s.claiming.Lock()
	defer s.claiming.Unlock()
	s.lease = 0
}

// verifyEvery is the number of keep-alives between two looks at the presence.
const verifyEvery = 4

// verify claims the host ID again if the presence is gone or another's while the lease is valid: a successor that took it over has failed.
// One that runs keeps it.
func (s *Session) verify(ctx context.Context) error {
	text, _, err := fleet.Get(ctx, s.Client, s.Keys.Presence(s.Host))
	if err != nil {
		return nil // the lease is valid
	}
	if text != nil {
		found, err := fleet.Decode[fleet.Presence](text)
		if err != nil {
			return err
		}
		if found.Instance == s.Presence.Instance || found.Boot == s.Presence.Boot && found.Store == s.Presence.Store {
			return nil
		}
	}
	s.fence.shut()
	_, err = s.claim(ctx, false)
	return err
}

// Guard is the condition of a transaction that this process has the presence with its present lease. After the lease has ended no
// transaction with it succeeds.
func (s *Session) Guard() clientv3.Cmp {
	s.claiming.Lock()
	defer s.claiming.Unlock()
	lease := s.lease
	if lease == 0 {
		lease = -1 // no key has it; 0 is that of keys without a lease
	}
	return clientv3.Compare(clientv3.LeaseValue(s.Keys.Presence(s.Host)), "=", lease)
}

// Lease is the present lease; 0: none.
func (s *Session) Lease() clientv3.LeaseID {
	s.claiming.Lock()
	defer s.claiming.Unlock()
	return s.lease
}

// Report writes the number of boxes, and whether the host knows that it is cordoned, into the presence, if they changed and this process
// still holds it. The caller bounds how often.
func (s *Session) Report(ctx context.Context, boxes int, cordoned bool) error {
	s.claiming.Lock()
	defer s.claiming.Unlock()
	if s.Presence.Boxes == boxes && s.Presence.Cordoned == cordoned || s.Fenced() {
		return nil
	}
	next := s.Presence
	next.Boxes, next.Cordoned = boxes, cordoned
	was, err := fleet.Encode(s.Presence)
	if err != nil {
		return err
	}
	text, err := fleet.Encode(next)
	if err != nil {
		return err
	}
	key := s.Keys.Presence(s.Host)
	answer, err := s.Client.Txn(ctx).If(clientv3.Compare(clientv3.Value(key), "=", was)).Then(clientv3.OpPut(key, text, clientv3.WithIgnoreLease())).Commit()
	if err != nil {
		return fleet.Unreachable(ctx, err)
	}
	if answer.Succeeded {
		s.Presence = next
	}
	return nil
}

// Close ends the lease, after Run has returned, so that the others learn immediately that this gateway is gone. A successor has its
// own lease by then. Without etcd the lease ends by itself.
func (s *Session) Close() {
	s.fence.shut()
	if lease := s.lease; lease != 0 {
		s.forget()
		s.revoke(lease)
	}
}

// revoke ends a lease, if etcd answers soon.
func (s *Session) revoke(lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, _ = s.Client.Revoke(ctx, lease) // otherwise it ends after its TTL
}
