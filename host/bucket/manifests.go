// Package bucket is the store of snapshots that several hosts share: a bucket of an S3 server. Whoever can read or write the bucket learns
// and changes no content: layers and manifests are encrypted and authenticated by a key that only the hosts have.
//
// Below the prefix of the configuration, an object snapshots/{ID} is the manifest of a snapshot: its record, its owner and its layers. An
// object layers/{name} is a layer, compressed and sealed; its name is a keyed digest of its content, so hosts that have the same layer store
// it once. Objects are never changed. A snapshot exists while its manifest does; [Bucket.Sweep] removes layers that no manifest needs.
package bucket

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"go.uber.org/zap"

	"boxgate/launcher"
	"boxgate/store"
)

// The parts of the names of objects.
const (
	manifestsDir = "snapshots/"
	layersDir    = "layers/"
)

const (
	// maxManifest bounds the size of one manifest, and maxManifests that of all together, which are kept in memory.
	maxManifest  = 2 << 20
	maxManifests = 128 << 20
	// maxLayers bounds the layers of one snapshot.
	maxLayers = 64
)

// Manifest describes a snapshot for the other hosts.
type Manifest struct {
	Snapshot store.Snapshot `json:"snapshot"`
	Layers   []Layer        `json:"layers"` // of Snapshot.Layers, in the same order
}

// Layer describes a layer.
type Layer struct {
	Name   string              `json:"name"`   // on all hosts
	Digest string              `json:"digest"` // of its content: its compressed archive
	Packed int64               `json:"packed"` // size of its content
	Size   int64               `json:"size"`   // bytes on disk
	Image  launcher.LayerImage `json:"image"`
}

// sum returns the digest in binary.
func (l Layer) sum() ([]byte, error) {
	sum, err := hex.DecodeString(l.Digest)
	if err != nil || len(sum) != 32 || l.Packed <= 0 || l.Packed > maxParts*partSize {
		return nil, fmt.Errorf("%w: the manifest describes no layer", ErrDamaged)
	}
	return sum, nil
}

// check finds manifests that no host writes.
func (m Manifest) check() error {
	names := []string{}
	for _, l := range m.Layers {
		if _, err := l.sum(); err != nil {
			return err
		}
		names = append(names, l.Name)
	}
	if !slices.Equal(names, m.Snapshot.Layers) || len(names) > maxLayers {
		return fmt.Errorf("%w: the manifest has other layers than its snapshot", ErrDamaged)
	}
	return nil
}

// object is a manifest that was read.
type object struct {
	tag      string
	bytes    int64
	manifest Manifest
	err      error // why it could not be read
}

// idText matches IDs of snapshots.
var idText = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// Publish makes a snapshot visible to all hosts. Its layers must be stored.
func (b *Bucket) Publish(ctx context.Context, m Manifest) error {
	k, err := b.derived(ctx)
	if err != nil {
		return err
	}
	if err := m.check(); err != nil {
		return err
	}
	sealed, err := k.seal(m.Snapshot.ID, m)
	if err != nil {
		return err
	}
	if len(sealed) > maxManifest {
		return fmt.Errorf("the record of the snapshot has %d bytes, more than the %d that the snapshot store takes", len(sealed), maxManifest)
	}
	return explain(b.retry(ctx, func() error { return b.put(ctx, b.prefix+manifestsDir+m.Snapshot.ID, sealed) }))
}

// Remove removes the manifest of a snapshot: no host can begin to use it.
func (b *Bucket) Remove(ctx context.Context, id string) error {
	return explain(b.retry(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err := b.s3.RemoveObject(ctx, b.name, b.prefix+manifestsDir+id, minio.RemoveObjectOptions{})
		if isMissing(err) {
			return nil
		}
		return err
	}))
}

// errTooMany ends a listing that would take too much memory.
var errTooMany = fmt.Errorf("%w: its records have more than %d bytes", ErrDamaged, maxManifests)

// Manifests returns the manifests of all snapshots, and the number of unreadable ones. It downloads only new ones.
func (b *Bucket) Manifests(ctx context.Context) (list []Manifest, unreadable int, err error) {
	k, err := b.derived(ctx)
	if err != nil {
		return nil, 0, err
	}
	now, sum := map[string]object{}, int64(0)
	err = b.list(ctx, manifestsDir, func(o minio.ObjectInfo) error {
		id := strings.TrimPrefix(o.Key, b.prefix+manifestsDir)
		if !idText.MatchString(id) {
			unreadable++
			return nil
		}
		if sum += max(0, o.Size) + int64(len(o.Key)+len(o.ETag)); sum > maxManifests {
			return errTooMany
		}
		found, err := b.manifest(ctx, k, id, o)
		if err == nil {
			now[id] = found
		}
		return err
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		maps.Copy(b.known, now) // the next listing need not read them again
		return nil, 0, explain(err)
	}
	b.known = now
	for _, id := range slices.Sorted(maps.Keys(now)) {
		if now[id].err != nil {
			unreadable++
		} else {
			list = append(list, now[id].manifest)
		}
	}
	return list, unreadable, nil
}

// manifest returns a listed manifest. The error is one of the server; a manifest that cannot be opened has its own.
func (b *Bucket) manifest(ctx context.Context, k keys, id string, o minio.ObjectInfo) (object, error) {
	b.mu.Lock()
	known, ok := b.known[id]
	b.mu.Unlock()
	if ok && known.tag == o.ETag && known.bytes == o.Size {
		return known, nil
	}
	found := object{tag: o.ETag, bytes: o.Size}
	sealed, err := b.get(ctx, o.Key, maxManifest)
	switch {
	case isMissing(err):
		found.err = err // removed in between
		return found, nil
	case err == nil:
		found.manifest, found.err = k.open(id, sealed)
	case errors.Is(err, ErrDamaged):
		found.err = err
	default:
		return found, err
	}
	if found.err != nil {
		b.log.Error("a snapshot in the snapshot store cannot be used", zap.String("snapshot", id), zap.Error(found.err))
	}
	return found, nil
}

// list calls f for the objects below a directory.
func (b *Bucket) list(ctx context.Context, dir string, f func(minio.ObjectInfo) error) error {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, pagesKey{}, new(int)), listTimeout)
	defer cancel() // ends the listing
	for o := range b.s3.Client.ListObjects(ctx, b.name, minio.ListObjectsOptions{Prefix: b.prefix + dir, Recursive: true}) {
		if o.Err != nil {
			return o.Err
		}
		if !strings.HasPrefix(o.Key, b.prefix+dir) || strings.HasSuffix(o.Key, "/") {
			continue
		}
		if err := f(o); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// listTimeout bounds a listing, with the reading of new manifests.
const listTimeout = time.Minute

// needed returns the objects of the layers that the manifests of the last listing need.
func (b *Bucket) needed() map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]bool{}
	for _, o := range b.known {
		for _, l := range o.manifest.Layers {
			if sum, err := l.sum(); err == nil {
				out[b.prefix+layersDir+b.keys.layerName(sum)] = true
			}
		}
	}
	return out
}

