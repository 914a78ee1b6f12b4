package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/history"
	"boxgate/store/layout"
)

// Boxes has the records of the boxes.
type Boxes struct{ *file }

// Box is the record of one sandbox. [Boxes.Allocate] assigns the index and the addresses, which never change.
type Box struct {
	ID           policy.BoxID  `json:"id"`
	Name         string        `json:"name,omitempty"` // unique among the boxes; may be ""
	Index        uint32        `json:"index"`          // position in the pools and the ID ranges; the lowest that was free
	V4           netip.Addr    `json:"v4,omitzero"`
	V6           netip.Addr    `json:"v6,omitzero"`
	State        string        `json:"state"`
	Error        string        `json:"error,omitempty"`    // why State is "error"
	Promised     bool          `json:"promised,omitempty"` // its ID was returned to the caller before it was created
	Image        string        `json:"image,omitempty"`
	Layers       []string      `json:"layers,omitempty"` // of the snapshot that it was created from, over the image, the lowest first
	Runtime      string        `json:"runtime,omitempty"`
	Size         string        `json:"size,omitempty"`
	Labels       []string      `json:"labels,omitempty"`
	KeepAlive    bool          `json:"keep_alive,omitempty"`
	InitCommand  string        `json:"init_command,omitempty"`
	User         string        `json:"user,omitempty"` // name of its ordinary user; "": the launcher's default
	Home         string        `json:"home,omitempty"` // that user's home directory; "": the launcher's default
	Ephemeral    bool          `json:"ephemeral,omitempty"`
	Attached     *Attached     `json:"attached,omitempty"` // set: the box was attached, not launched
	CreatedAt    time.Time     `json:"created_at"`
	UpdatedAt    time.Time     `json:"updated_at,omitzero"`
	LastActivity time.Time     `json:"last_activity,omitzero"`
	ExpiresAt    time.Time     `json:"expires_at,omitzero"`     // zero: never
	Boot         string        `json:"boot,omitempty"`          // the boot of the host during which ExpiresAt was set; "": unknown
	BootEnd      time.Duration `json:"boot_end,omitempty"`      // ExpiresAt on the boot clock of Boot
	TTL          time.Duration `json:"ttl_ns,omitempty"`        // with OnEnd: the last time to live that it was given; 0: none
	OnEnd        string        `json:"on_end,omitempty"`        // what happens at its end; "": it is deleted
	AutoResume   bool          `json:"auto_resume,omitempty"`   // any use resumes it after it was paused at its end
	PausedAtEnd  bool          `json:"paused_at_end,omitempty"` // ExpiresAt is then when it is deleted
	CreatedBy    string        `json:"created_by,omitempty"`    // ID of the API key; "" for the operator's
	Source       policy.Source `json:"source,omitzero"`         // source address of its connections
	Limits       BoxLimits     `json:"limits,omitzero"`         // its own limits
	CPU          time.Duration `json:"cpu_ns,omitempty"`        // CPU time used so far
	Asks         *bool         `json:"asks,omitempty"`          // whether it may ask for approvals; nil: as configured

	// Extra has the fields of the hosted product, stored and returned unchanged. It is sealed, because programs put
	// tokens there.
	Extra json.RawMessage `json:"-"`
	// Metadata are the texts that programs keep with the box, sealed for the same reason.
	Metadata map[string]string `json:"-"`
	// Env is the environment of the box, sealed.
	Env map[string]name.Secret `json:"-"`
	// Secrets are the other secrets of the box by the name its owner gave them, sealed.
	Secrets map[string]name.Secret `json:"-"`
	// PlaceholderKey is the key that the tokens of the box's placeholders are derived from, sealed; empty in boxes of older
	// versions.
	PlaceholderKey name.Secret `json:"-"`
}

