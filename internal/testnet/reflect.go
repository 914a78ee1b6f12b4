package testnet

import (
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// Reflect returns the credential of a request to the client, in every part of a response and in many encodings: in the
// header X-Reflect, in Location, a cookie and a trailer, and line by line in the body. The last path element names the
// content coding (gzip, deflate, br or zstd; any other value means none). The query parameter mib adds that many MiB of
// filler, with the credential after each.
func Reflect(w http.ResponseWriter, r *http.Request) {
	sent := r.Header.Get("Authorization")
	_, token, _ := strings.Cut(sent, " ")
	h := w.Header()
	h.Set("X-Reflect", sent)
	h.Set("Location", "/?token="+url.QueryEscape(token))
	h.Set("Set-Cookie", "token="+base64.StdEncoding.EncodeToString([]byte(token)))
	h.Set("Trailer", "X-Reflect-End")
	coding := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	out := encoder(w, coding)
	if _, plain := out.(plainBody); !plain {
		h.Set("Content-Encoding", coding)
	}
	mib, _ := strconv.Atoi(r.URL.Query().Get("mib"))
	filler := strings.Repeat("0123456789abcdef%41 ~!?#.", 1<<20/25)
	for i := 0; i <= mib; i++ {
		if i > 0 {
			fmt.Fprint(out, i, filler)
		}
		for _, form := range Reflections(token) {
			if _, err := fmt.Fprintf(out, "<%s>\n", form); err != nil {
				return
			}
		}
	}
	_ = out.Close()
	h.Set("X-Reflect-End", sent)
}

func (n *servers) reflect(w http.ResponseWriter, r *http.Request, _ string) { Reflect(w, r) }

// Reflections returns the encodings of a token that servers commonly write.
func Reflections(token string) []string {
	quoted, _ := json.Marshal(token) // a string can always be encoded
	var escaped strings.Builder
	for _, c := range []byte(token) {
		fmt.Fprintf(&escaped, `\u%04x`, c)
	}
	b64 := base64.StdEncoding.EncodeToString
	return []string{
		token, url.QueryEscape(token), url.PathEscape(token), string(quoted), escaped.String(), hex.EncodeToString([]byte(token)),
		b64([]byte(token)), b64([]byte("Bearer " + token)), b64([]byte("u:" + token)), base64.RawURLEncoding.EncodeToString([]byte("." + token + ".")),
	}
}

type plainBody struct{ io.Writer }

func (plainBody) Close() error { return nil }

func encoder(w io.Writer, coding string) io.WriteCloser {
	switch coding {
	case "gzip":
		return gzip.NewWriter(w)
	case "deflate":
		return zlib.NewWriter(w)
	case "br":
		return brotli.NewWriterLevel(w, brotli.BestSpeed)
	case "zstd":
		if z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); err == nil {
			return z
		}
	}
	return plainBody{w}
}
