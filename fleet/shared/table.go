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

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
)

// Kind is a kind of shared objects, and the name of their prefix.
type Kind string

// Kinds of shared objects.
const (
	APIKeys  Kind = "keys"     // the API keys of the fleet
	Policies Kind = "policies" // its named policies
	Headers  Kind = "headers"  // its global header rules
)

// Kinds are the kinds that this program applies. A host acknowledges revisions of etcd, whatever kinds changed with them, so that one whose
// program does not know a kind acknowledges its changes too. Each host therefore names its kinds in its [fleet.Presence], and a kind is
// not changed while a host with a lease does not apply it ([ErrUnsupported]). Every program applies API keys.
var Kinds = []Kind{
	APIKeys,
	Policies,
	Headers,
}

// MaxHeaderRules is the largest document of [HeaderRules] in bytes. Sealed and encoded it is below [MaxValue].
const MaxHeaderRules = 380 << 10

// HeaderRules are the global header rules of the fleet, opened. Version 0: they were never set.
type HeaderRules struct {
	Version  uint64
	Document []byte
}

// Announced are the kinds that this host names in its presence.
func Announced() (kinds []string) {
	for _, kind := range Kinds {
		if kind != APIKeys {
			kinds = append(kinds, string(kind))
		}
	}
	return kinds
}

// lacking returns the hosts of presences, sorted, that do not apply a kind. One whose presence cannot be read is among them.
func lacking(k fleet.Keys, presences []*mvccpb.KeyValue, kind Kind) (hosts []string) {
	for _, kv := range presences {
		p, err := fleet.Decode[fleet.Presence](kv.Value)
		if kind != APIKeys && (err != nil || !slices.Contains(p.Kinds, string(kind))) {
			hosts = append(hosts, strings.TrimPrefix(string(kv.Key), k.Presences()))
		}
	}
	return hosts
}

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
	// ErrUnsupported: hosts with a lease run a version that does not apply the kind, so the change was refused.
	ErrUnsupported = errors.New("nothing was changed, because hosts run a version of boxgate that does not apply it: update them, or take them out with `gateway fleet leave ID`")
)

// Bounds of the objects of a kind.
const (
	MaxBytes   = 4 << 20   // keys and values of all objects
	MaxValue   = 512 << 10 // one value; etcd refuses requests above 1.5 MiB
	maxChanged = 100       // objects of one change; etcd refuses transactions with more than 128 operations
	attempts   = 16
)

// Change changes the objects of a kind in one transaction: edit changes a map of values by ID, as of the latest revision. It is called again
// if another host changed the kind meanwhile. Its error ends the change, without an effect. The result is the revision of the change; 0: edit
// changed nothing. After a [fleet.ErrUnreachable] it is not known whether the change was made. The error is [ErrUnsupported], with the hosts,
// while a host with a lease does not apply the kind; one that claims its lease at the same time is found by [Acknowledgements.Behind].
func (t *Table) Change(ctx context.Context, kind Kind, edit func(objects map[string][]byte) error) (revision int64, err error) {
	return t.ChangeWith(ctx, kind, func(context.Context) (Also, error) { return Also{}, nil }, edit)
}

// Also has conditions of the transaction of a change beside the ones of the table, and operations beside the change.
type Also struct {
	If   []clientv3.Cmp
	Then []clientv3.Op
}

// ChangeWith is [Table.Change] with further conditions and operations, which prepare returns before each call of edit. Its error ends the change.
// If they are not met it is called again.
func (t *Table) ChangeWith(ctx context.Context, kind Kind, prepare func(context.Context) (Also, error), edit func(objects map[string][]byte) error) (revision int64, err error) {
	if err := t.supported(ctx, kind); err != nil {
		return 0, err
	}
	head := headOf(t.Keys, kind)
	for range attempts {
		also, err := prepare(ctx)
		if err != nil {
			return 0, err
		}
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
		conditions := append(slices.Clone(also.If), t.Guard(), clientv3.Compare(clientv3.ModRevision(head), "=", seen))
		answer, err := t.Client.Txn(ctx).If(conditions...).Then(slices.Concat(ops, also.Then, []clientv3.Op{clientv3.OpPut(head, t.Host)})...).Commit()
		if err != nil {
			return 0, fleet.Unreachable(ctx, err)
		}
		if answer.Succeeded {
			return answer.Header.Revision, nil
		}
		if err := t.hasLease(ctx); err != nil {
			return 0, err
		}
	}
	return 0, ErrContended
}

