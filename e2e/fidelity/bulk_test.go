package fidelity

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

const (
	bulkBlock = 1 << 20
	grownMax  = 64 << 20 // maximum growth of the gateway in bytes
)

var (
	bulkSize = nightly.Size(96<<20, 1<<30) // more than grownMax, to detect a gateway that buffers all of it
	bulkLess = nightly.Size(8<<20, 64<<20)
)

// writeBulk writes size bytes in which all blocks differ.
func writeBulk(w io.Writer, size int) error {
	block := make([]byte, bulkBlock)
	for i := range block {
		block[i] = byte(i * 7)
	}
	for i := range size / bulkBlock {
		binary.BigEndian.PutUint64(block, uint64(i))
		if _, err := w.Write(block); err != nil {
			return err
		}
	}
	return nil
}

// bulkDigests holds the digests of writeBulk's output, by size.
var bulkDigests sync.Map

// bulkDigest returns the SHA-256 digest of writeBulk's output. A handler could not compute it: with HTTP/2 its last
// write may fail because the client has closed the stream after all bytes of the Content-Length.
func bulkDigest(size int) string {
	digest, _ := bulkDigests.LoadOrStore(size, sync.OnceValue(func() string {
		sum := sha256.New()
		_ = writeBulk(sum, size) // a hash takes every write
		return fmt.Sprintf("%x", sum.Sum(nil))
	}))
	return digest.(func() string)()
}

// bulkPages serves /down, which sends the number of bytes in its query, and /up, which answers with the digest of the
// body.
func (f *fidelity) bulkPages() {
	f.page("/down", func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.URL.RawQuery)
		w.Header().Set("Content-Length", strconv.Itoa(size))
		_ = writeBulk(w, size) // the client checks the received bytes
	})
	f.page("/up", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.CopyBuffer(sum, r.Body, make([]byte, 256<<10))
		fmt.Fprintf(w, "%d %x %v %v", n, sum.Sum(nil), err, r.ContentLength)
	})
}

// uploader sends the blocks of writeBulk with a Content-Length, using Python's HTTP client.
const uploader = `import hashlib, http.client, sys
host, size = sys.argv[1], int(sys.argv[2])
block, total = bytearray(i * 7 & 255 for i in range(1 << 20)), hashlib.sha256()
def blocks():
    for i in range(size >> 20):
        block[:8] = i.to_bytes(8, 'big')
        total.update(block)
        yield block
if host == '-':
    for b in blocks(): sys.stdout.buffer.write(b)
    print(total.hexdigest(), file=sys.stderr)
else:
    c = http.client.HTTPSConnection(host)
    c.request('PUT', '/up', body=blocks(), headers={'Content-Length': str(size)})
    answer = c.getresponse().read().decode()
    print(total.hexdigest(), answer)
`

// download fetches size bytes with curl and checks their number, their digest and curl's exit status.
func (f *fidelity) download(options, url string, size int) {
	f.T.Helper()
	line := fmt.Sprintf("{ curl -sS -w '%%{stderr}%%{size_download} bytes' %s %s/down?%d; echo \", exit $?\" >&2; } | openssl dgst -sha256 -r", options, url, size)
	out, errs, code := f.runLine(line)
	digest, _, _ := strings.Cut(out, " ")
	if told := strings.TrimSpace(errs); code != 0 || told != fmt.Sprintf("%d bytes, exit 0", size) || digest != bulkDigest(size) {
		f.T.Errorf("of %d bytes with digest %s arrived %s; curl: %s; openssl: exit %d", size, bulkDigest(size), digest, told, code)
	}
}

// TestFidelityBulk moves much data each way over each version, 1 GiB in the nightly tier, and bounds the gateway's
// growth.
func TestFidelityBulk(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	f.bulkPages()
	python := "python3 " + f.program("up.py", uploader)
	check := func(t *testing.T, size int, move func(f *fidelity, size int)) {
		f := f.on(t)
		move(f, 16<<20) // the initial allocation does not count as growth
		before := f.resetPeak()
		move(f, size)
		if _, peak := f.memory(); peak-before > grownMax && !harness.RaceDetector() {
			t.Errorf("the gateway grew by %d MiB", (peak-before)>>20)
		} else {
			t.Logf("the gateway grew by %d KiB from %d KiB", (peak-before)>>10, before>>10)
		}
	}
	down := func(r route) func(*fidelity, int) {
		return func(f *fidelity, size int) { f.download(r.curl, r.url, size) }
	}
	t.Run("down h1", func(t *testing.T) { check(t, bulkSize, down(overHTTP1)) })
	t.Run("down h2", func(t *testing.T) { check(t, bulkSize, down(overHTTP2)) })
	t.Run("down h2 to h1", func(t *testing.T) { check(t, bulkLess, down(overDowngrade)) })
	t.Run("down plain", func(t *testing.T) { check(t, bulkLess, down(overPlain)) })
	t.Run("down spliced", func(t *testing.T) {
		check(t, bulkLess, func(f *fidelity, size int) {
			f.download("-k", overSplice.url, size)
		})
	})
	t.Run("up h1", func(t *testing.T) {
		check(t, bulkSize, func(f *fidelity, size int) {
			out := f.run(fmt.Sprintf("%s %s %d", python, bothHost, size))
			if hash, answer, _ := strings.Cut(strings.TrimSpace(out), " "); answer != fmt.Sprintf("%d %s <nil> %d", size, hash, size) {
				f.T.Errorf("sent %s, the server says %s", hash, answer)
			}
		})
	})
	up := func(r route) func(*fidelity, int) {
		return func(f *fidelity, size int) { // without a Content-Length
			answer, hash, code := f.runLine(fmt.Sprintf("%s - %d | curl -sS %s -T - %s/up", python, size, r.curl, r.url))
			if hash = strings.TrimSpace(hash); code != 0 || answer != fmt.Sprintf("%d %s <nil> -1", size, hash) {
				f.T.Errorf("sent %s, the server says %s; curl: exit %d", hash, answer, code)
			}
		}
	}
	t.Run("up h2", func(t *testing.T) { check(t, bulkSize, up(overHTTP2)) })
	t.Run("up h2 to h1", func(t *testing.T) { check(t, bulkLess, up(overDowngrade)) })
	t.Run("up h1 in chunks", func(t *testing.T) { check(t, bulkLess, up(overHTTP1)) })
	f.NoInternalErrors()
}
