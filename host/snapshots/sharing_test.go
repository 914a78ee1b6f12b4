package snapshots

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"go.uber.org/zap"

	"boxgate/host/bucket"
	"boxgate/host/bucket/buckettest"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store"
)

// hostFiles simulates the layers of a host: one file each.
type hostFiles struct {
	mu     sync.Mutex
	layers map[string][]byte
	facts  map[string]launcher.Layer
}

func (h *hostFiles) Capture(_ context.Context, id policy.BoxID, layer string, _ func(int64) error) (launcher.Captured, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.layers[layer], h.facts[layer] = bytes.Repeat([]byte("files of "+string(id)), 1000), launcher.Layer{Size: 9000}
	c := launcher.Captured{Layers: []string{layer}}
	c.Size = 9000
	return c, nil
}

func (h *hostFiles) KeepLayers(needed func(string) bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for layer := range h.layers {
		if !needed(layer) {
			delete(h.layers, layer)
			delete(h.facts, layer)
		}
	}
	return nil
}

func (h *hostFiles) Layer(layer string) (launcher.Layer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.layers[layer] == nil {
		return launcher.Layer{}, fs.ErrNotExist
	}
	return h.facts[layer], nil
}

func (h *hostFiles) SetLayerDigest(layer, digest string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.facts[layer]
	l.Digest = digest
	h.facts[layer] = l
	return nil
}

func (h *hostFiles) ArchiveLayer(_ context.Context, layer string, w io.Writer) error {
	h.mu.Lock()
	content := h.layers[layer]
	h.mu.Unlock()
	_, err := w.Write(content)
	return err
}

func (h *hostFiles) UnarchiveLayer(_ context.Context, layer string, as launcher.Layer, r io.Reader, grow func(int64) error) error {
	content, err := io.ReadAll(r)
	if err = errors.Join(err, grow(int64(len(content)))); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.layers[layer], h.facts[layer] = content, as
	return nil
}

// sharingHost is a gateway that shares snapshots.
type sharingHost struct {
	*Manager
	files *hostFiles
	db    *store.DB
}

