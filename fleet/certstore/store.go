// Package certstore has the certificates of a fleet's public URLs in etcd, as the storage of certmagic: one host obtains or renews a
// certificate, and the others read it. Values are sealed to the members of the fleet.
//
// Each host caches the certificates that it reads, and serves them from the cache if etcd does not answer. Locks and changes need etcd:
// no certificate is obtained or renewed without it.
package certstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/pki"
	"boxgate/internal/required"
	"boxgate/policy/name"
)

// Config configures a [Store].
type Config struct {
	Client   *clientv3.Client
	Keys     fleet.Keys
	Founding string // ID of the fleet that the host joined
	// Guard is a condition of each change that only a host with its lease meets, see [fleet/member.Session.Guard].
	Guard func() clientv3.Cmp
	// Authority returns the private key of the fleet's authority. It is called until it succeeds once.
	Authority func(context.Context) (name.Secret, error)
	// Cache is private to this host.
	Cache certmagic.Storage
	Log   *zap.Logger
	TTL   time.Duration `required:"false"` // of a lock whose holder is gone, whole seconds; 0: [TTL]
}

// Store implements [certmagic.Storage] and [certmagic.TryLocker]. Safe for concurrent use.
type Store struct {
	Config
	sealer   atomic.Pointer[pki.Sealer]
	away     atomic.Int64 // Unix nanoseconds until which reads do not ask etcd
	cached   atomic.Uint64
	refused  atomic.Uint64
	mu       sync.Mutex
	held     map[string]*held         // by the name of the lock
	busy     map[string]chan struct{} // locks of this process, requested or held; closed when released
	caching  sync.Mutex
	versions map[string]int64 // revisions of the certificates in the cache, by directory
}

// Limits of the storage.
const (
	maxKeys   = 30_000   // about 10,000 certificates
	maxValue  = 64 << 10 // bytes
	maxKey    = 512      // bytes
	pageSize  = 1000     // keys in one answer
	readTime  = 2 * time.Second
	writeTime = 5 * time.Second
	// awayTime is how long reads use the cache after etcd did not answer one.
	awayTime = 5 * time.Second
)

// Errors of a storage. They wrap no certificate or key.
var (
	// ErrFenced: the host has no lease in the fleet, or another host has taken its lock over.
	ErrFenced = errors.New("nothing was written: this host has no lease in the fleet, or its lock has ended")
	// ErrFull: there are too many certificates.
	ErrFull = fmt.Errorf("the fleet has %d files of certificates, which is the limit", maxKeys)

	errKey   = errors.New("not a key of certificates")
	errFleet = errors.New("etcd does not have this fleet")
)

// New returns a storage, without asking etcd.
func New(c Config) (*Store, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	if c.TTL == 0 {
		c.TTL = TTL
	}
	return &Store{Config: c, held: map[string]*held{}, busy: map[string]chan struct{}{}, versions: map[string]int64{}}, nil
}

func (s *Store) place(key string) string {
	return s.Keys.Certificates(s.Founding) + "data/" + key
}

// check refuses keys that are not relative paths: they are also paths of files in the cache.
func check(key string) error {
	if key == "" || len(key) > maxKey || path.Clean(key) != key || strings.HasPrefix(key, "/") || key == "." || key == ".." || strings.HasPrefix(key, "../") || strings.ContainsAny(key, "\x00\\") {
		return errKey
	}
	return nil
}

// read asks etcd for ranges, and verifies that they belong to this fleet and that their values can be opened. After a failure it fails
// without asking for [awayTime], so that handshakes do not wait for etcd one after another.
func (s *Store) read(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	if time.Now().UnixNano() < s.away.Load() {
		return nil, fleet.ErrUnreachable
	}
	call, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	answer, err := s.Client.Txn(call).Then(append(ops, clientv3.OpGet(s.Keys.Founding()))...).Commit()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err == nil {
		kvs := answer.Responses[len(ops)].GetResponseRange().Kvs
		if len(kvs) == 0 {
			err = errFleet
		} else if f, bad := fleet.Decode[fleet.Founding](kvs[0].Value); bad != nil || f.ID != s.Founding {
			err = errFleet
		}
	}
	if err == nil {
		_, err = s.key(ctx)
	}
	if err != nil {
		s.away.Store(time.Now().Add(awayTime).UnixNano())
		s.Log.Warn("certificates are served from this host's cache, and none is obtained", zap.Error(err))
		return nil, fleet.Unreachable(ctx, err)
	}
	return answer, nil
}

// fromCache counts an answer of the cache; false: the caller has given up.
func (s *Store) fromCache(ctx context.Context) bool {
	if ctx.Err() == nil {
		s.cached.Add(1)
	}
	return ctx.Err() == nil
}

// value is an opened value.
type value struct {
	data     []byte
	modified time.Time
}

// Load implements [certmagic.Storage].
func (s *Store) Load(ctx context.Context, key string) ([]byte, error) {
	v, err := s.load(ctx, key)
	return v.data, err
}

