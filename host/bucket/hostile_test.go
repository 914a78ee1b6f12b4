package bucket

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/host/bucket/buckettest"
)

// patience bounds an operation that must end by itself.
const patience = time.Minute

// TestDrip: a download from a server that sends a byte now and then ends.
func TestDrip(t *testing.T) {
	t.Parallel()
	s, key := buckettest.Start(t), newKey(t)
	b := open(t, s, key)
	_, write := layerOf(30, 2<<20)
	l := stored(t, b, "snap_1", write)
	b.stall = 500 * time.Millisecond
	s.Drip(5 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := b.Download(ctx, l)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for buffer := make([]byte, 64<<10); err == nil; {
		_, err = r.Read(buffer)
	}
	if !errors.Is(err, errDrip) {
		t.Errorf("the download: %v", err)
	}
}

// TestEndlessAnswers: a server whose listings have no end, by pages, by one page, or by records without content, is an error, and its answers take
// bounded memory.
func TestEndlessAnswers(t *testing.T) {
	t.Parallel()
	const head = `<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>`
	for name, page := range map[string]func(w http.ResponseWriter, n int64){
		"empty pages": func(w http.ResponseWriter, n int64) {
			_, _ = fmt.Fprintf(w, head+"</ListBucketResult>", n)
		},
		"one page": func(w http.ResponseWriter, _ int64) {
			_, err := fmt.Fprint(w, `<ListBucketResult>`, strings.Repeat(" ", 1<<16))
			for err == nil {
				_, err = fmt.Fprint(w, "<Contents><Key>hosts/a/snapshots/X</Key><Size>1</Size></Contents>")
			}
		},
		"large records": func(w http.ResponseWriter, n int64) {
			_, _ = fmt.Fprintf(w, head+"<Contents><Key>hosts/a/snapshots/a%d</Key><Size>%d</Size></Contents></ListBucketResult>", n, n, 64<<20)
		},
		"names and tags alone": func(w http.ResponseWriter, n int64) {
			_, _ = fmt.Fprintf(w, head+"<Contents><Key>hosts/a/snapshots/a%d</Key><ETag>%s</ETag><Size>0</Size></Contents></ListBucketResult>", n, n, strings.Repeat("e", 4<<20))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var pages atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !r.URL.Query().Has("list-type") {
					http.NotFound(w, r)
					return
				}
				page(w, pages.Add(1))
			}))
			defer server.Close()
			b, err := New(Config{
				Bucket: "bucket", Prefix: "hosts/a", Endpoint: strings.TrimPrefix(server.URL, "http://"), Plain: true, AccessKey: "a", Secret: secret("b"), Key: secret(newKey(t)),
				Roots: x509.NewCertPool(), Log: zap.NewNop(),
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience/2)
			defer cancel()
			if _, _, err := b.Manifests(ctx); !errors.Is(err, ErrDamaged) {
				t.Errorf("after %d pages: %v", pages.Load(), err)
			}
		})
	}
}
