package bucket

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // the digest of parts in S3
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/minio/minio-go/v7"
)

func newReader(content []byte) io.Reader { return bytes.NewReader(content) }

func md5Base64(content []byte) string {
	sum := md5.Sum(content) //nolint:gosec // against errors of transfer
	return base64.StdEncoding.EncodeToString(sum[:])
}

func randomName() string { return strings.ToLower(rand.Text()) }

// errLayerChanged means that a layer was written twice and gave different bytes.
var errLayerChanged = errors.New("the files of the layer changed during the upload")

// maxWindow bounds the memory of the decoder: the encoder's window is as large.
const maxWindow = 8 << 20

// Upload stores a layer, unless the store has it. write writes its archive, and is called several times; it must always write the same
// bytes. Upload continues an earlier upload that was interrupted, by this process or another one. It returns the digest of the layer's
// content, and its size.
func (b *Bucket) Upload(ctx context.Context, write func(ctx context.Context, w io.Writer) error) (digest string, size int64, err error) {
	k, err := b.derived(ctx)
	if err != nil {
		return "", 0, err
	}
	sum, size, err := pack(ctx, write, io.Discard)
	if err != nil {
		return "", 0, err
	}
	if sealedSize(size) > maxParts*b.partSize {
		return "", 0, fmt.Errorf("the layer has %d bytes, more than an object of the snapshot store may have", size)
	}
	u := &upload{Bucket: b, object: b.prefix + layersDir + k.layerName(sum), size: sealedSize(size)}
	err = b.retry(ctx, func() error {
		there, err := u.isStored(ctx)
		if err != nil || there {
			return err
		}
		return u.send(ctx, func(w io.Writer) error {
			s := newSealer(k.layerKey(sum), w)
			again, _, err := pack(ctx, write, s)
			if err == nil && !bytes.Equal(again, sum) {
				err = errLayerChanged
			}
			if err != nil {
				return err
			}
			return s.Close()
		})
	})
	return hex.EncodeToString(sum), size, explain(err)
}

// pack compresses an archive, and returns the digest and size of the result.
func pack(ctx context.Context, write func(ctx context.Context, w io.Writer) error, to io.Writer) (sum []byte, size int64, err error) {
	h := &counted{Hash: sha256.New()}
	z, err := zstd.NewWriter(io.MultiWriter(h, to), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(maxWindow), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, 0, err
	}
	err = write(ctx, z)
	if cerr := z.Close(); err == nil {
		err = cerr
	}
	return h.Sum(nil), h.n, err
}

// counted counts the bytes that are hashed.
type counted struct {
	hash.Hash
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.Hash.Write(p)
}

// upload is the upload of one layer.
type upload struct {
	*Bucket
	object string
	size   int64
	id     string // of the upload in parts
	sent   map[int]minio.ObjectPart
	parts  []minio.CompletePart
}

// isStored reports whether the store has the object, and a snapshot needs it, so that no host is about to remove it.
func (u *upload) isStored(ctx context.Context) (bool, error) {
	if _, _, err := u.Manifests(ctx); err != nil {
		return false, err
	}
	if !u.needed()[u.object] {
		return false, nil
	}
	return u.exists(ctx)
}

func (u *upload) exists(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := u.s3.StatObject(ctx, u.name, u.object, minio.StatObjectOptions{})
	if isMissing(err) {
		return false, nil
	}
	return err == nil && info.Size == u.size, err
}

// send sends the object: a small one in one request, a large one in parts.
func (u *upload) send(ctx context.Context, write func(io.Writer) error) error {
	p := &parts{ctx: ctx, size: int(u.partSize)}
	if u.size <= u.partSize {
		p.part = func(_ int, content []byte) error { return u.put(ctx, u.object, content) }
		return errors.Join(write(p), p.flush())
	}
	if err := u.begin(ctx); err != nil {
		return err
	}
	u.parts = nil
	p.part = func(number int, content []byte) error { return u.sendPart(ctx, number, content) }
	err := write(p)
	if err == nil {
		err = p.flush()
	}
	if err != nil {
		return err
	}
	cctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	_, err = u.s3.CompleteMultipartUpload(cctx, u.name, u.object, u.id, u.parts, minio.PutObjectOptions{})
	if err != nil { // another host, or an earlier attempt whose answer was lost, may have completed it
		if there, _ := u.exists(ctx); there {
			return nil
		}
	}
	return err
}

// begin finds an interrupted upload of the same object and its parts, or begins one.
func (u *upload) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	u.id, u.sent = "", map[int]minio.ObjectPart{}
	list, err := u.s3.ListMultipartUploads(ctx, u.name, u.object, "", "", "", 10)
	if err != nil {
		return err
	}
	for _, found := range list.Uploads {
		if found.Key == u.object {
			u.id = found.UploadID
		}
	}
	if u.id == "" {
		u.id, err = u.s3.NewMultipartUpload(ctx, u.name, u.object, minio.PutObjectOptions{ContentType: contentType})
		return err
	}
	for marker := 0; ; {
		page, err := u.s3.ListObjectParts(ctx, u.name, u.object, u.id, marker, 1000)
		if err != nil {
			return err
		}
		for _, part := range page.ObjectParts {
			u.sent[part.PartNumber] = part
		}
		if len(u.sent) > maxParts {
			return errEndless
		}
		if !page.IsTruncated || page.NextPartNumberMarker <= marker {
			return nil
		}
		marker = page.NextPartNumberMarker
	}
}