func (s *Store) load(ctx context.Context, key string) (value, error) {
	if err := check(key); err != nil {
		return value{}, err
	}
	op, set := clientv3.OpGet(s.place(key)), setOf(key)
	if set != "" { // its files belong together: they are read, and cached, at one revision
		op = clientv3.OpGet(s.place(set)+"/", clientv3.WithPrefix(), clientv3.WithLimit(maxFiles))
	}
	answer, err := s.read(ctx, op)
	if err != nil {
		if !s.fromCache(ctx) {
			return value{}, err
		}
		data, err := s.Cache.Load(ctx, key)
		return value{data: data}, err
	}
	found, files, last := value{}, map[string][]byte{}, int64(0)
	exists := false
	for _, kv := range answer.Responses[0].GetResponseRange().Kvs {
		v, err := s.open(ctx, string(kv.Key), kv.Value)
		if err != nil {
			return value{}, fmt.Errorf("%s: %w", key, err)
		}
		at := strings.TrimPrefix(string(kv.Key), s.place(""))
		files[at], last = v.data, max(last, kv.ModRevision)
		if at == key {
			found, exists = v, true
		}
	}
	if !exists {
		return value{}, fmt.Errorf("%s: %w", key, fs.ErrNotExist)
	}
	if set != "" {
		s.keep(ctx, set, last, files)
	}
	return found, nil
}

// Exists implements [certmagic.Storage].
func (s *Store) Exists(ctx context.Context, key string) bool {
	_, err := s.Stat(ctx, key)
	return err == nil
}

// Stat implements [certmagic.Storage].
func (s *Store) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	if err := check(key); err != nil {
		return certmagic.KeyInfo{}, err
	}
	answer, err := s.read(ctx, clientv3.OpGet(s.place(key)), clientv3.OpGet(s.place(key)+"/", clientv3.WithPrefix(), clientv3.WithCountOnly()))
	if err != nil {
		if !s.fromCache(ctx) {
			return certmagic.KeyInfo{}, err
		}
		return s.Cache.Stat(ctx, key)
	}
	for _, kv := range answer.Responses[0].GetResponseRange().Kvs {
		v, err := s.open(ctx, string(kv.Key), kv.Value)
		return certmagic.KeyInfo{Key: key, Modified: v.modified, Size: int64(len(v.data)), IsTerminal: true}, err
	}
	if answer.Responses[1].GetResponseRange().Count > 0 {
		return certmagic.KeyInfo{Key: key}, nil
	}
	return certmagic.KeyInfo{}, fmt.Errorf("%s: %w", key, fs.ErrNotExist)
}

// List implements [certmagic.Storage]. As in certmagic's storage of files, directories are among the keys.
func (s *Store) List(ctx context.Context, prefix string, recursive bool) ([]string, error) {
	from, root := s.place(""), s.place("")
	if prefix = strings.TrimSuffix(prefix, "/"); prefix != "" {
		if err := check(prefix); err != nil {
			return nil, err
		}
		from = s.place(prefix) + "/"
	}
	seen := map[string]bool{}
	for at, end := from, clientv3.GetPrefixRangeEnd(from); ; {
		answer, err := s.read(ctx, clientv3.OpGet(at, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(pageSize)))
		if err != nil {
			if !s.fromCache(ctx) {
				return nil, err
			}
			return s.Cache.List(ctx, prefix, recursive)
		}
		page := answer.Responses[0].GetResponseRange()
		for _, kv := range page.Kvs {
			at = string(kv.Key) + "\x00"
			if key := strings.TrimPrefix(string(kv.Key), root); check(key) == nil {
				addPath(seen, prefix, key, recursive)
			}
		}
		if !page.More {
			break
		}
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("%s: %w", prefix, fs.ErrNotExist)
	}
	var keys []string
	for key := range seen {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys, nil
}

// addPath adds a key below prefix and its directories; only the first step below prefix if it is not recursive.
func addPath(seen map[string]bool, prefix, key string, recursive bool) {
	begin := 0
	if prefix != "" {
		begin = len(prefix) + 1
	}
	for i := begin; i < len(key); i++ {
		if key[i] == '/' {
			seen[key[:i]] = true
			if !recursive {
				return
			}
		}
	}
	seen[key] = true
}

// seal encrypts a value with its time.
func (s *Store) seal(ctx context.Context, place string, data []byte) (string, error) {
	sealer, err := s.key(ctx)
	if err != nil {
		return "", err
	}
	plain := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(data)), uint64(time.Now().UnixNano()))
	return string(sealer.Seal(place, append(plain, data...))), nil
}

func (s *Store) open(ctx context.Context, place string, text []byte) (value, error) {
	sealer, err := s.key(ctx)
	if err != nil {
		return value{}, err
	}
	plain, err := sealer.Open(place, text)
	if err != nil {
		return value{}, err
	}
	if len(plain) < 8 {
		return value{}, errKey
	}
	return value{plain[8:], time.Unix(0, int64(binary.BigEndian.Uint64(plain)))}, nil
}

// key returns the key of the values.
func (s *Store) key(ctx context.Context) (*pki.Sealer, error) {
	if known := s.sealer.Load(); known != nil {
		return known, nil
	}
	call, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	authority, err := s.Authority(call)
	if err != nil {
		return nil, err
	}
	sealer, err := pki.NewSealer(authority, "certificates")
	if err == nil {
		s.sealer.Store(sealer)
	}
	return sealer, err
}

// Counts returns how many reads the cache answered, and how many locks and changes failed.
func (s *Store) Counts() (cached, refused uint64) { return s.cached.Load(), s.refused.Load() }
