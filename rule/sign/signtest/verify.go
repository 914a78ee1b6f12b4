// Package signtest verifies signatures of requests as AWS does, with AWS's own signer.
package signtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// Keys are the credentials that requests must be signed with.
type Keys struct{ ID, Secret, Token string }

// Verify returns nil if a request received by a server, with its body, is signed with the keys for a region and service: the fields that
// the signature lists are unchanged and include the ones that AWS requires.
func Verify(r *http.Request, body []byte, k Keys, region, service string) error {
	given := r.Header.Values("Authorization")
	if len(given) != 1 {
		return fmt.Errorf("%d values of Authorization", len(given))
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		return err
	}
	scope := k.ID + "/" + at.Format("20060102") + "/" + region + "/" + service + "/aws4_request"
	rest, ok := strings.CutPrefix(given[0], "AWS4-HMAC-SHA256 Credential="+scope+", SignedHeaders=")
	if !ok {
		return fmt.Errorf("signed as %q", given[0])
	}
	list, _, _ := strings.Cut(rest, ",")
	again, err := signedPart(r, strings.Split(list, ";"))
	if err != nil {
		return err
	}
	if got := r.Header.Get("X-Amz-Security-Token"); got != k.Token {
		return fmt.Errorf("the session token is %q", got)
	}
	hash, sum := r.Header.Get("X-Amz-Content-Sha256"), sha256.Sum256(body)
	if hash == "" && service != "s3" { // only S3 requires the header
		hash = hex.EncodeToString(sum[:])
	}
	if len(hash) == 64 && hash != hex.EncodeToString(sum[:]) {
		return errors.New("X-Amz-Content-Sha256 is not the hash of the body")
	}
	for name := range again.URL.Query() {
		if strings.HasPrefix(strings.ToLower(name), "x-amz-s") || strings.EqualFold(name, "X-Amz-Credential") {
			return fmt.Errorf("a second signature, in the query: %s", name)
		}
	}
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = service == "s3" })
	err = signer.SignHTTP(context.Background(), aws.Credentials{AccessKeyID: k.ID, SecretAccessKey: k.Secret, SessionToken: k.Token}, again, hash, service, region, at)
	if want := again.Header.Get("Authorization"); err == nil && want != given[0] {
		err = fmt.Errorf("the signature of what has arrived is\n%s, not\n%s", want, given[0])
	}
	return err
}

// signedPart returns the request with the headers that its signature lists, and no others.
func signedPart(r *http.Request, names []string) (*http.Request, error) {
	path, query, _ := strings.Cut(r.RequestURI, "?")
	again := &http.Request{Method: r.Method, Host: r.Host, Header: http.Header{}, URL: &url.URL{Opaque: "//" + r.Host + path, RawQuery: query}}
	listed := map[string]bool{}
	for _, name := range names {
		listed[name] = true
		switch name {
		case "host":
		case "content-length":
			again.ContentLength = r.ContentLength
		default:
			again.Header[http.CanonicalHeaderKey(name)] = append([]string(nil), r.Header.Values(name)...)
		}
	}
	for name := range r.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-amz-") && !listed[lower] {
			return nil, fmt.Errorf("%s is not signed", name)
		}
	}
	if !listed["host"] {
		return nil, errors.New("the host is not signed")
	}
	return again, nil
}