// BoxLimits are the limits of one box that differ from the configured ones: those set by the operator, and those set by
// others, which apply where they are lower.
type BoxLimits struct {
	Operator policy.Limits `json:"operator,omitzero"`
	Own      policy.Limits `json:"own,omitzero"`

	OperatorModel llm.Limit `json:"operator_model,omitzero"`
	OwnModel      llm.Limit `json:"own_model,omitzero"`
}

// Attached describes the attached sandbox if the gateway did not launch the box itself.
type Attached struct {
	Kind string `json:"kind"` // interface, netns, pid, docker, oci, cni, tap or remote
	Ref  string `json:"ref"`
	// Container is the ID of a Docker container, whichever way Ref names it.
	Container string `json:"container,omitempty"`
	// Stack is guest if the sandbox's own network stack uses the interface; else host, or empty in boxes of older
	// versions.
	Stack string `json:"stack,omitempty"`
	// Runtime is the OCI runtime of a container of `gateway oci`.
	Runtime string `json:"runtime,omitempty"`
	// NetNS is the path of the namespace if Ref is a CNI attachment.
	NetNS string `json:"netns,omitempty"`
	// Pod is the Kubernetes pod of a CNI attachment, NAMESPACE/NAME.
	Pod string `json:"pod,omitempty"`
	// Search is the search list of its resolver when it was attached.
	Search []string `json:"search,omitempty"`
	// Tap is the interface of a virtual machine: with Kind tap in the gateway's network namespace, else in that of the sandbox.
	Tap *Tap `json:"tap,omitempty"`
	// Token opens the remote listener for a box of Kind remote; nil: no token does.
	Token *RemoteToken `json:"token,omitempty"`
}

