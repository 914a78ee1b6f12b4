package bucket

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
)

// ErrDamaged means that an object differs from the one that a host with the same key wrote there: it was changed, cut off, or moved from another name.
var ErrDamaged = errors.New("the snapshot store has another content than a host wrote")

// keys are derived from the key of the hosts.
type keys struct {
	id        string // of the key; it reveals nothing else
	manifests cipher.AEAD
	names     []byte // of the names of layers
	layers    []byte // of the keys of layers
}

// deriveKeys derives the keys from the text of an age identity, which has 256 random bits. Each use has a key of its own.
func deriveKeys(text string) (keys, error) {
	identity := ""
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if identity != "" {
			return keys{}, errors.New("the key of the snapshot store has several lines; use one age identity")
		}
		identity = line
	}
	parsed, err := age.ParseX25519Identity(identity)
	if err != nil { // err may quote the text
		return keys{}, errors.New("the key of the snapshot store is not an age identity, such as age-keygen makes: AGE-SECRET-KEY-1…")
	}
	of := func(use string) []byte {
		key, err := hkdf.Key(sha256.New, []byte(parsed.String()), nil, "boxgate snapshot store 1: "+use, 32)
		if err != nil {
			panic(err) // only for lengths that hkdf does not have
		}
		return key
	}
	return keys{id: hex.EncodeToString(of("id")[:8]), manifests: newAEAD(of("manifests")), names: of("names of layers"), layers: of("layers")}, nil
}

func newAEAD(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // only for other lengths
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // only for other block sizes
	}
	return aead
}

func mac(key, text []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(text)
	return m.Sum(nil)
}

// layerName returns the name of a layer's object, which depends on the key: it does not reveal the content to others.
func (k keys) layerName(digest []byte) string {
	return k.ownLayers() + hex.EncodeToString(mac(k.names, digest))
}

// ownLayers begins the names of all layers of hosts with the key. Manifests of other keys do not need them.
func (k keys) ownLayers() string { return k.id + "-" }

// manifestMark begins each manifest, before the version and the ID of the key.
const (
	manifestMark    = "boxgate-snapshot-"
	manifestVersion = "1"
)

// errLater means that a manifest has the version of a later program.
var errLater = errors.New("the record of the snapshot has the version of a later boxgate: update this host")

// seal encrypts a manifest for its place.
func (k keys) seal(id string, m Manifest) ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	begin := manifestMark + manifestVersion + k.id
	out := append([]byte(begin), make([]byte, k.manifests.NonceSize())...)
	nonce := out[len(begin):]
	_, _ = rand.Read(nonce) // never fails (crypto/rand)
	return k.manifests.Seal(out, nonce, text, []byte(id)), nil
}

// open decrypts the manifest at a place.
func (k keys) open(id string, sealed []byte) (m Manifest, err error) {
	rest, ok := bytes.CutPrefix(sealed, []byte(manifestMark))
	size := k.manifests.NonceSize()
	switch begin := len(manifestVersion + k.id); {
	case ok && !bytes.HasPrefix(rest, []byte(manifestVersion)):
		return m, errLater
	case !ok || len(rest) < begin+size:
		return m, fmt.Errorf("%w: it is not a manifest", ErrDamaged)
	case string(rest[len(manifestVersion):begin]) != k.id:
		return m, fmt.Errorf("%w: one with another key did", ErrDamaged)
	default:
		rest = rest[begin:]
	}
	text, err := k.manifests.Open(nil, rest[:size], rest[size:], []byte(id))
	if err != nil {
		return m, fmt.Errorf("%w there", ErrDamaged)
	}
	if err := json.Unmarshal(text, &m); err != nil || m.Snapshot.ID != id {
		return m, fmt.Errorf("%w: the manifest is that of another snapshot", ErrDamaged)
	}
	return m, m.check()
}

// A sealed layer is a sequence of chunks, each encrypted by AES-256-GCM (the construction STREAM, as in age). The nonce is the number of the
// chunk and whether it is the last, so chunks cannot be exchanged, repeated or left out. The key depends on the digest of the content, so no
// two contents have the same key, and one content always gives the same bytes: an upload can be resumed, and hosts that upload the same
// layer upload the same object.
const (
	chunkSize = 64 << 10
	tagSize   = 16
)

// sealedSize returns the size of a sealed layer of n bytes.
func sealedSize(n int64) int64 { return n + max(1, (n+chunkSize-1)/chunkSize)*tagSize }

func (k keys) layerKey(digest []byte) cipher.AEAD { return newAEAD(mac(k.layers, digest)) }

func nonce(number uint64, last bool) []byte {
	n := make([]byte, 12)
	binary.BigEndian.PutUint64(n[3:], number)
	if last {
		n[11] = 1
	}
	return n
}

// sealer encrypts a stream. Close writes the last chunk, and does not close the writer below.
type sealer struct {
	aead   cipher.AEAD
	to     io.Writer
	number uint64
	chunk  []byte
	out    []byte
}

func newSealer(aead cipher.AEAD, to io.Writer) *sealer {
	return &sealer{aead: aead, to: to, chunk: make([]byte, 0, chunkSize)}
}

func (s *sealer) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if len(s.chunk) == chunkSize { // more follows, so it is not the last
			if err := s.flush(false); err != nil {
				return n, err
			}
		}
		part := min(len(p), chunkSize-len(s.chunk))
		s.chunk, p, n = append(s.chunk, p[:part]...), p[part:], n+part
	}
	return n, nil
}

func (s *sealer) flush(last bool) error {
	s.out = s.aead.Seal(s.out[:0], nonce(s.number, last), s.chunk, nil)
	s.number, s.chunk = s.number+1, s.chunk[:0]
	_, err := s.to.Write(s.out)
	return err
}

func (s *sealer) Close() error { return s.flush(true) }

// opener decrypts a sealed layer. It returns io.EOF only after the last chunk.
type opener struct {
	aead   cipher.AEAD
	from   *bufio.Reader
	number uint64
	sealed []byte
	plain  []byte // not read yet
	done   bool
}

func newOpener(aead cipher.AEAD, from io.Reader) *opener {
	return &opener{aead: aead, from: bufio.NewReaderSize(from, 256<<10), sealed: make([]byte, chunkSize+tagSize)}
}

func (o *opener) Read(p []byte) (int, error) {
	for len(o.plain) == 0 {
		if o.done {
			return 0, io.EOF
		}
		if err := o.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, o.plain)
	o.plain = o.plain[n:]
	return n, nil
}

func (o *opener) next() error {
	n, err := io.ReadFull(o.from, o.sealed)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := o.from.Peek(1); errors.Is(err, io.EOF) {
		o.done = true
	} else if err != nil {
		return err
	}
	if o.plain, err = o.aead.Open(o.sealed[:0], nonce(o.number, o.done), o.sealed[:n], nil); err != nil {
		return ErrDamaged
	}
	o.number++
	return nil
}
