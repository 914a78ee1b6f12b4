package acme

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/caddyserver/certmagic"
)

// files is certmagic's storage in files. Its locks are in memory: the store allows only one gateway per state
// directory, and a killed gateway must not leave a lock that the next one waits for.
type files struct {
	*certmagic.FileStorage

	mu    sync.Mutex
	locks map[string]chan struct{} // closed when the lock is released
}

// NewFiles makes a storage in a directory, which must be accessible only to its owner. The directory is created when
// something is stored.
func NewFiles(dir string) (certmagic.Storage, error) {
	info, err := os.Stat(dir)
	switch {
	case os.IsNotExist(err):
	case err != nil:
		return nil, err
	case !info.IsDir() || info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s holds private keys and must be a directory that only its owner may open: run chmod 700 %s", dir, dir)
	}
	return &files{FileStorage: &certmagic.FileStorage{Path: dir}, locks: map[string]chan struct{}{}}, nil
}

// Lock implements [certmagic.Locker].
func (f *files) Lock(ctx context.Context, name string) error {
	for {
		held := f.acquire(name)
		if held == nil {
			return nil
		}
		select {
		case <-held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TryLock implements [certmagic.TryLocker].
func (f *files) TryLock(_ context.Context, name string) (bool, error) {
	return f.acquire(name) == nil, nil
}

// acquire takes a lock, or returns a channel that is closed when the current holder releases it.
func (f *files) acquire(name string) (held <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if lock, ok := f.locks[name]; ok {
		return lock
	}
	f.locks[name] = make(chan struct{})
	return nil
}

// Unlock implements [certmagic.Locker].
func (f *files) Unlock(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	lock, ok := f.locks[name]
	if !ok {
		return fmt.Errorf("the lock %q is not held", name)
	}
	delete(f.locks, name)
	close(lock)
	return nil
}