// RemoteToken is the token of a remote box.
type RemoteToken struct {
	Hash      []byte    `json:"hash"` // SHA-256 of the token, which has 256 random bits
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Tap is the interface of a virtual machine.
type Tap struct {
	Name       string `json:"name"`
	Owner      int    `json:"owner,omitempty"` // the user who may open it
	MultiQueue bool   `json:"multi_queue,omitempty"`
	NoDHCP     bool   `json:"no_dhcp,omitempty"`
}

// sealedBoxFields is the sealed part of a box.
type sealedBoxFields struct {
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	Extra   json.RawMessage   `json:"extra,omitempty"`

	Metadata       map[string]string `json:"metadata,omitempty"`
	PlaceholderKey []byte            `json:"placeholder_key,omitempty"`
}

// Get returns a box by its ID, or [ErrNotFound].
func (db Boxes) Get(id policy.BoxID) (Box, error) {
	var b Box
	err := db.view(func(tx *transaction) (err error) {
		b, err = getBox(tx, id)
		return err
	})
	return b, err
}

// ByName returns the box with that name, or [ErrNotFound].
func (db Boxes) ByName(name string) (Box, error) {
	var b Box
	err := db.view(func(tx *transaction) (err error) {
		id, err := tx.get(layout.Names, []byte(name))
		if err != nil {
			return err
		}
		b, err = getBox(tx, policy.BoxID(id))
		return err
	})
	return b, err
}

// All returns every box, oldest first.
func (db Boxes) All() ([]Box, error) {
	var out []Box
	err := db.view(func(tx *transaction) error {
		boxes, err := tx.table(layout.Boxes)
		if err != nil {
			return err
		}
		for _, id := range boxes.Keys(nil) {
			b, err := getBox(tx, policy.BoxID(id))
			if err != nil {
				return err
			}
			out = append(out, b)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b Box) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return bytes.Compare([]byte(a.ID), []byte(b.ID))
	})
	return out, nil
}

// Update replaces the record of a box, except for its index, addresses, layers and creation time. The errors are
// [ErrNotFound] and [ErrNameTaken].
func (db Boxes) Update(b Box) error {
	return db.update(func(tx *transaction) error {
		old, err := getBox(tx, b.ID)
		if err != nil {
			return err
		}
		b.Index, b.V4, b.V6, b.CreatedAt, b.Layers = old.Index, old.V4, old.V6, old.CreatedAt, old.Layers
		if b.Name != old.Name {
			if err := claimName(tx, b); err != nil {
				return err
			}
			if err := releaseName(tx, old); err != nil {
				return err
			}
		}
		return putBox(tx, b)
	})
}

// Delete removes a box and everything that belongs to it in one transaction: addresses, name, secrets, policies,
// header rules, CA, public URLs, schedules and approvals. Its history stays until [History.Expire]. A missing box is not an error, because deletions are repeated after a
// crash.
func (db Boxes) Delete(id policy.BoxID) error {
	return db.update(func(tx *transaction) error {
		b, err := boxRecord(tx, id) // not getBox: the secrets are not needed
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		errs := []error{deleteURLs(tx, id), deletePorts(tx, id), releaseName(tx, b), setLayerOwner(tx, boxOwner(id), b.Layers, nil), tx.delete(layout.Indexes, binary.BigEndian.AppendUint32(nil, b.Index))}
		for _, a := range []netip.Addr{b.V4, b.V6} {
			if a.IsValid() {
				errs = append(errs, tx.delete(layout.Addrs, a.AsSlice()))
			}
		}
		for _, bucket := range [][]byte{layout.Boxes, layout.Secrets, layout.Policies, layout.Headers, layout.CAs, layout.Usage} {
			errs = append(errs, tx.delete(bucket, []byte(id)))
		}
		for _, s := range []slot{policySlot(id), headerSlot(string(id))} {
			errs = append(errs, settle(tx, s, history.RolledBack, time.Now()), tx.delete(layout.Staged, []byte(s.staged)))
		}
		errs = append(errs, endHistory(tx, id), tx.delete(layout.Models, []byte(ModelAccountOfBox(id))))
		return errors.Join(append(errs, deleteSchedules(tx, id), deleteApprovals(tx, id))...)
	})
}

// boxRecord reads a box without its sealed part.
func boxRecord(tx *transaction, id policy.BoxID) (b Box, err error) {
	data, err := tx.get(layout.Boxes, []byte(id))
	if err != nil {
		return b, err
	}
	if data == nil {
		return b, fmt.Errorf("box %s: %w", id, ErrNotFound)
	}
	if err := document.Decode(data, &b); err != nil {
		return b, fmt.Errorf("the record of box %s is damaged: %w", id, err)
	}
	return b, nil
}

// getBox reads a box and opens its sealed part.
func getBox(tx *transaction, id policy.BoxID) (Box, error) {
	b, err := boxRecord(tx, id)
	if err != nil {
		return Box{}, err
	}
	sealed, err := tx.get(layout.Secrets, []byte(id))
	if err != nil {
		return Box{}, err
	}
	var s sealedBoxFields
	if err := tx.openJSON(layout.Secrets, string(id), sealed, &s); err != nil {
		return Box{}, err
	}
	b.Env, b.Secrets, b.Extra, b.Metadata = toSecrets(s.Env), toSecrets(s.Secrets), s.Extra, s.Metadata
	b.PlaceholderKey = name.NewSecret(string(s.PlaceholderKey))
	return b, nil
}

// putBox writes a box and its sealed part.
func putBox(tx *transaction, b Box) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	sealed, err := tx.sealJSON(layout.Secrets, string(b.ID),
		sealedBoxFields{Env: toPlain(b.Env), Secrets: toPlain(b.Secrets), Extra: b.Extra, Metadata: b.Metadata, PlaceholderKey: []byte(b.PlaceholderKey.Reveal())})
	if err != nil {
		return err
	}
	if err := tx.put(layout.Boxes, []byte(b.ID), data); err != nil {
		return err
	}
	return tx.put(layout.Secrets, []byte(b.ID), sealed)
}