// graceTime is how long a layer stays that no snapshot needs. Whoever began to download it must have finished by then, and whoever relies
// on it for a new snapshot must have published that.
const graceTime = 24 * time.Hour

// PublishTime is how long after the upload of its first layer a snapshot may be published.
const PublishTime = graceTime / 2

// unneeded is a layer that no snapshot needs.
type unneeded struct {
	since    time.Time // when that was first seen
	modified time.Time // of the object, at that time
}

// Sweep removes the layers of this key that no snapshot has needed for the grace time, and parts of uploads that began before it. Manifests that
// were damaged or written with another key make no box on any host with this key, and do not count. All layers stay while a manifest has the
// version of a later program, or all of them are damaged: then this host has the wrong key, or the store the wrong content. Sweep must be called
// from time to time; it marks layers, and a later call removes them.
func (b *Bucket) Sweep(ctx context.Context) (removed int, err error) {
	k, err := b.derived(ctx)
	if err != nil {
		return 0, err
	}
	own := layersDir + k.ownLayers()
	var layers []minio.ObjectInfo
	err = b.list(ctx, own, func(o minio.ObjectInfo) error {
		if len(layers) == b.maxStored {
			return fmt.Errorf("%w: it has more than %d layers", ErrDamaged, b.maxStored)
		}
		layers = append(layers, minio.ObjectInfo{Key: o.Key, LastModified: o.LastModified})
		return nil
	})
	if err != nil {
		return 0, explain(err)
	}
	readable, unreadable, err := b.Manifests(ctx) // after the layers, so that it has the snapshots of all
	if err == nil && unreadable > 0 {
		err = b.mayLackSome(len(readable), unreadable)
	}
	if err != nil {
		return 0, err
	}
	for _, o := range b.due(layers) {
		done, err := b.removeUnchanged(ctx, o)
		if err != nil {
			return removed, explain(err)
		}
		if done {
			removed++
		}
	}
	return removed, explain(b.abortOld(ctx, own))
}

// mayLackSome returns an error if unreadable manifests may need layers of this key.
func (b *Bucket) mayLackSome(readable, unreadable int) error {
	if readable == 0 {
		return fmt.Errorf("%w: none of the %d snapshots in the store can be read, so no layer is removed", ErrDamaged, unreadable)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, o := range b.known {
		if errors.Is(o.err, errLater) {
			return fmt.Errorf("snapshot %s: %w; until then no layer is removed", id, o.err)
		}
	}
	b.log.Warn("unneeded layers are removed without regard to snapshots in the store that cannot be read", zap.Int("unreadable", unreadable))
	return nil
}

// due marks layers that no snapshot needs, and returns the ones whose grace time is over.
func (b *Bucket) due(layers []minio.ObjectInfo) (out []minio.ObjectInfo) {
	needed := b.needed()
	b.mu.Lock()
	defer b.mu.Unlock()
	marked := map[string]unneeded{}
	for _, o := range layers {
		if needed[o.Key] {
			continue
		}
		mark, ok := b.unneeded[o.Key]
		if !ok || !mark.modified.Equal(o.LastModified) {
			mark = unneeded{time.Now(), o.LastModified}
		}
		marked[o.Key] = mark
		if time.Since(mark.since) >= b.grace && time.Since(o.LastModified) >= b.grace {
			out = append(out, o)
		}
	}
	b.unneeded = marked
	return out
}

// removeUnchanged removes a layer, unless a host has stored it again.
func (b *Bucket) removeUnchanged(ctx context.Context, o minio.ObjectInfo) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now, err := b.s3.StatObject(ctx, b.name, o.Key, minio.StatObjectOptions{})
	if isMissing(err) || err == nil && now.LastModified.Sub(o.LastModified).Abs() >= time.Second { // HTTP has whole seconds
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, b.s3.RemoveObject(ctx, b.name, o.Key, minio.RemoveObjectOptions{})
}

// abortOld removes the parts of uploads below a prefix that began before the grace time.
func (b *Bucket) abortOld(ctx context.Context, own string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := b.s3.ListMultipartUploads(ctx, b.name, b.prefix+own, "", "", "", 1000)
	if err != nil {
		return err
	}
	for _, u := range list.Uploads {
		if time.Since(u.Initiated) < b.grace {
			continue
		}
		if err := b.s3.AbortMultipartUpload(ctx, b.name, u.Key, u.UploadID); err != nil && !isMissing(err) {
			return err
		}
	}
	return nil
}
