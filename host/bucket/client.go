package bucket

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"go.uber.org/zap"

	"boxgate/internal/required"
	"boxgate/policy/name"
)

// ErrFull means that the store has no room for another object.
var ErrFull = errors.New("the snapshot store has no room left")

// Config configures a Bucket. All fields must be set, except Prefix and Region.
type Config struct {
	Bucket    string
	Prefix    string // of all objects, without a slash at the end
	Endpoint  string // host and port of the server
	Plain     bool   // HTTP without TLS, on this machine
	Region    string
	AccessKey string
	Secret    func(context.Context) (name.Secret, error) // of AccessKey; called for each request
	Key       func(context.Context) (name.Secret, error) // an age identity that all hosts share
	Roots     *x509.CertPool
	Log       *zap.Logger
}

// Bucket is the store of snapshots that several hosts share. Safe for concurrent use.
type Bucket struct {
	log    *zap.Logger
	s3     *minio.Core
	name   string
	prefix string
	key    func(context.Context) (name.Secret, error)

	stall     time.Duration // how long a transfer may take without a byte
	wait      time.Duration // before the first new attempt; doubled each time
	grace     time.Duration // see Sweep
	partSize  int64
	maxStored int // layers that Sweep lists

	mu       sync.Mutex
	keyText  string            // guarded by mu, like the fields below; that keys were derived from
	keys     keys              //
	known    map[string]object // the manifests of the last listing
	unneeded map[string]unneeded
}

const (
	stallTimeout = time.Minute
	firstWait    = time.Second
	attempts     = 6
	// callTimeout bounds calls without contents.
	callTimeout = 20 * time.Second
	// partTimeout bounds the upload of one part.
	partTimeout = 5 * time.Minute
	// minRate is the rate in bytes a second below which a download fails, after the time of two stalls.
	minRate = 64 << 10
	// maxAnswer bounds one answer in bytes, except of the content of an object, and maxPages the answers to one listing.
	maxAnswer = 8 << 20
	maxPages  = 500
	partSize  = 16 << 20
	// maxStored bounds the layers in the store that are listed in memory.
	maxStored = 1 << 17
	// maxParts is the limit of S3 on the parts of an object.
	maxParts = 10_000
)

