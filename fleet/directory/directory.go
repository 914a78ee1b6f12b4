// Package directory has the boxes of a fleet in etcd: which host has a box, and which box has a name. A name is claimed in one
// transaction, before the host stores the box; a host that dies in between finds the claim by its own ID, see [Directory.Reconcile].
// Hosts do not watch these keys.
package directory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
)

// Directory is the directory for one host. Safe for concurrent use.
type Directory struct {
	Client *clientv3.Client
	Keys   fleet.Keys
	Host   string // ID
	// Guard is a condition of each change that only a host with its lease meets, see [fleet/member.Session.Guard]. A host whose lease has
	// ended makes no change, even by a request that was sent before.
	Guard func() clientv3.Cmp
	// Epoch is the answer of [Directory.Begin]. A later call of it makes each [Directory.Put] with this one fail.
	Epoch int64
}

// Entry describes a box to the other hosts.
type Entry struct {
	Name   string   `json:"name,omitempty"`
	Labels []string `json:"labels,omitempty"`
}

// Equal reports whether two entries have the same name and labels, in the same order.
func (e Entry) Equal(other Entry) bool {
	return e.Name == other.Name && slices.Equal(e.Labels, other.Labels)
}

// Owner is the box with a name.
type Owner struct {
	Host string `json:"host"`
	Box  string `json:"box"`
}

// Errors of a directory.
var (
	ErrNameTaken = errors.New("another box of the fleet has this name")
	ErrFenced    = errors.New("this host has no lease in the fleet")
	// ErrSuperseded: Begin was called since.
	ErrSuperseded = errors.New("this host has begun to read the directory again since")
)

// nameKey is the key of a name. Names are escaped: a slash would reach another prefix.
func (d Directory) nameKey(name string) string { return d.Keys.Names() + url.PathEscape(name) }

func (d Directory) boxKey(box string) string { return d.Keys.Boxes(d.Host) + url.PathEscape(box) }

// Begin returns a new [Directory.Epoch] for this host. Changes with an earlier one are refused from then on, also if they are still on their way
// to etcd: a change without an answer is in what [Directory.Boxes] returns after Begin, or will never be made.
func (d Directory) Begin(ctx context.Context) (epoch int64, err error) {
	answer, err := d.Client.Txn(ctx).If(d.Guard()).Then(clientv3.OpPut(d.Keys.Claims(d.Host), "")).Commit()
	if err != nil {
		return 0, fleet.Unreachable(ctx, err)
	}
	if !answer.Succeeded {
		return 0, ErrFenced
	}
	return answer.Header.Revision, nil
}

// Put adds a box, or changes its name and labels, in one transaction: the new name is claimed and the old one released. It fails with
// [ErrNameTaken] or [ErrSuperseded] without a change. The calls for one box must not be concurrent.
func (d Directory) Put(ctx context.Context, box string, e Entry) error {
	owner, err := fleet.Encode(Owner{d.Host, box})
	if err != nil {
		return err
	}
	text, err := fleet.Encode(e)
	if err != nil {
		return err
	}
	old, revision, err := d.get(ctx, box)
	if err != nil {
		return err
	}
	claims := d.Keys.Claims(d.Host)
	conditions := []clientv3.Cmp{d.Guard(), clientv3.Compare(clientv3.ModRevision(claims), "=", d.Epoch), clientv3.Compare(clientv3.ModRevision(d.boxKey(box)), "=", revision)}
	then, otherwise := []clientv3.Op{clientv3.OpPut(d.boxKey(box), text)}, []clientv3.Op{clientv3.OpGet(d.Keys.Presence(d.Host)), clientv3.OpGet(claims)}
	if e.Name != "" && e.Name != old.Name {
		conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(d.nameKey(e.Name)), "=", 0))
		then = append(then, clientv3.OpPut(d.nameKey(e.Name), owner))
		otherwise = append(otherwise, clientv3.OpGet(d.nameKey(e.Name)))
	}
	if old.Name != "" && e.Name != old.Name {
		then = append(then, clientv3.OpDelete(d.nameKey(old.Name)))
	}
	answer, err := d.Client.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
	switch {
	case err != nil:
		return fleet.Unreachable(ctx, err)
	case answer.Succeeded:
		return nil
	case d.isSuperseded(answer.Responses[1].GetResponseRange()):
		return ErrSuperseded
	case len(otherwise) > 2 && len(answer.Responses[2].GetResponseRange().Kvs) > 0:
		return ErrNameTaken
	}
	return d.refused(answer)
}