// hasLease returns [ErrFenced] if this host has no lease.
func (t *Table) hasLease(ctx context.Context) error {
	answer, err := t.Client.Txn(ctx).If(t.Guard()).Commit()
	if err != nil {
		return fleet.Unreachable(ctx, err)
	}
	if !answer.Succeeded {
		return ErrFenced
	}
	return nil
}

// supported returns an error if a host with a lease does not apply a kind.
func (t *Table) supported(ctx context.Context, kind Kind) error {
	if kind == APIKeys {
		return nil
	}
	answer, err := t.Client.Get(ctx, t.Keys.Presences(), clientv3.WithPrefix())
	if err != nil {
		return fleet.Unreachable(ctx, err)
	}
	if hosts := lacking(t.Keys, answer.Kvs, kind); len(hosts) > 0 {
		return withHosts(ErrUnsupported, hosts)
	}
	return nil
}

// difference returns the operations that lead from one state of a kind to another.
func (t *Table) difference(kind Kind, before, after map[string][]byte) (ops []clientv3.Op, err error) {
	total, prefix := 0, prefixOf(t.Keys, kind)
	for _, id := range slices.Sorted(maps.Keys(after)) {
		value := after[id]
		total += len(prefix) + len(id) + len(value)
		if len(value) > MaxValue {
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
	if total > MaxBytes || len(ops) > maxChanged {
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

// Behind returns the hosts, sorted, that hold a lease and have not acknowledged a revision, which changed a kind, or do not apply the kind. A
// host that claims its lease later has the revision before its fence opens, so that an empty result stays so.
func (a *Acknowledgements) Behind(ctx context.Context, kind Kind, revision int64) (hosts []string, err error) {
	hosts, _, err = a.behind(ctx, revision, clientv3.WithKeysOnly())
	if err != nil || len(hosts) > 0 || kind == APIKeys {
		return hosts, err
	}
	hosts, presences, err := a.behind(ctx, revision)
	if err != nil {
		return nil, err
	}
	hosts = append(hosts, lacking(a.Keys, presences, kind)...)
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

// behind returns the hosts that hold a lease and have not acknowledged a revision, and all presences at that time.
func (a *Acknowledgements) behind(ctx context.Context, revision int64, of ...clientv3.OpOption) (hosts []string, presences []*mvccpb.KeyValue, err error) {
	answer, err := a.Client.Txn(ctx).Then(clientv3.OpGet(a.Keys.Presences(), append(of, clientv3.WithPrefix())...), clientv3.OpGet(a.prefix(), clientv3.WithPrefix())).Commit()
	if err != nil {
		return nil, nil, fleet.Unreachable(ctx, err)
	}
	applied := map[string]int64{}
	for _, kv := range answer.Responses[1].GetResponseRange().Kvs {
		applied[strings.TrimPrefix(string(kv.Key), a.prefix())], _ = strconv.ParseInt(string(kv.Value), 10, 64) // 0: not readable, so behind
	}
	presences = answer.Responses[0].GetResponseRange().Kvs
	for _, kv := range presences {
		if host := strings.TrimPrefix(string(kv.Key), a.Keys.Presences()); applied[host] < revision {
			hosts = append(hosts, host)
		}
	}
	return hosts, presences, nil
}

// withHosts adds the IDs of hosts to an error.
func withHosts(err error, hosts []string) error {
	const most = 10
	more := ""
	if len(hosts) > most {
		hosts, more = hosts[:most], fmt.Sprintf(" and %d more", len(hosts)-most)
	}
	return fmt.Errorf("%w: %s%s", err, strings.Join(hosts, ", "), more)
}