// sendPart sends a part, unless the store has it.
func (u *upload) sendPart(ctx context.Context, number int, content []byte) error {
	sum := md5.Sum(content) //nolint:gosec // compared with the server's
	tag := hex.EncodeToString(sum[:])
	if sent := u.sent[number]; sent.Size == int64(len(content)) && strings.Trim(sent.ETag, `"`) == tag {
		u.parts = append(u.parts, minio.CompletePart{PartNumber: number, ETag: sent.ETag})
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	part, err := u.s3.PutObjectPart(ctx, u.name, u.object, u.id, number, bytes.NewReader(content), int64(len(content)), minio.PutObjectPartOptions{Md5Base64: md5Base64(content)})
	if err != nil {
		return err
	}
	u.parts = append(u.parts, minio.CompletePart{PartNumber: number, ETag: part.ETag})
	return nil
}

// parts cuts a stream into parts of one size.
type parts struct {
	ctx    context.Context
	size   int
	part   func(number int, content []byte) error
	number int
	buf    []byte
}

func (p *parts) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		if p.ctx.Err() != nil {
			return n, context.Cause(p.ctx)
		}
		if p.buf == nil {
			p.buf = make([]byte, 0, p.size)
		}
		if len(p.buf) == p.size {
			if err := p.flush(); err != nil {
				return n, err
			}
		}
		part := min(len(b), p.size-len(p.buf))
		p.buf, b, n = append(p.buf, b[:part]...), b[part:], n+part
	}
	return n, nil
}

func (p *parts) flush() error {
	p.number++
	err := p.part(p.number, p.buf)
	p.buf = p.buf[:0]
	return err
}

// Download returns the archive of a layer. After an interruption it continues where it was. Each chunk is verified before it is returned, and
// the digest of the whole at the end: only then does Read return [io.EOF].
func (b *Bucket) Download(ctx context.Context, l Layer) (io.ReadCloser, error) {
	k, err := b.derived(ctx)
	if err != nil {
		return nil, err
	}
	sum, err := l.sum()
	if err != nil {
		return nil, err
	}
	from := &resumed{Bucket: b, ctx: ctx, object: b.prefix + layersDir + k.layerName(sum), size: sealedSize(l.Packed)}
	h := sha256.New()
	z, err := zstd.NewReader(io.TeeReader(newOpener(k.layerKey(sum), from), h), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	return &download{z, from, h, sum}, nil
}

// download is a layer that is being read.
type download struct {
	*zstd.Decoder
	from *resumed
	hash hash.Hash
	want []byte
}

// Read implements [io.Reader].
func (d *download) Read(p []byte) (int, error) {
	n, err := d.Decoder.Read(p)
	if errors.Is(err, io.EOF) && !bytes.Equal(d.hash.Sum(nil), d.want) {
		err = fmt.Errorf("%w: a layer has another digest", ErrDamaged)
	} else if err != nil && !errors.Is(err, io.EOF) {
		err = explain(err)
	}
	return n, err
}

// Close implements [io.Closer].
func (d *download) Close() error {
	d.Decoder.Close()
	d.from.close()
	return nil
}

// resumed reads an object, and continues after an interruption with a new request.
type resumed struct {
	*Bucket
	ctx    context.Context
	object string
	size   int64 // that it must have
	at     int64
	body   io.ReadCloser
	cancel context.CancelFunc
	idle   *time.Timer
	failed int           // attempts without a byte
	waited time.Duration // for the server, see minRate
}

// errDrip ends a download that would take too long.
var errDrip = fmt.Errorf("the snapshot store sends less than %d KiB a second", minRate>>10)

// Read implements [io.Reader].
func (r *resumed) Read(p []byte) (int, error) {
	for {
		if r.at == r.size {
			return 0, io.EOF
		}
		began := time.Now()
		n, err := r.read(p)
		r.waited += time.Since(began)
		if n > 0 {
			r.at, r.failed = r.at+int64(n), 0
		}
		if r.waited > 2*r.stall+time.Duration(float64(r.at)/minRate*float64(time.Second)) {
			r.close()
			return n, errDrip
		}
		if n > 0 {
			return n, nil
		}
		r.close()
		if r.failed++; final(err) || r.failed == attempts || r.ctx.Err() != nil {
			return 0, err
		}
		pause := r.wait << (r.failed - 1)
		r.waited += pause
		select {
		case <-time.After(pause):
		case <-r.ctx.Done():
			return 0, context.Cause(r.ctx)
		}
	}
}

// read reads from the current request, or begins one.
func (r *resumed) read(p []byte) (int, error) {
	if r.body == nil {
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	r.idle.Reset(r.stall)
	defer r.idle.Stop()
	n, err := r.body.Read(p[:min(int64(len(p)), r.size-r.at)])
	if n == 0 && (err == nil || errors.Is(err, io.EOF)) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (r *resumed) open() error {
	ctx, cancel := context.WithCancel(r.ctx)
	r.cancel, r.idle = cancel, time.AfterFunc(r.stall, cancel)
	options := minio.GetObjectOptions{}
	if r.at > 0 {
		if err := options.SetRange(r.at, 0); err != nil {
			return err
		}
	}
	body, info, _, err := r.s3.GetObject(ctx, r.name, r.object, options)
	if isMissing(err) {
		return fmt.Errorf("%w: a layer is missing: %w", ErrDamaged, explain(err))
	}
	if err != nil {
		return err
	}
	r.body = body
	if info.Size != r.size-r.at {
		return fmt.Errorf("%w: a layer has another size", ErrDamaged)
	}
	return nil
}

// close ends the current request.
func (r *resumed) close() {
	if r.cancel != nil {
		r.idle.Stop()
		r.cancel()
	}
	if r.body != nil {
		_ = r.body.Close()
	}
	r.cancel, r.body = nil, nil
}