func newSharingHost(t *testing.T, s *buckettest.Server, key string) *sharingHost {
	t.Helper()
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Boxes.Allocate(store.Box{ID: "box1", PlaceholderKey: store.NewKey()}, store.Pools{V4: netip.MustParsePrefix("10.200.0.0/24"), V6: netip.MustParsePrefix("fd42::/64"), Reserved: 3}); err != nil {
		t.Fatal(err)
	}
	h := &sharingHost{files: &hostFiles{layers: map[string][]byte{}, facts: map[string]launcher.Layer{}}, db: db}
	h.Manager = New(zap.NewNop(), db.Snapshots, h.files, func(f func() error) error { return f() })
	text := func(value string) func(context.Context) (name.Secret, error) {
		return func(context.Context) (name.Secret, error) { return name.NewSecret(value), nil }
	}
	b, err := bucket.New(bucket.Config{Bucket: buckettest.Bucket, Endpoint: s.Endpoint, AccessKey: buckettest.AccessKey, Secret: text(buckettest.SecretKey), Key: text(key), Roots: s.Roots(), Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	h.Share("s3://snapshots", b, h.files, func(int64) error { return nil }, func(key string) bool { return key == "key_admin" })
	t.Cleanup(func() {
		h.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// relist lists the store without waiting for the age of the last list.
func (h *sharingHost) relist(t *testing.T) []store.Snapshot {
	t.Helper()
	if err := h.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := h.Elsewhere("")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func newAgeKey(t *testing.T) string {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// TestSnapshotOfAnotherHost: a snapshot of one host has its owner on another one, its layers are fetched there, and deleting it there deletes
// it everywhere.
func TestSnapshotOfAnotherHost(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newAgeKey(t)
	a, b := newSharingHost(t, s, key), newSharingHost(t, s, key)
	taken, err := a.Take(t.Context(), store.Snapshot{ID: "snap_a", Box: "box1", CreatedBy: "key_1", TakenBy: "key_1"}, free)
	if err != nil || taken.State != Ready || taken.Shared == "" {
		t.Fatalf("%+v, %v", taken, err)
	}
	if list := a.relist(t); len(list) != 0 {
		t.Errorf("a host lists its own snapshot twice: %v", list)
	}
	list := b.relist(t)
	if len(list) != 1 || list[0].ID != "snap_a" || list[0].CreatedBy != "key_1" || list[0].TakenBy != "key_1" || list[0].State != Ready {
		t.Fatalf("the other host has %+v", list)
	}
	if size, ok := b.LayerSize("snap_a"); size != 9000 || !ok {
		t.Errorf("the layer counts %d bytes", size)
	}
	r, err := b.Find(t.Context(), "snap_a")
	if err != nil {
		t.Fatal(err)
	}
	var fetching sync.WaitGroup
	for range 3 { // boxes from it at the same time
		fetching.Go(func() {
			if err := b.Fetch(context.Background(), "key_1", r.Layers, func(string) {}); err != nil {
				t.Error(err)
			}
		})
	}
	fetching.Wait()
	if err := b.Sweep(); err != nil || string(b.files.layers["snap_a"]) != string(a.files.layers["snap_a"]) || b.files.layers["snap_a"] == nil {
		t.Errorf("the layer was not fetched, or not kept: %v", err)
	}
	if err := b.Delete(t.Context(), []string{"snap_a", "snap_unknown"}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleting an unknown snapshot: %v", err)
	}
	if err := b.Delete(t.Context(), []string{"snap_a"}); err != nil {
		t.Fatal(err)
	}
	if list := b.relist(t); len(list) != 0 {
		t.Errorf("it is still listed: %v", list)
	}
	a.relist(t)
	if own, err := a.List(""); err != nil || len(own) != 0 || len(a.files.layers) != 0 {
		t.Errorf("the first host keeps %v, %d layers: %v", own, len(a.files.layers), err)
	}
	b.sharing.mu.Lock()
	for layer := range b.sharing.held {
		b.sharing.held[layer] = time.Now().Add(-time.Second)
	}
	b.sharing.mu.Unlock()
	if err := b.endHolds(); err != nil || len(b.files.layers) != 0 {
		t.Errorf("a layer stays after its hold: %d, %v", len(b.files.layers), err)
	}
}

// TestForeignSnapshotsAreNotUsed: a host with another key cannot use a snapshot, does not take it for deleted, and a changed layer makes no box.
func TestForeignSnapshotsAreNotUsed(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newAgeKey(t)
	a, b, stranger := newSharingHost(t, s, key), newSharingHost(t, s, key), newSharingHost(t, s, newAgeKey(t))
	for host, id := range map[*sharingHost]string{a: "snap_a", stranger: "snap_s"} {
		if r, err := host.Take(t.Context(), store.Snapshot{ID: id, Box: "box1", CreatedBy: "key_1"}, free); err != nil || r.State != Ready {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	for host, want := range map[*sharingHost]int{a: 0, b: 1, stranger: 0} {
		if list := host.relist(t); len(list) != want || host.Unreadable() != 1 {
			t.Errorf("%v, %v unreadable", list, host.Unreadable())
		}
	}
	if own, err := stranger.List(""); err != nil || len(own) != 1 {
		t.Errorf("a host forgets its own snapshot: %v %v", own, err)
	}
	r, err := b.Find(t.Context(), "snap_a")
	if err != nil {
		t.Fatal(err)
	}
	layers, err := filepath.Glob(filepath.Join(s.Dir, "layers", "*"))
	if err != nil || len(layers) != 2 {
		t.Fatal(layers, err)
	}
	for _, path := range layers {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text[len(text)/2] ^= 1
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Fetch(t.Context(), "key_1", r.Layers, func(string) {}); !errors.Is(err, bucket.ErrDamaged) || len(b.files.layers) != 0 {
		t.Errorf("a changed layer: %v, %d layers", err, len(b.files.layers))
	}
}

// TestStoreAway: without the store no snapshot is taken or deleted, and the snapshots of this host still make boxes. A snapshot whose upload was
// interrupted by the end of the gateway is uploaded by the next one.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newAgeKey(t)
	a := newSharingHost(t, s, key)
	r, err := a.Take(t.Context(), store.Snapshot{ID: "snap_a", Box: "box1"}, free)
	if err != nil || r.State != Ready {
		t.Fatalf("%+v, %v", r, err)
	}
	late := store.Snapshot{ID: "snap_late", Box: "box1", State: Creating, Size: 9000, Layers: []string{"snap_late"}}
	if _, err := a.files.Capture(t.Context(), "box1", "snap_late", nil); err != nil {
		t.Fatal(err)
	}
	if err := a.db.Snapshots.Add(late); err != nil {
		t.Fatal(err)
	}
	s.Refuse(true)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := a.Delete(short, []string{"snap_a"}); !errors.Is(err, ErrStore) {
		t.Errorf("deleting: %v", err)
	}
	a.sharing.listed = time.Time{}
	if err := a.Refresh(t.Context()); !errors.Is(err, ErrStore) || a.StoreUp() != 0 {
		t.Errorf("listing: %v", err)
	}
	if r, err := a.Find(t.Context(), "snap_a"); err != nil || a.Fetch(t.Context(), "", r.Layers, func(string) {}) != nil {
		t.Errorf("a snapshot of this host: %v", err)
	}
	if _, err := a.Find(t.Context(), "snap_b"); !errors.Is(err, ErrStore) {
		t.Errorf("a snapshot that may exist elsewhere: %v", err)
	}
	s.Refuse(false)
	if err := a.Recover(); err != nil {
		t.Fatal(err)
	}
	if u := a.find("snap_late"); u != nil {
		<-u.ended
	}
	if r, err := a.Get("snap_late"); err != nil || r.State != Ready || r.Shared == "" {
		t.Errorf("the interrupted upload: %s %s %v", r.State, r.Error, err)
	}
	if list := newSharingHost(t, s, key).relist(t); len(list) != 2 {
		t.Errorf("the other host sees %v", fmt.Sprint(list))
	}
}

// TestDeletedBeforeItsUploadWasKnown: a snapshot whose record reached the store, but whose host did not learn it, is gone from the store once
// it is deleted: whether the gateway ended in between, or the answer was lost and the snapshot counts as failed.
func TestDeletedBeforeItsUploadWasKnown(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newAgeKey(t)
	a, b := newSharingHost(t, s, key), newSharingHost(t, s, key)
	for _, id := range []string{"snap_ended", "snap_lost"} {
		r := store.Snapshot{ID: id, Box: "box1", State: Creating, Size: 9000, Layers: []string{id}}
		if _, err := a.files.Capture(t.Context(), r.Box, id, nil); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.db.Snapshots.Add(r), a.publish(t.Context(), r)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.db.Snapshots.Change("snap_lost", failed(io.ErrUnexpectedEOF)); err != nil {
		t.Fatal(err)
	}
	if list := b.relist(t); len(list) != 2 {
		t.Fatalf("before: %v", list)
	}
	if err := a.Delete(t.Context(), []string{"snap_ended", "snap_lost"}); err != nil {
		t.Fatal(err)
	}
	for host, list := range map[string][]store.Snapshot{"this": a.relist(t), "another": b.relist(t)} {
		if len(list) > 0 {
			t.Errorf("%s host has deleted snapshots: %v", host, list)
		}
	}
}

// TestStoreThatHangs: calls wait for a silent store for a moment, once, and then have the snapshots of this host and the last ones of the others. When
// the store answers again, it is used.
func TestStoreThatHangs(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newAgeKey(t)
	a, b := newSharingHost(t, s, key), newSharingHost(t, s, key)
	if r, err := a.Take(t.Context(), store.Snapshot{ID: "snap_a", Box: "box1"}, free); err != nil || r.State != Ready {
		t.Fatalf("%+v, %v", r, err)
	}
	b.relist(t)
	b.sharing.wait, b.sharing.listed = 100*time.Millisecond, time.Time{}
	release := s.Hang(t)
	began := time.Now()
	for range 20 {
		if err := b.Refresh(t.Context()); !errors.Is(err, ErrStore) || !b.Away() {
			t.Fatalf("listing: %v", err)
		}
	}
	if took := time.Since(began); took > 20*time.Second { // the store is silent for a minute at least
		t.Errorf("20 calls waited %v for a store that hangs", took)
	}
	if list, err := b.Elsewhere(""); err != nil || len(list) != 1 {
		t.Errorf("the last list: %v, %v", list, err)
	}
	b.sharing.mu.Lock()
	running := b.sharing.running
	b.sharing.mu.Unlock()
	if running == nil {
		t.Fatal("the listing does not go on")
	}
	release()
	<-running.done
	if err := b.Refresh(t.Context()); err != nil || b.Away() {
		t.Errorf("a store that answers again: %v", err)
	}
}

// TestAdminKeysHaveTheOperatorsShare: uploads of other keys do not keep an admin key from transfers.
func TestAdminKeysHaveTheOperatorsShare(t *testing.T) {
	t.Parallel()
	h := newSharingHost(t, buckettest.Start(t), newAgeKey(t))
	for i := range concurrentTransfers - 1 {
		if _, err := h.sharing.take(t.Context(), &h.sharing.uploads, fmt.Sprint("key_", i)); err != nil {
			t.Fatal(err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.sharing.uploads.take(ended, "key_9"); err == nil {
		t.Error("keys have all places")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := h.sharing.take(ctx, &h.sharing.uploads, "key_admin"); err != nil {
		t.Errorf("an admin key: %v", err)
	}
}
