// Package shared has the objects that every host of a fleet has in force, such as its API keys. They are in
// etcd below the watched prefix. Each change is one transaction. Each host applies them to its own tables ([Mirror]), and then
// acknowledges the revision ([Acknowledgements]) outside of that prefix, so that a change can be answered when every host has it in force.
package shared

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
)

// Kind is a kind of shared objects, and the name of their prefix.
type Kind string

// APIKeys are the API keys of the fleet.
const APIKeys Kind = "keys"

// Kinds are all kinds. A host acknowledges what it has in force of these, so a fleet may only get a further one with the next
// [fleet.Protocol].
var Kinds = []Kind{APIKeys}

// prefixOf is the prefix of the objects of a kind; it is watched.
func prefixOf(k fleet.Keys, kind Kind) string { return k.Watched() + string(kind) + "/" }

// headOf is the key that each change of a kind writes, so that no two are concurrent. It is not watched.
func headOf(k fleet.Keys, kind Kind) string { return k.Root() + "heads/" + string(kind) }

// Table changes shared objects. Safe for concurrent use.
type Table struct {
	Client *clientv3.Client
	Keys   fleet.Keys
	Host   string // ID
	// Guard is a condition of each change that only a host with its lease meets, see [fleet/member.Session.Guard].
	Guard func() clientv3.Cmp
}

// Errors of a table.
var (
	// ErrFenced: this host has no lease, so the change was refused.
	ErrFenced = errors.New("this host has no lease in the fleet")
	// ErrTooLarge: the objects of the kind would exceed a bound, so the change was refused.
	ErrTooLarge = errors.New("the shared objects of this kind would have too many bytes, or the change has too many of them")
	// ErrContended: others changed the kind at the same time, again and again.
	ErrContended = errors.New("other hosts change objects of this kind at the same time; try again")
)

// Bounds of the objects of a kind.
const (
	maxBytes   = 4 << 20   // keys and values of all objects
	maxValue   = 512 << 10 // one value; etcd refuses requests above 1.5 MiB
	maxChanged = 100       // objects of one change; etcd refuses transactions with more than 128 operations
	attempts   = 16
)

// Change changes the objects of a kind in one transaction: edit changes a map of values by ID, as of the latest revision. It is called again
// if another host changed the kind meanwhile. Its error ends the change, without an effect. The result is the revision of the change; 0: edit
// changed nothing. After a [fleet.ErrUnreachable] it is not known whether the change was made.
func (t *Table) Change(ctx context.Context, kind Kind, edit func(objects map[string][]byte) error) (revision int64, err error) {
	head := headOf(t.Keys, kind)
	for range attempts {
		_, seen, err := fleet.Get(ctx, t.Client, head)
		if err != nil {
			return 0, err
		}
		before, err := t.list(ctx, kind)
		if err != nil {
			return 0, err
		}
		after := maps.Clone(before)
		if err := edit(after); err != nil {
			return 0, err
		}
		ops, err := t.difference(kind, before, after)
		if err != nil || len(ops) == 0 {
			return 0, err
		}
		answer, err := t.Client.Txn(ctx).If(t.Guard(), clientv3.Compare(clientv3.ModRevision(head), "=", seen)).
			Then(append(ops, clientv3.OpPut(head, t.Host))...).Else(clientv3.OpGet(head)).Commit()
		if err != nil {
			return 0, fleet.Unreachable(ctx, err)
		}
		if answer.Succeeded {
			return answer.Header.Revision, nil
		}
		if now := answer.Responses[0].GetResponseRange().Kvs; len(now) == 0 && seen == 0 || len(now) > 0 && now[0].ModRevision == seen {
			return 0, ErrFenced
		}
	}
	return 0, ErrContended
}

