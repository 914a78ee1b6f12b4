package host

import (
	"cmp"
	"context"
	"crypto/x509"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/config"
	"boxgate/host/bucket"
	"boxgate/policy/name"
	"boxgate/preflight"
	"boxgate/secrets"
	"boxgate/store"
)

// openBucket returns the store of snapshots of the configuration.
func openBucket(c config.Snapshots, source func(context.Context, string) (name.Secret, error), log *zap.Logger) (*bucket.Bucket, error) {
	roots, err := x509.SystemCertPool()
	if c.CAFile != "" {
		roots, err = rootsWith("snapshots.ca_file", []string{c.CAFile})
	}
	if err != nil {
		return nil, err
	}
	bucketName, prefix := c.Bucket()
	address, plain := c.Server()
	return bucket.New(bucket.Config{
		Bucket: bucketName, Prefix: prefix, Endpoint: address, Plain: plain, Region: c.Region, AccessKey: c.AccessKey, Roots: roots, Log: log,
		Secret: func(ctx context.Context) (name.Secret, error) { return source(ctx, c.SecretKey) },
		Key:    func(ctx context.Context) (name.Secret, error) { return source(ctx, c.Key) },
	})
}

// shareSnapshots uses the store of snapshots that several hosts share, if snapshots.store is set. The server need not answer.
func (p *parts) shareSnapshots() error {
	c := p.cfg.Snapshots
	if !c.Enabled() {
		return nil
	}
	b, err := openBucket(c, p.secrets.Secret, p.log.Named("snapshots"))
	if err != nil {
		return err
	}
	address, _ := c.Server()
	p.snapshotManager.Share("https://"+address+"/"+c.Store, b, p.launcher, p.launcher.CheckFree, p.isAdmin)
	for name, gauge := range map[string]struct {
		help  string
		value func() float64
	}{
		"boxgate_snapshot_store_up":         {"1: the last listing of snapshots.store succeeded; 0: it failed", p.snapshotManager.StoreUp},
		"boxgate_snapshot_store_unreadable": {"snapshots in snapshots.store that cannot be read: changed, or written with another key", p.snapshotManager.Unreadable},
	} {
		if err := p.metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: gauge.help}, gauge.value)); err != nil {
			return err
		}
	}
	return nil
}

// isAdmin reports whether an API key is an admin key.
func (p *parts) isAdmin(key string) bool {
	all, err := p.store.Keys.All()
	return err == nil && slices.ContainsFunc(all, func(k store.APIKey) bool { return k.ID == key && k.Role == string(api.RoleAdmin) })
}

// snapshotCheckTime bounds the check of the store.
const snapshotCheckTime = 30 * time.Second

// CheckSnapshots writes, lists, reads and removes an object in the store of snapshots, if there is one.
func CheckSnapshots(ctx context.Context, cfg config.Config) error {
	if !cfg.Snapshots.Enabled() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotCheckTime)
	defer cancel()
	opened, err := secrets.Open(cfg.Secrets.Sources, secrets.Options{Log: zap.NewNop()})
	if err != nil {
		return preflight.Warnf("snapshots.store was not checked: %w", err)
	}
	defer opened.Close()
	b, err := openBucket(cfg.Snapshots, opened.Secret, zap.NewNop())
	return cmp.Or(err, checkBucket(ctx, b))
}

// checkBucket reports the error of a store as a warning, because a gateway starts without it.
func checkBucket(ctx context.Context, b *bucket.Bucket) error {
	if b == nil {
		return nil
	}
	if err := b.Check(ctx); err != nil {
		return preflight.Warnf("snapshots.store: %w; until that is mended, no snapshots can be taken, and those of other hosts cannot be used", err)
	}
	return nil
}
