package certs

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// checkInterval is the minimum time between checks of the files.
const checkInterval = time.Second

// Files serves a certificate chain and its key from two PEM files, and reloads them when for instance an ACME client or
// a secret mount replaces them. Safe for concurrent use.
type Files struct {
	certFile, keyFile string
	failed            func(error)

	mu        sync.Mutex
	cert      *tls.Certificate
	seen      [2]fileState
	checkedAt time.Time
}

// fileState identifies a version of a file.
type fileState struct {
	modified time.Time
	size     int64
}

// NewFiles loads the files. failed, if not nil, is called when a later version does not load; the previous version then
// stays in use.
func NewFiles(certFile, keyFile string, failed func(error)) (*Files, error) {
	if failed == nil {
		failed = func(error) {}
	}
	f := &Files{certFile: certFile, keyFile: keyFile, failed: failed}
	var err error
	if f.seen, err = f.fileStates(); err != nil {
		return nil, err
	}
	if err := f.load(); err != nil {
		return nil, err
	}
	return f, nil
}

// GetCertificate is for tls.Config. It checks the files at most once a second.
func (f *Files) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.checkedAt) >= checkInterval {
		f.checkedAt = now
		f.refreshLocked()
	}
	return f.cert, nil
}

// Expiries returns when the certificate expires.
func (f *Files) Expiries() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cert.Leaf == nil {
		return nil
	}
	return []time.Time{f.cert.Leaf.NotAfter}
}

func (f *Files) refreshLocked() {
	seen, err := f.fileStates()
	if err == nil && seen == f.seen {
		return
	}
	if err == nil {
		err = f.load()
		f.seen = seen // a version that does not load is reported once and not retried
	}
	if err != nil {
		f.failed(err)
	}
}

func (f *Files) load() error {
	cert, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
	if err != nil {
		return fmt.Errorf("load certificate %s and key %s: %w", f.certFile, f.keyFile, err)
	}
	f.cert = &cert
	return nil
}

// fileStates is called before loading, so that a file written concurrently counts as changed at the next check.
func (f *Files) fileStates() ([2]fileState, error) {
	var states [2]fileState
	for i, name := range []string{f.certFile, f.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return states, fmt.Errorf("load certificate: %w", err)
		}
		states[i] = fileState{modified: info.ModTime(), size: info.Size()}
	}
	return states, nil
}