// isSuperseded reports whether the epoch in etcd is another one.
func (d Directory) isSuperseded(claims *etcdserverpb.RangeResponse) bool {
	now := int64(0)
	for _, kv := range claims.Kvs {
		now = kv.ModRevision
	}
	return now != d.Epoch
}

// refused returns why a transaction was refused whose first alternative reads the presence.
func (d Directory) refused(answer *clientv3.TxnResponse) error {
	if len(answer.Responses[0].GetResponseRange().Kvs) == 0 {
		return ErrFenced
	}
	return fmt.Errorf("%w, or the box was changed concurrently", ErrFenced)
}

// Remove removes a box, and its name in the same transaction. A box that is not there is no error.
func (d Directory) Remove(ctx context.Context, box string) error {
	old, revision, err := d.get(ctx, box)
	if err != nil || revision == 0 {
		return err
	}
	then := []clientv3.Op{clientv3.OpDelete(d.boxKey(box))}
	if old.Name != "" {
		then = append(then, clientv3.OpDelete(d.nameKey(old.Name)))
	}
	answer, err := d.Client.Txn(ctx).If(d.Guard(), clientv3.Compare(clientv3.ModRevision(d.boxKey(box)), "=", revision)).Then(then...).
		Else(clientv3.OpGet(d.Keys.Presence(d.Host))).Commit()
	if err != nil {
		return fleet.Unreachable(ctx, err)
	}
	if !answer.Succeeded {
		return d.refused(answer)
	}
	return nil
}

// get returns the entry of a box of this host and its revision, 0 for an unknown box.
func (d Directory) get(ctx context.Context, box string) (e Entry, revision int64, err error) {
	text, revision, err := fleet.Get(ctx, d.Client, d.boxKey(box))
	if err != nil || text == nil {
		return Entry{}, 0, err
	}
	e, err = fleet.Decode[Entry](text)
	return e, revision, err
}

// Find returns the box with a name. ok is false if there is none.
func (d Directory) Find(ctx context.Context, name string) (o Owner, ok bool, err error) {
	text, _, err := fleet.Get(ctx, d.Client, d.nameKey(name))
	if err != nil || text == nil {
		return Owner{}, false, err
	}
	o, err = fleet.Decode[Owner](text)
	return o, err == nil, err
}

// page is the number of boxes in one answer.
const page = 500

// Boxes returns the boxes of a host.
func (d Directory) Boxes(ctx context.Context, host string) (map[string]Entry, error) {
	prefix, out := d.Keys.Boxes(host), map[string]Entry{}
	var first *etcdserverpb.ResponseHeader
	for from, end := prefix, clientv3.GetPrefixRangeEnd(prefix); ; {
		ops := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(page)}
		if first != nil {
			ops = append(ops, clientv3.WithRev(first.Revision))
		}
		answer, err := d.Client.Get(ctx, from, ops...)
		if err != nil {
			return nil, fleet.Unreachable(ctx, err)
		}
		if first == nil {
			first = answer.Header
		}
		for _, kv := range answer.Kvs {
			box, err := url.PathUnescape(strings.TrimPrefix(string(kv.Key), prefix))
			if err != nil {
				return nil, err
			}
			if out[box], err = fleet.Decode[Entry](kv.Value); err != nil {
				return nil, fmt.Errorf("box %s: %w", box, err)
			}
		}
		if !answer.More {
			return out, nil
		}
		from = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
}

// Reconcile makes the directory agree with the boxes of this host, after a start or a time without etcd: claims of boxes that the host does
// not have are removed, others are added or changed. Boxes whose name another box has got since are returned; they are added without a
// name.
func (d Directory) Reconcile(ctx context.Context, have map[string]Entry) (conflicts []string, err error) {
	known, err := d.Boxes(ctx, d.Host)
	if err != nil {
		return nil, err
	}
	for _, box := range slices.Sorted(maps.Keys(known)) {
		if _, ok := have[box]; !ok {
			if err := d.Remove(ctx, box); err != nil {
				return conflicts, fmt.Errorf("box %s: %w", box, err)
			}
		}
	}
	for _, box := range slices.Sorted(maps.Keys(have)) {
		e := have[box]
		if old, ok := known[box]; ok && old.Equal(e) {
			continue
		}
		err := d.Put(ctx, box, e)
		if errors.Is(err, ErrNameTaken) {
			conflicts = append(conflicts, box)
			err = d.Put(ctx, box, Entry{Labels: e.Labels})
		}
		if err != nil {
			return conflicts, fmt.Errorf("box %s: %w", box, err)
		}
	}
	return conflicts, nil
}