// New returns a Bucket. It does not connect yet.
func New(c Config) (*Bucket, error) {
	optional := c
	optional.Prefix, optional.Region, optional.Plain = "-", "-", true
	if err := required.Fields(optional); err != nil {
		return nil, err
	}
	b := &Bucket{log: c.Log, name: c.Bucket, key: c.Key, stall: stallTimeout, wait: firstWait, grace: graceTime, partSize: partSize, maxStored: maxStored, known: map[string]object{}, unneeded: map[string]unneeded{}}
	if c.Prefix != "" {
		b.prefix = c.Prefix + "/"
	}
	region := c.Region
	if region == "" {
		region = "us-east-1" // otherwise the client asks the server for it
	}
	var err error
	b.s3, err = minio.NewCore(c.Endpoint, &minio.Options{
		Creds: credentials.New(&login{c.AccessKey, c.Secret}), Secure: !c.Plain, Region: region, BucketLookup: minio.BucketLookupPath, MaxRetries: 1,
		Transport: bounded{&http.Transport{ // without the proxy of the environment
			DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, TLSClientConfig: &tls.Config{RootCAs: c.Roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: stallTimeout, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 8, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("the snapshot store: %w", err)
	}
	return b, nil
}

// bounded is a transport that bounds the answers of a server, which the client of S3 reads into memory.
type bounded struct{ http.RoundTripper }

// pagesKey is the context key of the number of pages of a listing, an *int.
type pagesKey struct{}

// errEndless ends an answer or a listing that is longer than any of a store of snapshots.
var errEndless = fmt.Errorf("%w: its answers do not end", ErrDamaged)

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if pages, ok := r.Context().Value(pagesKey{}).(*int); ok {
		if *pages++; *pages > maxPages {
			return nil, errEndless
		}
	}
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil && (r.Method != http.MethodGet || r.URL.RawQuery != "" || resp.StatusCode >= 300) {
		resp.Body = &answer{resp.Body, maxAnswer}
	}
	return resp, err
}

// answer is the body of a bounded answer.
type answer struct {
	io.ReadCloser
	left int
}

// Read implements [io.Reader].
func (a *answer) Read(p []byte) (int, error) {
	if a.left <= 0 {
		return 0, errEndless
	}
	n, err := a.ReadCloser.Read(p[:min(len(p), a.left)])
	a.left -= n
	return n, err
}

// login provides the current credentials for each request.
type login struct {
	accessKey string
	secret    func(context.Context) (name.Secret, error)
}

// RetrieveWithCredContext implements [credentials.Provider].
func (l *login) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return l.Retrieve()
}

// Retrieve implements [credentials.Provider].
func (l *login) Retrieve() (credentials.Value, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	secret, err := l.secret(ctx)
	if err != nil {
		return credentials.Value{}, err
	}
	return credentials.Value{AccessKeyID: l.accessKey, SecretAccessKey: secret.Reveal(), SignerType: credentials.SignatureV4}, nil
}

// IsExpired implements [credentials.Provider].
func (l *login) IsExpired() bool { return true }

// derived returns the keys, derived anew if the key of the hosts has changed.
func (b *Bucket) derived(ctx context.Context) (keys, error) {
	text, err := b.key(ctx)
	if err != nil {
		return keys{}, fmt.Errorf("the key of the snapshot store: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if text.Reveal() == b.keyText && b.keyText != "" {
		return b.keys, nil
	}
	k, err := deriveKeys(text.Reveal())
	if err != nil {
		return keys{}, err
	}
	b.keyText, b.keys, b.known = text.Reveal(), k, map[string]object{}
	return k, nil
}

// codeText is the form of S3's error codes. The other text of an error is written by the server, and not shown.
var codeText = regexp.MustCompile(`^[A-Za-z]{1,60}$`)

// explain converts an error of the client.
func explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, ErrDamaged) || errors.Is(err, ErrFull) {
		return err
	}
	var r minio.ErrorResponse
	if !errors.As(err, &r) {
		return fmt.Errorf("the snapshot store does not answer: %w", err)
	}
	code := r.Code
	if !codeText.MatchString(code) {
		code = "no code"
	}
	switch {
	case r.StatusCode == http.StatusInsufficientStorage || code == "QuotaExceeded" || code == "XMinioStorageFull":
		return fmt.Errorf("%w: %s", ErrFull, code)
	case r.StatusCode == http.StatusForbidden:
		return fmt.Errorf("the snapshot store refuses the credentials: %s", code)
	}
	return &statusError{r.StatusCode, code}
}

// statusError is another answer of the server.
type statusError struct {
	status int
	code   string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the snapshot store answered %d, %s", e.status, e.code)
}

// isMissing reports whether the server said that there is no such object or upload, in a bucket that exists.
func isMissing(err error) bool {
	var r minio.ErrorResponse
	return errors.As(err, &r) && (r.Code == "NoSuchKey" || r.Code == "NoSuchUpload")
}

// final reports whether another attempt would have the same result.
func final(err error) bool {
	var r minio.ErrorResponse
	if errors.Is(err, ErrDamaged) || errors.Is(err, ErrFull) || errors.Is(err, errLayerChanged) {
		return true
	}
	if !errors.As(err, &r) {
		return false
	}
	return r.StatusCode == http.StatusInsufficientStorage || r.StatusCode >= 400 && r.StatusCode < 500 && r.StatusCode != http.StatusRequestTimeout && r.StatusCode != http.StatusTooManyRequests && r.Code != "NoSuchUpload"
}

// retry calls f until it succeeds, its error is final, or a number of attempts have failed.
func (b *Bucket) retry(ctx context.Context, f func() error) (err error) {
	for i, wait := 0, b.wait; ; i, wait = i+1, 2*wait {
		if err = f(); err == nil || final(err) || i+1 == attempts || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Check writes, lists, reads and removes an object, and returns the first error.
func (b *Bucket) Check(ctx context.Context) error {
	if _, err := b.derived(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	object := b.prefix + "check/" + randomName()
	if err := b.put(ctx, object, []byte("boxgate")); err != nil {
		return fmt.Errorf("an object cannot be written: %w", explain(err))
	}
	listErr := b.list(ctx, "check/", func(minio.ObjectInfo) error { return nil })
	_, getErr := b.get(ctx, object, 100)
	removeErr := b.s3.RemoveObject(ctx, b.name, object, minio.RemoveObjectOptions{})
	for what, err := range map[string]error{"objects cannot be listed": listErr, "an object cannot be read": getErr, "an object cannot be removed": removeErr} {
		if err != nil {
			return fmt.Errorf("%s: %w", what, explain(err))
		}
	}
	return nil
}

// put writes a small object.
func (b *Bucket) put(ctx context.Context, object string, content []byte) error {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	_, err := b.s3.PutObject(ctx, b.name, object, newReader(content), int64(len(content)), md5Base64(content), "", minio.PutObjectOptions{ContentType: contentType, DisableMultipart: true})
	return err
}

// contentType is the type of all objects.
const contentType = "application/octet-stream"

// get reads a small object.
func (b *Bucket) get(ctx context.Context, object string, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body, _, _, err := b.s3.GetObject(ctx, b.name, object, minio.GetObjectOptions{})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	content, err := io.ReadAll(io.LimitReader(body, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%w: it is too large", ErrDamaged)
	}
	return content, err
}
