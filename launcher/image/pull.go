package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"
)

// Parameters of layer downloads.
const (
	parallelLayers = 3
	layerAttempts  = 4
	stallTimeout   = time.Minute // without a byte, before the download is restarted
	firstRetryWait = time.Second // doubled each time
	answerTimeout  = 15 * time.Second
)

var (
	errStalled  = errors.New("the registry has stopped sending")
	errNoAnswer = errors.New("the registry does not answer")
)

// pull is the download of one image. Layers are kept as files, so that an interrupted pull later downloads only the missing
// ones.
type pull struct {
	ref    name.Reference
	puller *remote.Puller
	blobs  string // directory of the layers until the image is unpacked
	shown  *meter
	stall  time.Duration
	wait   time.Duration
}

// newPuller uses the credentials of the user's docker configuration, if any.
func (s Store) newPuller() (*remote.Puller, error) {
	options := []remote.Option{remote.WithPlatform(platform), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if s.impatient { // in tests
		options = append(options, remote.WithRetryBackoff(remote.Backoff{Duration: firstRetryWait / 100, Factor: 3, Jitter: 0.1, Steps: 3}))
	}
	return remote.NewPuller(options...)
}

// pullReference downloads an image from its registry and unpacks it. Every layer must have the digest in the manifest.
func (s Store) pullReference(ctx context.Context, src imageSource, rootfs string, progress func(string)) ([]string, error) {
	ref, err := name.ParseReference(src.text)
	if err != nil {
		return nil, err
	}
	puller, err := s.newPuller()
	if err != nil {
		return nil, err
	}
	progress("pulling " + ref.Name())
	img, err := imageAt(ctx, puller, ref)
	if err != nil {
		return nil, explainPull(ref, err)
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, explainPull(ref, err)
	}
	p := &pull{ref: ref, puller: puller, blobs: s.blobs(src.key), shown: &meter{report: progress}, stall: stallTimeout, wait: firstRetryWait}
	if s.impatient { // in tests
		p.stall, p.wait = stallTimeout/60, firstRetryWait/100
	}
	layers, err := p.download(ctx, manifest)
	if err != nil {
		return nil, explainPull(ref, err)
	}
	env, err := unpackImage(ctx, img, layers, rootfs, progress)
	if ctx.Err() == nil { // after an interruption, the next pull continues with these files
		err = errors.Join(err, os.RemoveAll(p.blobs))
	}
	return env, err
}

func imageAt(ctx context.Context, puller *remote.Puller, ref name.Reference) (v1.Image, error) {
	found, err := puller.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	return found.Image()
}

// download fetches the missing layers.
func (p *pull) download(ctx context.Context, manifest *v1.Manifest) ([]v1.Layer, error) {
	if err := os.MkdirAll(p.blobs, 0o700); err != nil {
		return nil, err
	}
	layers := make([]v1.Layer, len(manifest.Layers))
	for _, d := range manifest.Layers {
		if d.Size < 0 || d.Size > maxImageBytes-p.shown.total {
			return nil, errors.New("the image is too large")
		}
		p.shown.total += d.Size
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelLayers)
	for i, d := range manifest.Layers {
		group.Go(func() (err error) {
			layers[i], err = p.layer(ctx, d)
			if err != nil {
				return fmt.Errorf("layer %d of %d: %w", i+1, len(layers), err)
			}
			return nil
		})
	}
	return layers, group.Wait()
}

// layer returns one layer as a file, and downloads it if necessary.
func (p *pull) layer(ctx context.Context, d v1.Descriptor) (v1.Layer, error) {
	file := filepath.Join(p.blobs, d.Digest.Algorithm+"-"+d.Digest.Hex)
	stored := partial.CompressedLayer(&storedLayer{file: file, Descriptor: d})
	if fi, err := os.Stat(file); err == nil && fi.Size() == d.Size { // its content is verified when it is unpacked
		p.shown.add(d.Size)
		return partial.CompressedToLayer(stored)
	}
	for attempt, wait := 1, p.wait; ; attempt, wait = attempt+1, 2*wait {
		err := p.fetch(ctx, d, file)
		switch {
		case err == nil:
			return partial.CompressedToLayer(stored)
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case attempt == layerAttempts || isRefusal(err):
			return nil, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// fetch downloads one layer, and renames it to its final name once it is complete and has the right digest.
func (p *pull) fetch(ctx context.Context, d v1.Descriptor, file string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(p.stall, func() { cancel(errStalled) })
	defer stalled.Stop()
	layer, err := p.puller.Layer(ctx, p.ref.Context().Digest(d.Digest.String()))
	if err != nil {
		return stalledError(ctx, err)
	}
	body, err := layer.Compressed() // verifies the digest at the end
	if err != nil {
		return stalledError(ctx, err)
	}
	defer body.Close()
	out, err := os.CreateTemp(p.blobs, ".partial-*")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	got := &counted{meter: p.shown, alive: func() { stalled.Reset(p.stall) }}
	if _, err = io.Copy(io.MultiWriter(out, got), io.LimitReader(body, d.Size)); err == nil {
		err = atEnd(body)
	}
	if err != nil {
		p.shown.add(-got.n)
		return stalledError(ctx, err)
	}
	return os.Rename(out.Name(), file)
}

// atEnd returns an error unless r is at EOF. Reading EOF also verifies the digest.
func atEnd(r io.Reader) error {
	n, err := io.ReadFull(r, make([]byte, 1))
	switch {
	case n > 0:
		return errors.New("the layer is larger than its manifest says")
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// stalledError returns errStalled if that is why the download was cancelled, and err otherwise.
func stalledError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

// isRefusal reports whether a retry would get the same answer.
func isRefusal(err error) bool {
	var answer *transport.Error
	return errors.As(err, &answer) && answer.StatusCode/100 == 4 && answer.StatusCode != http.StatusTooManyRequests
}

// explainPull adds a remedy to the error of a pull.
func explainPull(ref name.Reference, err error) error {
	host := ref.Context().RegistryStr()
	var answer *transport.Error
	if errors.As(err, &answer) {
		switch answer.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return fmt.Errorf("%s does not exist or needs credentials: run docker login %s as root, or set DOCKER_CONFIG for the gateway to a directory with a config.json (%w)", ref, host, err)
		case http.StatusNotFound:
			return fmt.Errorf("%s has no image %s: correct launcher.images (%w)", host, ref, err)
		case http.StatusTooManyRequests:
			return fmt.Errorf("%s limits pulls from this host: wait, log in with docker login %s, or name a mirror in launcher.images (%w)", host, host, err)
		}
	}
	if errors.As(err, new(net.Error)) || errors.Is(err, errStalled) || errors.Is(err, errNoAnswer) {
		return fmt.Errorf("%s cannot be pulled: let this host reach %s, or set launcher.images to a mirror or to a file that docker save has written on another host (%w)", ref, host, err)
	}
	return fmt.Errorf("%s cannot be pulled: %w", ref, err)
}

// storedLayer is a downloaded layer.
type storedLayer struct {
	v1.Descriptor
	file string
}

// Digest implements [partial.CompressedLayer].
func (l *storedLayer) Digest() (v1.Hash, error) { return l.Descriptor.Digest, nil }

// Size implements [partial.CompressedLayer].
func (l *storedLayer) Size() (int64, error) { return l.Descriptor.Size, nil }

// MediaType implements [partial.CompressedLayer].
func (l *storedLayer) MediaType() (types.MediaType, error) { return l.Descriptor.MediaType, nil }

// Compressed implements [partial.CompressedLayer].
func (l *storedLayer) Compressed() (io.ReadCloser, error) { return os.Open(l.file) }

// meter reports the progress of a download, with one line per 5 percent.
type meter struct {
	report func(string)
	total  int64

	mu    sync.Mutex
	done  int64 // guarded by mu
	lines int64 // guarded by mu; 5 percent steps reported
}

func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	if now := m.done * 20 / max(m.total, 1); now > m.lines {
		m.lines = now
		m.report(fmt.Sprintf("pulled %s of %s", megabytes(m.done), megabytes(m.total)))
	}
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// counted counts written bytes on a meter.
type counted struct {
	meter *meter
	n     int64
	alive func() // called for each piece
}

func (c *counted) Write(p []byte) (int, error) {
	c.alive()
	c.n += int64(len(p))
	c.meter.add(int64(len(p)))
	return len(p), nil
}