// claimName reserves the name for the box.
func claimName(tx *transaction, b Box) error {
	if b.Name == "" {
		return nil
	}
	names, err := tx.table(layout.Names)
	if err != nil {
		return err
	}
	owner, err := names.Get([]byte(b.Name))
	if err != nil {
		return err
	}
	if owner != nil && string(owner) != string(b.ID) {
		return fmt.Errorf("%q: %w", b.Name, ErrNameTaken)
	}
	return names.Put([]byte(b.Name), []byte(b.ID))
}

func releaseName(tx *transaction, b Box) error {
	if b.Name == "" {
		return nil
	}
	return tx.delete(layout.Names, []byte(b.Name))
}

// requireBox refuses records of a box that does not exist, because they would never be deleted.
func requireBox(tx *transaction, id policy.BoxID) error {
	if tx.Bucket(layout.Boxes).Get([]byte(id)) == nil {
		return fmt.Errorf("box %s: %w", id, ErrNotFound)
	}
	return nil
}

// toPlain returns secrets in plain text, to be sealed immediately.
func toPlain(m map[string]name.Secret) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = v.Reveal()
	}
	return out
}

func toSecrets(m map[string]string) map[string]name.Secret {
	if m == nil {
		return nil
	}
	out := make(map[string]name.Secret, len(m))
	for k, v := range m {
		out[k] = name.NewSecret(v)
	}
	return out
}

// Usages has the total usage of the boxes.
type Usages struct{ *file }

// Usage is the total usage of a box since its creation.
type Usage struct {
	CPU        Count `json:"cpu"`  // nanoseconds
	In         Count `json:"in"`   // bytes towards the box
	Out        Count `json:"out"`  // bytes from the box
	OOMKills   Count `json:"oom"`  // processes killed because the box's memory ran out
	PeakMemory int64 `json:"peak"` // bytes

	Period Period `json:"period,omitzero"`
}

// Period is the current quota period of a box.
type Period struct {
	Length int64  `json:"length"` // nanoseconds
	Number int64  `json:"number"` // number of the period since 1970, in periods of that length
	Before uint64 `json:"before"` // bytes that the box had sent and received in all when the period began
}

// Count is the sum of several kernel counters. Each counter started from zero.
type Count struct {
	Total uint64 `json:"total"`
	Life  string `json:"life,omitempty"` // identifies the counter that was read last
	Seen  uint64 `json:"seen,omitempty"` // its value then, which is part of Total
}

// All returns the stored usage of each box.
func (db Usages) All() (map[policy.BoxID]Usage, error) {
	all := map[policy.BoxID]Usage{}
	err := db.view(func(tx *transaction) error {
		t, err := tx.table(layout.Usage)
		if err != nil {
			return err
		}
		for _, id := range t.Keys(nil) {
			data, err := t.Get(id)
			if err != nil {
				return err
			}
			var u Usage
			if err := document.Decode(data, &u); err != nil {
				return fmt.Errorf("the usage of box %s is damaged: %w", id, err)
			}
			all[policy.BoxID(id)] = u
		}
		return nil
	})
	return all, err
}

// Save stores the usage of boxes in one transaction. It skips boxes that no longer exist.
func (db Usages) Save(all map[policy.BoxID]Usage) error {
	return db.update(func(tx *transaction) error {
		t, err := tx.table(layout.Usage)
		if err != nil {
			return err
		}
		for id, u := range all {
			if requireBox(tx, id) != nil {
				continue
			}
			data, err := json.Marshal(u)
			if err != nil {
				return err
			}
			if err := t.Put([]byte(id), data); err != nil {
				return err
			}
		}
		return nil
	})
}

// Pools are the address pools of [Boxes.Allocate]. A family with an invalid prefix gets no addresses.
type Pools struct {
	V4, V6 netip.Prefix
	// Reserved is the number of addresses kept free at the beginning of each pool, including the network address. The
	// box with index i gets address Reserved+i.
	Reserved uint32
	// Max bounds the number of boxes; 0: the size of the pools, at most 65536.
	Max uint32
}