// difference returns the operations that lead from one state of a kind to another.
func (t *Table) difference(kind Kind, before, after map[string][]byte) (ops []clientv3.Op, err error) {
	total, prefix := 0, prefixOf(t.Keys, kind)
	for _, id := range slices.Sorted(maps.Keys(after)) {
		value := after[id]
		total += len(prefix) + len(id) + len(value)
		if len(value) > maxValue {
			return nil, ErrTooLarge
		}
		if old, ok := before[id]; !ok || !bytes.Equal(old, value) {
			ops = append(ops, clientv3.OpPut(prefix+id, string(value)))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[id]; !ok {
			ops = append(ops, clientv3.OpDelete(prefix+id))
		}
	}
	if total > maxBytes || len(ops) > maxChanged {
		return nil, ErrTooLarge
	}
	return ops, nil
}

// page is the number of objects in one answer.
const page = 500

// list reads the objects of a kind at one revision. A change in between is found by its head.
func (t *Table) list(ctx context.Context, kind Kind) (map[string][]byte, error) {
	prefix, out, revision := prefixOf(t.Keys, kind), map[string][]byte{}, int64(0)
	for from, end := prefix, clientv3.GetPrefixRangeEnd(prefix); ; {
		answer, err := t.Client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision))
		if err != nil {
			return nil, fleet.Unreachable(ctx, err)
		}
		if revision == 0 {
			revision = answer.Header.Revision
		}
		for _, kv := range answer.Kvs {
			out[strings.TrimPrefix(string(kv.Key), prefix)] = kv.Value
		}
		if !answer.More {
			return out, nil
		}
		from = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
}

// Acknowledgements has the revisions that hosts have in force. Safe for concurrent use.
type Acknowledgements struct {
	Client *clientv3.Client
	Keys   fleet.Keys
	Host   string // ID
	Guard  func() clientv3.Cmp
	// Lease is the present lease of this host: its acknowledgement ends with it.
	Lease func() clientv3.LeaseID
}

func (a *Acknowledgements) prefix() string { return a.Keys.Root() + "applied/" }

// Put acknowledges that this host has all changes up to a revision in force.
func (a *Acknowledgements) Put(ctx context.Context, revision int64) error {
	lease := a.Lease()
	if lease == 0 { // given up since; etcd would keep the key without one
		return ErrFenced
	}
	answer, err := a.Client.Txn(ctx).If(a.Guard()).Then(clientv3.OpPut(a.prefix()+a.Host, strconv.FormatInt(revision, 10), clientv3.WithLease(lease))).Commit()
	if err != nil {
		return fleet.Unreachable(ctx, err)
	}
	if !answer.Succeeded {
		return ErrFenced
	}
	return nil
}

// Behind returns the hosts, sorted, that hold a lease and have not acknowledged a revision. A host that claims its lease later has the
// revision before its fence opens, so that an empty result stays so.
func (a *Acknowledgements) Behind(ctx context.Context, revision int64) (hosts []string, err error) {
	answer, err := a.Client.Txn(ctx).Then(clientv3.OpGet(a.Keys.Presences(), clientv3.WithPrefix(), clientv3.WithKeysOnly()), clientv3.OpGet(a.prefix(), clientv3.WithPrefix())).Commit()
	if err != nil {
		return nil, fleet.Unreachable(ctx, err)
	}
	applied := map[string]int64{}
	for _, kv := range answer.Responses[1].GetResponseRange().Kvs {
		applied[strings.TrimPrefix(string(kv.Key), a.prefix())], _ = strconv.ParseInt(string(kv.Value), 10, 64) // 0: not readable, so behind
	}
	for _, kv := range answer.Responses[0].GetResponseRange().Kvs {
		if host := strings.TrimPrefix(string(kv.Key), a.Keys.Presences()); applied[host] < revision {
			hosts = append(hosts, host)
		}
	}
	return hosts, nil
}

// behindError is the error of a change that is made, but not in force on every host.
func behindError(hosts []string) error {
	const most = 10
	more := ""
	if len(hosts) > most {
		hosts, more = hosts[:most], fmt.Sprintf(" and %d more", len(hosts)-most)
	}
	return fmt.Errorf("%w: %s%s", ErrBehind, strings.Join(hosts, ", "), more)
}
