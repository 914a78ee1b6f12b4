// Package roster founds fleets, and lets hosts join and leave them. Its calls change etcd; the caller stores the identity of a host.
package roster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
	"boxgate/fleet/directory"
	"boxgate/fleet/pki"
	"boxgate/policy/name"
)

// Roster changes the members of one fleet. Safe for concurrent use.
type Roster struct {
	Client *clientv3.Client
	Name   string // of the fleet
}

func (r Roster) keys() fleet.Keys { return fleet.KeysOf(r.Name) }

// Errors of a roster.
var (
	ErrFounded    = errors.New("the fleet exists already: on a member, make a token with `gateway fleet token`, and join with it")
	ErrRests      = errors.New("etcd has keys of an earlier fleet of this name, whose API keys would be valid again: choose another fleet.name, or delete the keys with `etcdctl del --prefix`")
	ErrNotFounded = errors.New("there is no fleet of this name in etcd: found it with `gateway fleet init`, or check fleet.name and fleet.endpoints")
	ErrMember     = errors.New("a host with this ID is a member of the fleet already: each host needs its own state directory, not a copy")
	ErrToken      = errors.New("the token is not valid any longer: it is for one host and one hour; make another with `gateway fleet token`")
	ErrNotMember  = errors.New("the fleet has no host with this ID")
	ErrRunning    = errors.New("a gateway is running with the ID of this host: if this state directory is a copy of another host's, remove it; after a crash, wait 15 seconds")
	ErrNewer      = errors.New("the fleet was founded by a later version of boxgate, with another protocol: update this host first")
)

// Machine describes the host that becomes a member.
type Machine struct {
	ID   string // HostID of the store
	Name string // host name, for people
	// Keep stores the identity. It is called before etcd is changed, so that no membership is lost. If the call then fails with another
	// error than [fleet.ErrUnreachable], the identity is void.
	Keep func(fleet.Identity) error
}

// member is a new member: its identity for the store, and its records.
type member struct {
	identity   fleet.Identity
	host, wrap string
}

// newMember makes the keys of a host, and seals the authority's key to it.
func (r Roster) newMember(m Machine, founding string, authority []byte, key name.Secret) (member, error) {
	wrap, recipient, err := pki.NewWrapKey()
	if err != nil {
		return member{}, err
	}
	der, fingerprint, err := pki.NewHostKey()
	if err != nil {
		return member{}, err
	}
	sealed, err := pki.Seal(recipient, r.keys().Wrap(m.ID), key)
	if err != nil {
		return member{}, err
	}
	proof, err := pki.ProveRecipient(key, founding, m.ID, recipient)
	if err != nil {
		return member{}, err
	}
	out := member{identity: fleet.Identity{Fleet: r.Name, Founding: founding, Host: m.ID, CA: authority, Key: der, Wrap: wrap.Reveal()}}
	out.host, err = fleet.Encode(fleet.Host{ID: m.ID, Protocol: fleet.Protocol, Name: m.Name, Key: fingerprint, Joined: time.Now().UTC()})
	if err == nil {
		out.wrap, err = fleet.Encode(fleet.Wrap{Recipient: recipient, CA: sealed, Proof: proof})
	}
	return out, err
}

// Init founds the fleet with this host as its first member. [ErrFounded]: the fleet exists; [ErrRests]: keys of an earlier one do.
func (r Roster) Init(ctx context.Context, m Machine) (fleet.Identity, error) {
	authority, err := pki.NewAuthority(r.Name)
	if err != nil {
		return fleet.Identity{}, err
	}
	key, err := authority.Key()
	if err != nil {
		return fleet.Identity{}, err
	}
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	founding := fleet.Founding{ID: hex.EncodeToString(id), Protocol: fleet.Protocol, CA: authority.PEM(), At: time.Now().UTC()}
	text, err := fleet.Encode(founding)
	if err != nil {
		return fleet.Identity{}, err
	}
	first, err := r.newMember(m, founding.ID, founding.CA, key)
	if err == nil {
		err = m.Keep(first.identity)
	}
	if err != nil {
		return fleet.Identity{}, err
	}
	k := r.keys()
	answer, err := r.Client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(k.Root()), "=", 0).WithPrefix()).
		Then(clientv3.OpPut(k.Founding(), text), clientv3.OpPut(k.Host(m.ID), first.host), clientv3.OpPut(k.Wrap(m.ID), first.wrap)).
		Else(clientv3.OpGet(k.Founding(), clientv3.WithCountOnly())).Commit()
	switch {
	case err != nil:
		return fleet.Identity{}, fleet.Unreachable(ctx, err)
	case answer.Succeeded:
		return first.identity, nil
	case rangeOf(answer, 0).Count == 0:
		return fleet.Identity{}, fmt.Errorf("%w %s", ErrRests, k.Root())
	}
	return fleet.Identity{}, ErrFounded
}

