package aws

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"boxgate/policy/name"
	"boxgate/rule/sign"
	"boxgate/secrets/remote"
)

var region = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-[0-9]{1,2}$`)

// call is a signed request to a service.
type call struct {
	service, region, url string
	header               http.Header
	body                 []byte
}

// send signs a request with credentials from a secret, and sends it.
func (c call) send(ctx context.Context, d remote.Env, credentials string) (remote.Answer, []byte, error) {
	value, err := d.Secret(ctx, credentials)
	if err != nil {
		return remote.Answer{}, nil, err
	}
	keys, err := sign.ParseCredentials(value)
	switch {
	case err != nil:
		return remote.Answer{}, nil, fmt.Errorf("the secret with its credentials %w", err)
	case !keys.Expires.IsZero() && !d.Now().Before(keys.Expires):
		return remote.Answer{}, nil, errors.New("its credentials have expired")
	}
	if err := c.sign(ctx, keys, d.Now()); err != nil {
		return remote.Answer{}, nil, err
	}
	return d.Client.Do(ctx, remote.Request{
		URL: c.url, Header: c.header, Body: c.body, Hide: []name.Secret{keys.SecretAccessKey, keys.SessionToken},
	})
}

func (c call) sign(ctx context.Context, keys sign.Credentials, now time.Time) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, nil)
	if err != nil {
		return errors.New("the request cannot be made")
	}
	r.Header = c.header
	r.ContentLength = int64(len(c.body))
	sum := sha256.Sum256(c.body)
	err = v4.NewSigner().SignHTTP(ctx, aws.Credentials{
		AccessKeyID: keys.AccessKeyID, SecretAccessKey: keys.SecretAccessKey.Reveal(), SessionToken: keys.SessionToken.Reveal(),
	}, r, hex.EncodeToString(sum[:]), c.service, c.region, now)
	if err != nil {
		return errors.New("the request cannot be signed")
	}
	return nil
}

func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "?"
	}
	return u.Host
}

// endpointURL returns the configured endpoint of a service, or the usual one of a region.
func endpointURL(configured, service, region string) string {
	if configured != "" {
		return configured
	}
	suffix := ".amazonaws.com"
	if len(region) > 3 && region[:3] == "cn-" {
		suffix = ".amazonaws.com.cn"
	}
	return "https://" + service + "." + region + suffix + "/"
}

func validatePlace(at, configured string, fail remote.Fail) {
	if !region.MatchString(at) {
		fail("region", "is not a region such as eu-central-1")
	}
	if configured != "" {
		if err := remote.CheckURL(configured); err != nil {
			fail("endpoint", "%v", err)
		}
	}
}
