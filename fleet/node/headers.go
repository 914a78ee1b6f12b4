package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"boxgate/fleet/pki"
	"boxgate/fleet/shared"
	"boxgate/fleet/sharedkey"
)

// headersID is the ID of the only object of the kind [shared.Headers].
const headersID = "rules"

// sealedHeaders is the object in etcd.
type sealedHeaders struct {
	Version uint64 `json:"version"`
	Key     string `json:"key"`  // ID of the shared key
	Host    string `json:"host"` // that wrote it
	Sealed  []byte `json:"sealed"`
}

// errHeaders is the error of an object that no member has written in this place. It does not quote it.
var errHeaders = errors.New("the header rules of the fleet in etcd were not sealed by a member for this place, or are damaged")

// headersPurpose is the purpose of the key that is derived from the shared one.
const headersPurpose = "header rules"

// place binds sealed rules to the fleet, the key of etcd, the key and the version: they cannot be moved or shown as another version.
func (h sealedHeaders) place(founding string) string {
	return fmt.Sprintf("%s %s/%s %s %s %d", founding, shared.Headers, headersID, h.Key, h.Host, h.Version)
}

// decodeHeaders reads the object; the zero value: it does not exist.
func decodeHeaders(objects map[string][]byte) (h sealedHeaders, err error) {
	text, ok := objects[headersID]
	if !ok {
		return h, nil
	}
	if err := json.Unmarshal(text, &h); err != nil || h.Version == 0 || h.Key == "" {
		return sealedHeaders{}, errHeaders // err could quote it
	}
	return h, nil
}

// openTimeout bounds reading the key of a document that this host does not have in memory.
const openTimeout = 2 * time.Second

// OpenHeaders opens the header rules of the fleet among the objects of their kind, see [shared.Apply]. With [sharedkey.ErrNoKey] the other hosts
// are asked for the key; the objects are applied again when one has answered.
func (s *Shared) OpenHeaders(objects map[string][]byte) (shared.HeaderRules, error) {
	h, err := decodeHeaders(objects)
	if err != nil || h.Version == 0 {
		return shared.HeaderRules{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	document, err := s.open(ctx, h)
	if err != nil {
		return shared.HeaderRules{}, err
	}
	return shared.HeaderRules{Version: h.Version, Document: document}, nil
}

// open opens the document of an object.
func (s *Shared) open(ctx context.Context, h sealedHeaders) ([]byte, error) {
	key, err := s.ring.Get(ctx, h.Key)
	if err != nil {
		return nil, err
	}
	sealer, err := pki.NewSealer(key, headersPurpose)
	if err != nil {
		return nil, err
	}
	document, err := sealer.Open(h.place(s.founding), h.Sealed)
	if err != nil {
		return nil, errHeaders
	}
	return document, nil
}

// replaced returns the version of the objects that a change replaces. One that no member has written counts as 0; of one whose key this host
// does not have, the version is not known to be a member's either, but it must be exceeded.
func (s *Shared) replaced(ctx context.Context, objects map[string][]byte) (uint64, error) {
	h, err := decodeHeaders(objects)
	if err != nil || h.Version == 0 {
		return 0, nil
	}
	switch _, err := s.open(ctx, h); {
	case err == nil, errors.Is(err, sharedkey.ErrNoKey) && h.Version < maxUnknown:
		return h.Version, nil
	case errors.Is(err, errHeaders), errors.Is(err, sharedkey.ErrNoKey):
		return 0, nil
	default:
		return 0, err
	}
}

// maxUnknown bounds a version that may be anybody's, so that versions do not end.
const maxUnknown = 1 << 62

// headersTimeout is that of a change of header rules. It may make a key for every host, see [sharedkey.Ring.Prepare].
const headersTimeout = time.Minute

// ChangeHeaders replaces the header rules of the fleet, and returns their version when they are in force on every host with a lease. check gets the
// version that is replaced; its error ends the change. The new version is higher than that and least. The error is [shared.ErrBehind] if
// hosts take too long; the change is made then.
func (s *Shared) ChangeHeaders(ctx context.Context, least uint64, check func(version uint64) error, document []byte) (version uint64, err error) {
	if len(document) > shared.MaxHeaderRules {
		return 0, shared.ErrTooLarge
	}
	ctx = context.WithoutCancel(ctx)
	call, cancel := context.WithTimeout(ctx, headersTimeout)
	defer cancel()
	var with sharedkey.Prepared
	prepare := func(ctx context.Context) (shared.Also, error) {
		with, err = s.ring.Prepare(ctx)
		return shared.Also{If: with.If, Then: with.Then}, err
	}
	revision, err := s.table.ChangeWith(call, shared.Headers, prepare, func(objects map[string][]byte) error {
		now, err := s.replaced(call, objects)
		if err != nil {
			return err
		}
		if err := check(now); err != nil {
			return err
		}
		sealer, err := pki.NewSealer(with.Key, headersPurpose)
		if err != nil {
			return err
		}
		next := sealedHeaders{Version: max(now, least) + 1, Key: with.ID, Host: s.table.Host}
		next.Sealed = sealer.Seal(next.place(s.founding), document)
		text, err := json.Marshal(next)
		objects[headersID], version = text, next.Version
		return err
	})
	if err != nil {
		return 0, err
	}
	wait, stop := context.WithTimeout(ctx, everywhereTimeout)
	defer stop()
	return version, s.mirror.AwaitAll(wait, &s.acks, shared.Headers, revision)
}