// Founding reads the record of the fleet. [ErrNotFounded]: there is none; [ErrNewer]: this program does not know its protocol.
func (r Roster) Founding(ctx context.Context) (fleet.Founding, error) {
	text, _, err := fleet.Get(ctx, r.Client, r.keys().Founding())
	if err != nil {
		return fleet.Founding{}, err
	}
	if text == nil {
		return fleet.Founding{}, ErrNotFounded
	}
	founding, err := fleet.Decode[fleet.Founding](text)
	if err == nil && founding.Protocol > fleet.Protocol {
		err = ErrNewer
	}
	return founding, err
}

// AuthorityKey returns the key of the fleet's authority, which is sealed to this host.
func (r Roster) AuthorityKey(ctx context.Context, id fleet.Identity) (name.Secret, error) {
	place := r.keys().Wrap(id.Host)
	text, _, err := fleet.Get(ctx, r.Client, place)
	if err != nil {
		return name.Secret{}, err
	}
	if text == nil {
		return name.Secret{}, ErrNotMember
	}
	wrap, err := fleet.Decode[fleet.Wrap](text)
	if err != nil {
		return name.Secret{}, err
	}
	return pki.Open(name.NewSecret(id.Wrap), place, wrap.CA)
}

// TokenLife is how long a token may be used.
const TokenLife = time.Hour

// Token makes a token for one host to join with. This host must be a member.
func (r Roster) Token(ctx context.Context, id fleet.Identity) (name.Secret, error) {
	key, err := r.AuthorityKey(ctx, id)
	if err != nil {
		return name.Secret{}, err
	}
	token := pki.NewToken()
	place := r.keys().Token(token.ID())
	sealed, err := token.Seal(place, key)
	if err != nil {
		return name.Secret{}, err
	}
	text, err := fleet.Encode(fleet.Token{By: id.Host, CA: sealed})
	if err != nil {
		return name.Secret{}, err
	}
	lease, err := r.Client.Grant(ctx, int64(TokenLife/time.Second))
	if err != nil {
		return name.Secret{}, fleet.Unreachable(ctx, err)
	}
	answer, err := r.Client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(r.keys().Host(id.Host)), ">", 0)).Then(clientv3.OpPut(place, text, clientv3.WithLease(lease.ID))).Commit()
	if err != nil {
		return name.Secret{}, fleet.Unreachable(ctx, err)
	}
	if !answer.Succeeded {
		return name.Secret{}, ErrNotMember
	}
	return token.Text(), nil
}

// Join makes this host a member with a token, which ends in the same transaction: of two hosts with one token, one joins.
func (r Roster) Join(ctx context.Context, m Machine, token pki.Token) (fleet.Identity, error) {
	founding, err := r.Founding(ctx)
	if err != nil {
		return fleet.Identity{}, err
	}
	k := r.keys()
	place := k.Token(token.ID())
	text, revision, err := fleet.Get(ctx, r.Client, place)
	if err != nil {
		return fleet.Identity{}, err
	}
	if text == nil {
		return fleet.Identity{}, ErrToken
	}
	record, err := fleet.Decode[fleet.Token](text)
	if err != nil {
		return fleet.Identity{}, err
	}
	key, err := token.Open(place, record.CA)
	if err != nil {
		return fleet.Identity{}, err
	}
	if _, err := pki.LoadAuthority(founding.CA, key); err != nil { // the certificate in etcd is the fleet's if its key came by the token
		return fleet.Identity{}, err
	}
	next, err := r.newMember(m, founding.ID, founding.CA, key)
	if err == nil {
		err = m.Keep(next.identity)
	}
	if err != nil {
		return fleet.Identity{}, err
	}
	answer, err := r.Client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(place), "=", revision), clientv3.Compare(clientv3.CreateRevision(k.Host(m.ID)), "=", 0)).
		Then(clientv3.OpDelete(place), clientv3.OpPut(k.Host(m.ID), next.host), clientv3.OpPut(k.Wrap(m.ID), next.wrap)).
		Else(clientv3.OpGet(k.Host(m.ID), clientv3.WithCountOnly())).Commit()
	switch {
	case err != nil:
		return fleet.Identity{}, fleet.Unreachable(ctx, err)
	case answer.Succeeded:
		return next.identity, nil
	case rangeOf(answer, 0).Count > 0:
		return fleet.Identity{}, ErrMember
	}
	return fleet.Identity{}, ErrToken
}

// rangeOf returns the answer to a read in a transaction.
func rangeOf(answer *clientv3.TxnResponse, i int) *etcdserverpb.RangeResponse {
	return answer.Responses[i].GetResponseRange()
}

// IsMember reports whether the identity is that of a member.
func (r Roster) IsMember(ctx context.Context, id fleet.Identity) (bool, error) {
	founding, err := r.Founding(ctx)
	if errors.Is(err, ErrNotFounded) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	text, _, err := fleet.Get(ctx, r.Client, r.keys().Host(id.Host))
	return founding.ID == id.Founding && text != nil && isOf(text, id), err
}

// isOf reports whether the record of a host is that of an identity, or cannot be read.
func isOf(record []byte, id fleet.Identity) bool {
	host, err := fleet.Decode[fleet.Host](record)
	if err != nil {
		return true
	}
	own, err := pki.FingerprintOf(id.Key)
	return err == nil && bytes.Equal(host.Key, own)
}

