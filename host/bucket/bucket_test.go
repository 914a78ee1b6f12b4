package bucket

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"go.uber.org/zap"

	"boxgate/host/bucket/buckettest"
	"boxgate/policy/name"
	"boxgate/store"
)

func secret(text string) func(context.Context) (name.Secret, error) {
	return func(context.Context) (name.Secret, error) { return name.NewSecret(text), nil }
}

func newKey(t testing.TB) string {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// open returns the bucket as a host with a key sees it.
func open(t testing.TB, s *buckettest.Server, key string) *Bucket {
	t.Helper()
	b, err := New(Config{Bucket: buckettest.Bucket, Prefix: "hosts/a", Endpoint: s.Endpoint, AccessKey: buckettest.AccessKey, Secret: secret(buckettest.SecretKey), Key: secret(key), Roots: s.Roots(), Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	b.wait, b.partSize = time.Millisecond, 5<<20
	return b
}

// layerOf returns the writer of a layer with random content.
func layerOf(seed uint64, size int) ([]byte, func(context.Context, io.Writer) error) {
	content := make([]byte, size)
	r := rand.New(rand.NewPCG(seed, seed))
	for i := range content {
		content[i] = byte(r.Uint32())
	}
	return content, func(_ context.Context, w io.Writer) error { _, err := w.Write(content); return err }
}

// stored uploads a layer.
func stored(t testing.TB, b *Bucket, layer string, write func(context.Context, io.Writer) error) Layer {
	t.Helper()
	digest, packed, err := b.Upload(t.Context(), write)
	if err != nil {
		t.Fatal(err)
	}
	return Layer{Name: layer, Digest: digest, Packed: packed, Size: 1}
}

func fetched(t testing.TB, b *Bucket, l Layer) ([]byte, error) {
	t.Helper()
	r, err := b.Download(t.Context(), l)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// published publishes a snapshot with layers.
func published(t testing.TB, b *Bucket, id string, layers ...Layer) Manifest {
	t.Helper()
	m := Manifest{Snapshot: store.Snapshot{ID: id, Box: "box1", CreatedBy: "key_a", TakenBy: "key_a", State: "ready", Env: map[string]string{"TOKEN": "canary-in-the-environment"}}, Layers: layers}
	for _, l := range layers {
		m.Snapshot.Layers = append(m.Snapshot.Layers, l.Name)
	}
	if err := b.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	return m
}

func ids(t testing.TB, b *Bucket) (out []string, unreadable int) {
	t.Helper()
	list, unreadable, err := b.Manifests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		out = append(out, m.Snapshot.ID)
	}
	return out, unreadable
}

// files returns the objects below the prefix, by name.
func files(t testing.TB, s *buckettest.Server) map[string]string {
	t.Helper()
	out := map[string]string{}
	_ = filepath.WalkDir(filepath.Join(s.Dir, "hosts", "a"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, _ := filepath.Rel(filepath.Join(s.Dir, "hosts", "a"), path)
			out[rel] = path
		}
		return nil
	})
	return out
}

// TestSnapshotsTravel: a host reads the snapshots of another one with the same key, and the bucket has no readable content.
func TestSnapshotsTravel(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newKey(t)
	a, b := open(t, s, key), open(t, s, key)
	secretText := []byte("canary-in-a-file-of-the-box ")
	small, err := bytes.Repeat(secretText, 1000), error(nil)
	l := stored(t, a, "snap_1", func(_ context.Context, w io.Writer) error { _, err := w.Write(small); return err })
	large, write := layerOf(1, 12<<20)
	l2 := stored(t, a, "snap_2", write)
	published(t, a, "snap_2", l, l2)
	if got, bad := ids(t, b); len(got) != 1 || got[0] != "snap_2" || bad != 0 {
		t.Fatalf("the other host sees %v, %d unreadable", got, bad)
	}
	for want, l := range map[string]Layer{string(small): l, string(large): l2} {
		if got, gerr := fetched(t, b, l); gerr != nil || string(got) != want {
			t.Errorf("%d bytes, want %d: %v", len(got), len(want), gerr)
		}
	}
	for object, path := range files(t, s) {
		text, rerr := os.ReadFile(path)
		if err = rerr; err != nil || bytes.Contains(text, []byte("canary")) || bytes.Contains(text, []byte("key_a")) {
			t.Errorf("%s is readable: %v", object, err)
		}
	}
	if err := a.Remove(t.Context(), "snap_2"); err != nil {
		t.Fatal(err)
	}
	if got, _ := ids(t, b); len(got) != 0 {
		t.Errorf("a removed snapshot is listed: %v", got)
	}
	if err := a.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestUploadContinues: an upload whose server went away sends only the missing parts, also in another process.
func TestUploadContinues(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newKey(t)
	content, write := layerOf(2, 24<<20)
	first, cancel := context.WithCancel(t.Context())
	b := open(t, s, key)
	s.CutAfter(17 << 20)
	stop := func(ctx context.Context, w io.Writer) error { // the process ends at its second attempt
		err := write(ctx, w)
		if err != nil {
			cancel()
		}
		return err
	}
	if _, _, err := b.Upload(first, stop); err == nil {
		t.Fatal("the upload succeeded without a server")
	}
	before := s.Sent.Load()
	again := open(t, s, key)
	l := stored(t, again, "snap_1", write)
	if sent := s.Sent.Load() - before; sent > 16<<20 {
		t.Errorf("the second upload sent %d bytes of %d", sent, len(content))
	}
	if got, err := fetched(t, again, l); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes: %v", len(got), err)
	}
}

// TestTransfersSurviveCuts: connections that end in the middle delay an upload and a download, which repeat little.
func TestTransfersSurviveCuts(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newKey(t)
	content, write := layerOf(3, 24<<20)
	b := open(t, s, key)
	s.CutAfter(12 << 20)
	l := stored(t, b, "snap_1", write)
	before := s.Received.Load()
	s.CutAfter(20 << 20)
	if got, err := fetched(t, b, l); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes: %v", len(got), err)
	}
	if received := s.Received.Load() - before; received > 26<<20 {
		t.Errorf("the download received %d bytes for %d", received, len(content))
	}
}

// TestChangedObjectsAreRefused: whoever writes to the bucket cannot give a host other content: a cut, changed, exchanged or missing layer, or a
// manifest that was changed, moved or written with another key.
func TestChangedObjectsAreRefused(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newKey(t)
	b := open(t, s, key)
	_, write := layerOf(4, 300_000)
	l := stored(t, b, "snap_1", write)
	_, write = layerOf(5, 300_000)
	other := stored(t, b, "snap_2", write)
	published(t, b, "snap_1", l)
	published(t, b, "snap_2", other)
	published(t, open(t, s, newKey(t)), "snap_3", l)
	var layers []string
	for object, path := range files(t, s) {
		if strings.HasPrefix(object, layersDir) {
			layers = append(layers, path)
		}
	}
	path := filepath.Join(s.Dir, b.prefix+layersDir+mustName(t, b, l))
	whole, err := os.ReadFile(path)
	if err != nil || len(layers) != 2 {
		t.Fatal(err, layers)
	}
	swapped, err := os.ReadFile(filepath.Join(s.Dir, b.prefix+layersDir+mustName(t, b, other)))
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[200_000] ^= 1
	longer := append(bytes.Clone(whole), 0)
	chunk := chunkSize + tagSize
	exchanged := append(append(bytes.Clone(whole[chunk:2*chunk]), whole[:chunk]...), whole[2*chunk:]...)
	for name, content := range map[string][]byte{"cut": whole[:len(whole)-100], "cut at a chunk": whole[:chunk], "flipped": flipped, "longer": longer, "other layer": swapped[:len(whole)], "exchanged chunks": exchanged, "empty": {}} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := fetched(t, b, l); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := fetched(t, b, l); !errors.Is(err, ErrDamaged) {
		t.Errorf("missing: %v", err)
	}
	manifests := filepath.Join(s.Dir, b.prefix+manifestsDir)
	moved, err := os.ReadFile(filepath.Join(manifests, "snap_1"))
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(moved)
	changed[len(changed)-1] ^= 1
	for id, content := range map[string][]byte{"snap_1": changed, "snap_2": moved, "snap_4": moved, "snap_5": nil, "snap_6": []byte("{}")} {
		if err := os.WriteFile(filepath.Join(manifests, id), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, bad := ids(t, open(t, s, key)); len(got) != 0 || bad != 6 {
		t.Errorf("manifests of another writer are accepted: %v, %d unreadable", got, bad)
	}
	if _, err := b.Sweep(t.Context()); !errors.Is(err, ErrDamaged) {
		t.Errorf("layers are removed although manifests cannot be read: %v", err)
	}
}

func mustName(t testing.TB, b *Bucket, l Layer) string {
	t.Helper()
	sum, err := l.sum()
	if err != nil {
		t.Fatal(err)
	}
	k, err := b.derived(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return k.layerName(sum)
}

// TestHostsUploadSameLayer: hosts that upload the same layer at the same time store it once, and both succeed.
func TestHostsUploadSameLayer(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newKey(t)
	content, write := layerOf(6, 18<<20)
	var done sync.WaitGroup
	for range 3 {
		b := open(t, s, key)
		done.Go(func() {
			l := Layer{Name: "snap_1", Size: 1}
			var err error
			if l.Digest, l.Packed, err = b.Upload(context.Background(), write); err != nil {
				t.Error(err)
				return
			}
			r, err := b.Download(context.Background(), l)
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Close()
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes: %v", len(got), err)
			}
		})
	}
	done.Wait()
	if list := files(t, s); len(list) != 1 {
		t.Errorf("the bucket has %v", list)
	}
}

// TestStoredLayerIsNotSentAgain: a layer of a snapshot is not uploaded again; one without a snapshot is, as it may be about to be removed.
func TestStoredLayerIsNotSentAgain(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newKey(t)
	b := open(t, s, key)
	_, write := layerOf(7, 4<<20)
	l := stored(t, b, "snap_1", write)
	for _, step := range []struct {
		published bool
		sends     bool
	}{{false, true}, {true, false}} {
		if step.published {
			published(t, b, "snap_1", l)
		}
		before := s.Sent.Load()
		stored(t, open(t, s, key), "snap_1", write)
		if sent := s.Sent.Load() - before; sent > 3<<20 != step.sends {
			t.Errorf("published %t: %d bytes sent", step.published, sent)
		}
	}
}

// TestSweepRemovesUnneededLayers: after the grace time, and not before, layers are removed that no snapshot needs.
func TestSweepRemovesUnneededLayers(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newKey(t)
	b := open(t, s, key)
	_, write := layerOf(8, 100_000)
	kept := stored(t, b, "snap_1", write)
	content, write := layerOf(9, 100_000)
	gone := stored(t, b, "snap_2", write)
	published(t, b, "snap_1", kept)
	published(t, b, "snap_2", kept, gone)
	sweep := func(want int) {
		t.Helper()
		if n, err := b.Sweep(t.Context()); err != nil || n != want {
			t.Errorf("%d layers removed, want %d: %v", n, want, err)
		}
	}
	sweep(0)
	if err := b.Remove(t.Context(), "snap_2"); err != nil {
		t.Fatal(err)
	}
	sweep(0) // marks
	sweep(0) // within the grace time: a host may be downloading it
	if got, err := fetched(t, b, gone); err != nil || !bytes.Equal(got, content) {
		t.Errorf("a layer within the grace time: %v", err)
	}
	b.grace = 0
	sweep(1)
	if _, err := fetched(t, b, gone); !errors.Is(err, ErrDamaged) {
		t.Errorf("the unneeded layer: %v", err)
	}
	if _, err := fetched(t, b, kept); err != nil {
		t.Errorf("the layer of the other snapshot: %v", err)
	}
	sweep(0)
}

// TestSweepOfACrowdedStore: whoever fills the bucket with objects takes no memory of the gateway without end.
func TestSweepOfACrowdedStore(t *testing.T) {
	t.Parallel()
	s := buckettest.Start(t)
	b := open(t, s, newKey(t))
	b.maxStored = 2
	k, err := b.derived(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.maxStored + 1 {
		if err := b.put(t.Context(), fmt.Sprint(b.prefix, layersDir, k.ownLayers(), i), []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Sweep(t.Context()); (err == nil) != (i < b.maxStored) {
			t.Errorf("%d objects: %v", i+1, err)
		}
	}
}

// TestSweepBesideUnreadableSnapshots: records that no host with the key can read do not keep unneeded layers in the store, and layers of another
// key stay. While a record has a later version, or none can be read, all stay.
func TestSweepBesideUnreadableSnapshots(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newKey(t)
	b, stranger := open(t, s, key), open(t, s, newKey(t))
	write := func(object, content string) {
		t.Helper()
		if err := b.put(t.Context(), b.prefix+manifestsDir+object, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	_, content := layerOf(11, 100_000)
	theirs := stored(t, stranger, "snap_s", content)
	published(t, stranger, "snap_s", theirs)
	kept := stored(t, b, "snap_1", content)
	_, content = layerOf(12, 100_000)
	gone := stored(t, b, "snap_2", content)
	b.grace = 0
	sweep := func(want int, refused bool) {
		t.Helper()
		if n, err := b.Sweep(t.Context()); n != want || (err != nil) != refused {
			t.Errorf("%d layers removed, want %d: %v", n, want, err)
		}
	}
	sweep(0, true) // no record can be read
	published(t, b, "snap_1", kept)
	write("snap_9", "boxgate-snapshot-2 of a later program")
	sweep(0, true)
	if _, err := fetched(t, b, gone); err != nil {
		t.Errorf("a layer that a later program may need: %v", err)
	}
	write("snap_9", "nothing that a host wrote")
	write("also nothing", "")
	sweep(1, false)
	for what, l := range map[*Bucket]Layer{b: kept, stranger: theirs} {
		if _, err := fetched(t, what, l); err != nil {
			t.Errorf("a needed layer: %v", err)
		}
	}
	if _, err := fetched(t, b, gone); !errors.Is(err, ErrDamaged) {
		t.Errorf("the unneeded layer: %v", err)
	}
}

// TestStoreRefusals: wrong credentials, an unknown bucket, a server that is away and one with another certificate are reported, without
// delay where another attempt cannot help.
func TestStoreRefusals(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newKey(t)
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"secret":      {func(c *Config) { c.Secret = secret("wrong") }, "refuses the credentials: SignatureDoesNotMatch"},
		"access key":  {func(c *Config) { c.AccessKey = "unknown" }, "an object cannot be written"},
		"bucket":      {func(c *Config) { c.Bucket = "another" }, "NoSuchBucket"},
		"certificate": {func(c *Config) { c.Roots = x509.NewCertPool() }, "does not answer"},
		"key":         {func(c *Config) { c.Key = secret("AGE-SECRET-KEY-1WRONG") }, "not an age identity"},
		"two keys":    {func(c *Config) { c.Key = secret(newKey(t) + "\n" + newKey(t)) }, "several lines"},
	} {
		config := Config{Bucket: buckettest.Bucket, Endpoint: s.Endpoint, AccessKey: buckettest.AccessKey, Secret: secret(buckettest.SecretKey), Key: secret(key), Roots: s.Roots(), Log: zap.NewNop()}
		c.change(&config)
		b, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		b.wait = time.Millisecond
		if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "WRONG") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		_, write := layerOf(10, 1000)
		if _, _, err := b.Upload(t.Context(), write); err == nil {
			t.Errorf("%s: the upload succeeded", name)
		}
	}
	b := open(t, s, key)
	s.Refuse(true)
	if _, _, err := b.Manifests(t.Context()); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("a server that is away: %v", err)
	}
	s.Refuse(false)
	if _, _, err := b.Manifests(t.Context()); err != nil {
		t.Errorf("a server that is back: %v", err)
	}
}