// maxBoxes is the maximum number of boxes on a host: each box has 65536 of the 2^32 user IDs.
const maxBoxes = 1 << 16

// Allocate stores a new box and returns it with the lowest free index and addresses. It ignores those fields of b.
// The errors are [ErrNameTaken], [ErrExhausted], [ErrConflict] for an ID that exists, and [ErrNotFound] for layers that
// no longer exist.
func (db Boxes) Allocate(b Box, pools Pools) (Box, error) {
	if err := checkID(b.ID); err != nil {
		return Box{}, err
	}
	err := db.update(func(tx *transaction) error {
		if tx.Bucket(layout.Boxes).Get([]byte(b.ID)) != nil {
			return fmt.Errorf("box %s: %w", b.ID, ErrConflict)
		}
		if err := assignIndex(tx, &b, pools); err != nil {
			return err
		}
		if err := errors.Join(claimName(tx, b), claimLayers(tx, b)); err != nil {
			return err
		}
		return putBox(tx, b)
	})
	if err != nil {
		return Box{}, err
	}
	return b, nil
}

// assignIndex gives the box the lowest free index whose addresses are free too: the pools may have changed since older
// boxes got theirs.
func assignIndex(tx *transaction, b *Box, pools Pools) error {
	limit := uint32(maxBoxes)
	if pools.Max != 0 {
		limit = min(limit, pools.Max)
	}
	indexes, err := tx.table(layout.Indexes)
	if err != nil {
		return err
	}
	addrs, err := tx.table(layout.Addrs)
	if err != nil {
		return err
	}
	taken := indexes.Cursor()
	used, _ := taken.First()
	for i := range limit {
		if used != nil && binary.BigEndian.Uint32(used) == i {
			used, _ = taken.Next()
			continue
		}
		v4, ok4 := poolAddress(pools.V4, pools.Reserved+i)
		v6, ok6 := poolAddress(pools.V6, pools.Reserved+i)
		if !ok4 || !ok6 {
			break
		}
		if isAssigned(addrs, v4) || isAssigned(addrs, v6) {
			continue
		}
		b.Index, b.V4, b.V6 = i, v4, v6
		for _, a := range []netip.Addr{v4, v6} {
			if !a.IsValid() {
				continue
			}
			if err := addrs.Put(a.AsSlice(), []byte(b.ID)); err != nil {
				return err
			}
		}
		return indexes.Put(binary.BigEndian.AppendUint32(nil, i), []byte(b.ID))
	}
	return ErrExhausted
}

func isAssigned(addrs document.Table, a netip.Addr) bool {
	return a.IsValid() && addrs.Has(a.AsSlice())
}

// poolAddress returns address n of a pool, and whether the pool reaches that far. The last address of an IPv4 pool is its
// broadcast address and never given out. An invalid pool has no addresses and no end.
func poolAddress(pool netip.Prefix, n uint32) (netip.Addr, bool) {
	if !pool.IsValid() {
		return netip.Addr{}, true
	}
	a := pool.Masked().Addr()
	if a.Is4() {
		size := uint64(1) << (32 - pool.Bits())
		if uint64(n)+1 >= size {
			return netip.Addr{}, false
		}
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
		return netip.AddrFrom4(b), true
	}
	b := a.As16()
	low := binary.BigEndian.Uint64(b[8:]) // includes the host part of a pool of 64 bits or less
	if host := 128 - pool.Bits(); host < 64 && uint64(n) >= uint64(1)<<host {
		return netip.Addr{}, false
	}
	binary.BigEndian.PutUint64(b[8:], low+uint64(n))
	return netip.AddrFrom16(b), true
}

// checkID refuses text that is not an ID, because it could be mistaken for another key.
func checkID(id policy.BoxID) error {
	if id == "" || len(id) > 32 {
		return fmt.Errorf("%q is not a box ID", string(id))
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return fmt.Errorf("%q is not a box ID", string(id))
		}
	}
	return nil
}