// LeaveStopped ends the membership of an identity whose gateway does not run. [ErrRunning]: one runs with its ID, so this identity may be a copy;
// [ErrNotMember]: the ID is free, or that of another membership since.
func (r Roster) LeaveStopped(ctx context.Context, id fleet.Identity) error {
	k := r.keys()
	host, present := k.Host(id.Host), k.Presence(id.Host)
	for {
		text, revision, err := fleet.Get(ctx, r.Client, host)
		if err != nil {
			return err
		}
		switch {
		case text == nil:
			return cmp.Or(r.forget(ctx, id.Host), ErrNotMember)
		case !isOf(text, id):
			return ErrNotMember
		}
		answer, err := r.Client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(host), "=", revision), clientv3.Compare(clientv3.CreateRevision(present), "=", 0)).
			Then(clientv3.OpDelete(host), clientv3.OpDelete(k.Wrap(id.Host)), clientv3.OpDelete(k.Claims(id.Host)), clientv3.OpPut(k.Left(), id.Host)).Else(clientv3.OpGet(present, clientv3.WithCountOnly())).Commit()
		switch {
		case err != nil:
			return fleet.Unreachable(ctx, err)
		case answer.Succeeded:
			return r.forget(ctx, id.Host)
		case rangeOf(answer, 0).Count > 0:
			return ErrRunning
		}
	}
}

// Leave ends the membership of a host: its records are deleted, and then its lease is revoked, so that a gateway that runs there is
// fenced. The names of its boxes are free afterwards. [ErrNotMember]: it has left; the rest of an earlier call is done.
func (r Roster) Leave(ctx context.Context, host string) error {
	k := r.keys()
	answer, err := r.Client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(k.Host(host)), ">", 0)).
		Then(clientv3.OpGet(k.Presence(host)), clientv3.OpDelete(k.Host(host)), clientv3.OpDelete(k.Wrap(host)), clientv3.OpDelete(k.Presence(host)), clientv3.OpDelete(k.Claims(host)), clientv3.OpPut(k.Left(), host)).Commit()
	if err != nil {
		return fleet.Unreachable(ctx, err)
	}
	if !answer.Succeeded {
		return cmp.Or(r.forget(ctx, host), ErrNotMember)
	}
	for _, kv := range rangeOf(answer, 0).Kvs {
		if _, err := r.Client.Revoke(ctx, clientv3.LeaseID(kv.Lease)); err != nil {
			return fmt.Errorf("the host left, but its lease goes on for up to its TTL: %w", fleet.Unreachable(ctx, err))
		}
	}
	return r.forget(ctx, host)
}

// forget removes the boxes of a host that is no longer a member from the directory, and frees their names. The boxes of a
// member stay, also of one that joins meanwhile.
func (r Roster) forget(ctx context.Context, host string) error {
	d := directory.Directory{Client: r.Client, Keys: r.keys(), Host: host, Guard: func() clientv3.Cmp {
		return clientv3.Compare(clientv3.CreateRevision(r.keys().Host(host)), "=", 0)
	}}
	if _, err := d.Reconcile(ctx, nil); err != nil && !errors.Is(err, directory.ErrFenced) {
		return fmt.Errorf("the host left, but names of its boxes are not free yet; leave again with its ID: %w", err)
	}
	return nil
}

// Cordon sets whether a host takes new boxes.
func (r Roster) Cordon(ctx context.Context, host string, cordoned bool) error {
	return r.change(ctx, host, func(text []byte) (string, error) { return withCordon(text, cordoned) })
}

// Advertise sets the address of a host for the others; empty: it accepts no calls. guard is a condition that only the host itself meets while it has
// its lease, see [fleet/member.Session.Guard].
func (r Roster) Advertise(ctx context.Context, host, address string, guard func() clientv3.Cmp) error {
	return r.change(ctx, host, func(text []byte) (string, error) { return withAddress(text, address) }, guard)
}

// errGuarded is the error of a change whose conditions are not met.
var errGuarded = errors.New("this host has no lease in the fleet")

// change changes the record of a host, while the conditions are met.
func (r Roster) change(ctx context.Context, host string, edit func([]byte) (string, error), guards ...func() clientv3.Cmp) error {
	key := r.keys().Host(host)
	for {
		text, revision, err := fleet.Get(ctx, r.Client, key)
		if err != nil {
			return err
		}
		if text == nil {
			return ErrNotMember
		}
		changed, err := edit(text)
		if err != nil || changed == string(text) {
			return err
		}
		conditions := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", revision)}
		for _, guard := range guards {
			conditions = append(conditions, guard())
		}
		answer, err := r.Client.Txn(ctx).If(conditions...).Then(clientv3.OpPut(key, changed)).Else(clientv3.OpGet(key, clientv3.WithKeysOnly())).Commit()
		if err != nil {
			return fleet.Unreachable(ctx, err)
		}
		if answer.Succeeded {
			return nil
		}
		if kvs := rangeOf(answer, 0).Kvs; len(kvs) > 0 && kvs[0].ModRevision == revision {
			return errGuarded
		}
	}
}
